"""What all models of a process share: failures, arriving requests, the loop's lag, memory while they load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from math import ceil

from tailcut.common.histogram import Histogram
from tailcut.common.units import Size, format_size
from tailcut.errors import StartError
from tailcut.features.source_opener import Models
from tailcut.models.variant_loader import artifact_bytes
from tailcut.observe.drift_sink import DriftSink, Watch
from tailcut.observe.failures import FailureLog
from tailcut.observe.sinks import Sinks
from tailcut.observe.traces.trace_context import Tracer
from tailcut.pipeline.request_context import Arrivals
from tailcut.registry import Variant
from tailcut.scheduler.core_budget import CoreBudget
from tailcut.system.machine import free_bytes, usable_cores

_FREE_SHARE = 0.8
"""Of the memory that is free, what loading may take: requests that are answered meanwhile allocate too."""

_MIB = 1 << 20


class LoadingMemory:
    """Lets models be loaded at once as far as memory has room. Owned by the event loop.

    Args:
        free: returns the bytes that are free; None where that is unknown.
    """

    def __init__(self, free: Callable[[], int | None] = free_bytes) -> None:
        self._free = free
        self._loading: dict[object, int] = {}
        self._ended = asyncio.Event()

    @asynccontextmanager
    async def room_for(self, what: str, least_bytes: int, likely_bytes: int) -> AsyncIterator[None]:
        """Wait until a model fits beside those that are being loaded; it counts as one of them within the block.

        Args:
            what: the model, for the error.
            least_bytes: what it takes in any case: its weights.
            likely_bytes: what it may take while it is loaded.

        Raises:
            StartError: it does not fit, even if nothing else were being loaded.
        """
        while self._loading:
            free = self._free()
            if free is None or likely_bytes + sum(self._loading.values()) <= _FREE_SHARE * free:
                break
            await self._ended.wait()
        self.refuse_too_large(what, least_bytes, "unload another model first, or give the server more memory")
        me = object()
        self._loading[me] = likely_bytes
        try:
            yield
        finally:
            del self._loading[me]
            self._ended.set()
            self._ended = asyncio.Event()

    def refuse_too_large(self, what: str, least_bytes: int, hint: str) -> None:
        """Refuse what takes more than the memory that is free now; any thread may call it.

        Raises:
            StartError: it does not fit; both figures and the hint are in it.
        """
        free = self._free()
        if free is not None and least_bytes > free:
            raise StartError(
                f"{what} does not fit into memory: its files have {_text(least_bytes)}, free are {_text(free)}",
                hint=hint,
            )


def _text(size_bytes: int) -> str:
    return format_size(Size(size_bytes // _MIB * _MIB)) if size_bytes >= _MIB else f"{size_bytes} B"


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
        served: what answers now of each model that is loaded; see ``variant_checks.answering_version``.
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
