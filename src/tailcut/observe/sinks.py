"""Sinks: receivers of finished requests, batches and switches of variants. The metrics are the first of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from tailcut.common.tensors import Arrays, Keys
from tailcut.common.timings import Timings
from tailcut.observe.traces.trace_context import RequestHeaders, TraceOrigin

log = logging.getLogger("tailcut.server")


class FinishedRequest(Protocol):
    """A request that has ended; nothing of it changes any more.

    Attributes:
        route: "infer", "predict" or "features", for example.
        code: "ok", or the error's.
        variant: name of the one that answered, or was to.
        cache: "off", "hit", "miss" or "stale".
        request_id, headers, origin, groups, batches: see ``RequestContext``.
    """

    route: str
    code: str
    variant: str
    cache: str
    tenant: str
    timings: Timings
    request_id: str
    headers: RequestHeaders | None
    origin: TraceOrigin | None
    groups: Iterable[Sequence[Any]]
    batches: Sequence[tuple[int, ...]]


class FinishedBatch(NamedTuple):
    """A batch that ran.

    Attributes:
        variant, version: that ran it; a retiring version's batches may end after its successor's first ones.
        duration_ns: of the model.
        inputs: of each request in the batch, by the names of the model's inputs; the first dimension is its rows.
        outputs: as ``inputs``; empty where the batch failed.
        entities: per request a hash of each row's entity, where somebody asks for them (``drift``); None, and empty:
            not known.
    """

    variant: str
    version: str
    rows: int
    duration_ns: int
    inputs: Sequence[Arrays]
    outputs: Sequence[Arrays]
    entities: Sequence[Keys | None] = ()


class VariantSwitch(NamedTuple):
    """A variant that is served from now on, and the one before it; of the first one ``before`` is empty."""

    variant: str
    version: str
    before: tuple[str, str] = ("", "")


class Sink:
    """Receives finished requests, batches and switches, on the event loop; here it does nothing with them.

    It must not block: a sink with more work than counting puts it into a bounded queue, and counts what it drops.
    """

    def on_requests(self, model: str, requests: Sequence[FinishedRequest]) -> None:
        """Receive requests after their replies: some 64 together, at the latest 0.1 s after they ended."""

    def on_batch(self, model: str, batch: FinishedBatch) -> None:
        """Receive a batch that ran; its arrays must not be changed."""

    def on_switch(self, model: str, switch: VariantSwitch) -> None:
        """Receive a switch of variants, the first variant included."""


class Sinks:
    """The sinks of a host, in addition to each model's metrics.

    Attributes:
        errors: how often a sink raised.
        all: the sinks.
        of_batches: those of them that receive batches, too.
    """

    def __init__(self) -> None:
        self.errors = 0
        self.all: list[Sink] = []
        self.of_batches: list[Sink] = []
        self._logged: set[int] = set()

    def add(self, sink: Sink, *, batches: bool = True) -> None:
        """Hand everything that ends from now on to a sink, too; batches only where it wants them."""
        self.all.append(sink)
        if batches:
            self.of_batches.append(sink)

    def remove(self, sink: Sink) -> None:
        """Hand it nothing any more."""
        self.all.remove(sink)
        if sink in self.of_batches:
            self.of_batches.remove(sink)

    def requests(self, model: str, requests: Sequence[FinishedRequest]) -> None:
        """See ``Sink.on_requests``."""
        self._each(self.all, lambda sink: sink.on_requests(model, requests))

    def batch(self, model: str, batch: FinishedBatch) -> None:
        """See ``Sink.on_batch``."""
        self._each(self.of_batches, lambda sink: sink.on_batch(model, batch))

    def switch(self, model: str, switch: VariantSwitch) -> None:
        """See ``Sink.on_switch``."""
        self._each(self.all, lambda sink: sink.on_switch(model, switch))

    def _each(self, sinks: Sequence[Sink], hand_over: Callable[[Sink], None]) -> None:
        for sink in sinks:
            try:
                hand_over(sink)
            except (Exception, asyncio.CancelledError) as error:  # one that reads a cancelled future cancels no request
                self.errors += 1
                if id(sink) not in self._logged:
                    self._logged.add(id(sink))
                    what = type(sink).__name__
                    log.error("the sink %s failed; its later errors are only counted", what, exc_info=error)
