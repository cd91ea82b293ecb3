"""State that all models of a process share: the log of failures, arriving requests, the event loop's lag."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from math import ceil

from tailcut.common.histogram import Histogram
from tailcut.features.source_opener import Models
from tailcut.models.loading_memory import LoadingMemory
from tailcut.models.variant_loader import artifact_bytes
from tailcut.observe.drift_sink import DriftSink, Watch
from tailcut.observe.failures import FailureLog
from tailcut.observe.sinks import Sinks
from tailcut.observe.traces.identity import Tracer
from tailcut.pipeline.request_context import Arrivals
from tailcut.registry import Variant
from tailcut.scheduler.core_budget import CoreBudget
from tailcut.system.machine import usable_cores


class HostState:
    """State of the process, not of a model. Owned by the event loop.

    Attributes:
        arrivals: requests that were parsed but not started, of any model.
        loop_lag: nanoseconds by which the event loop woke up later than asked.
        sinks: receive what models finish, besides each one's metrics.
        drift: compares batches with what models were judged on; its ``state`` is for pages and alerts.
        memory: lets models be loaded at once as far as there is memory for them.
        many: whether there are several models, or may be: log lines then name theirs.
        models: finds a model for another one's feature group; None where there is only one model.
        cores: what the models share of the machine; None where there is only one model.
        quiet: whether models are loaded in the background, because others (may) serve meanwhile.
        served: what answers now of each model that is loaded; see ``feature_verdict.answering_version``.
        on_served: called after ``served`` has changed.
        tracer: gives requests their places in traces; None where nothing is traced.
        wait_loaded: returns when none of the named models is being loaded.
    """

    def __init__(self, *, many: bool = False) -> None:
        self.many = many
        self.failures = FailureLog()
        self.arrivals = Arrivals()
        self.loop_lag = Histogram()
        self.sinks = Sinks()
        self.drift = DriftSink()
        self.memory = LoadingMemory()
        self.quiet = False
        self.cores = CoreBudget(ceil(usable_cores())) if many else None
        self.models: Models | None = None
        self.served: dict[str, str] = {}
        self.on_served: Callable[[], object] = _nothing
        self.tracer: Tracer | None = None
        self.wait_loaded: Callable[[Sequence[str]], Awaitable[None]] = _settled

    def note_served(self, model: str, version: str) -> None:
        """Note what answers of a model from now on; empty: nothing does."""
        self.served.pop(model, None)
        if version:
            self.served[model] = version
        self.on_served()

    def refuse_too_large(self, variant: Variant) -> None:
        """Refuse to open a variant beside the one that is served, where not even its files fit; any thread may call it.

        It does not wait for other models to be loaded, as a load does: a model that serves must not come to depend on
        them. Nor does it count what an open variant takes beyond its files: that is an estimate, and a promotion that
        would have fitted must not fail by one.

        Raises:
            StartError: they do not fit.
        """
        self.memory.refuse_too_large(
            f"variant {variant.name!r} of version {variant.version} of model {variant.model!r}",
            artifact_bytes(variant),
            "it is opened beside the variant that is served: give the server more memory, or unload a model first",
        )

    def watch_drift(self, model: str, watch: Watch | None) -> None:
        """Watch the drift of a model from now on; None: watch it no more."""
        if watch is None:
            self.drift.unwatch(model)
            return
        if self.drift not in self.sinks.all:
            self.sinks.add(self.drift)
            self.drift.start()
        self.drift.watch(model, watch)


def _nothing() -> None:
    pass


async def _settled(models: Sequence[str]) -> None:
    """Return at once: there is no other model."""
