"""Decides which requests are kept as traces, holds the last ones, and hands all to what exports them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from random import Random, SystemRandom
from time import perf_counter_ns, time_ns

from tailcut.errors import RequestTimeout, Shed
from tailcut.observe.outcomes import outcome_of
from tailcut.observe.sample import Sample, counter, gauge
from tailcut.observe.sinks import FinishedRequest, Sink, VariantSwitch
from tailcut.observe.traces.kept import FoundTrace, Kept, Ring, copied, found_trace, release
from tailcut.observe.traces.trace_context import SAMPLED, RequestTrace, Tracer, parent_of

NEVER_SLOW_NS = 2**63 - 1
REASONS = ("slow", "failed", "shed", "stale", "parent", "sample")
"""Why a trace is kept: beyond the SLO's loosest limit, ended with an error of the server, refused, answered from values
past their TTL, sampled by its caller, or one of the sample."""

KEPT = counter(
    "tailcut_traces_kept",
    "Traces kept, by reason; requests that another one of this server sent are part of its trace.",
    "reason",
    of_host=True,
)
HELD = gauge("tailcut_traces_held", "Traces held in memory.", of_host=True)

_UNSAMPLED = "-00"
_LENGTH = 55
_PER_S, _BURST = 100.0, 500.0
"""Most traces a second, and at once, of each reason but of those sampled: an overload sheds thousands a second."""


class TraceSink(Sink):
    """Keeps traces of requests. Owned by the event loop.

    Args:
        slow_ns: returns the latency of a model, by its name, above which a request is slow.
        size: traces held in memory.

    Attributes:
        tracer: gives requests their places in traces.
        ring: the last that are kept.
        exporters: take all that are kept, and never block.
        kept: how many, by reason.
        limited: how many were dropped because there were too many of their reason.
    """

    def __init__(
        self,
        slow_ns: Callable[[str], int],
        *,
        share: float,
        size: int,
        random: Random | None = None,
        clock_ns: Callable[[], int] = perf_counter_ns,
        wall_ns: Callable[[], int] = time_ns,
    ) -> None:
        random = random or SystemRandom()
        self.tracer = Tracer(share, Random(random.getrandbits(128)))
        self.exporters: list[Callable[[Kept], None]] = []
        self.kept: Counter[str] = Counter()
        self.limited: Counter[str] = Counter()
        self.ring = Ring(size, random.getrandbits(64))
        self._slow_ns = slow_ns
        self._clock_ns = clock_ns
        self._wall_ns = wall_ns
        self._limits = {reason: _RateLimit() for reason in REASONS[:4]}
        self._versions: dict[tuple[str, str], str] = {}

    def on_requests(self, model: str, requests: Sequence[FinishedRequest]) -> None:
        """Keep those that are worth it."""
        slow_ns = self._slow_ns(model)
        draw, share = self.tracer.draw, self.tracer.share
        for request in requests:
            timings, origin, drawn = request.timings, request.origin, None
            if request.code != "ok":
                reason = _failure(request.code)
            elif timings.last_ns - timings.start_ns > slow_ns:
                reason = "slow"
            else:
                reason = "stale" if request.cache == "stale" else ""
            if origin is not None and (trace := origin.trace) is not None:
                self._decide(model, request, trace, reason)
                continue
            if not reason:
                headers = request.headers
                parent = headers.get("traceparent") if headers is not None else None
                if parent is not None:
                    if len(parent) == _LENGTH and parent.endswith(_UNSAMPLED):
                        continue
                    found = parent_of(headers)
                    reason = "parent" if found is not None and found.flags & SAMPLED else ""
                    if not reason and found is not None:
                        continue
                if not reason and (drawn := draw()) < share:
                    reason = "sample"  # which the trace id says, too
            if reason:
                self._keep(model, request, reason, drawn)

    def on_switch(self, model: str, switch: VariantSwitch) -> None:
        """Note the version of a variant."""
        self._versions[model, switch.variant] = switch.version

    def find(self, key: str) -> FoundTrace | None:
        """Return the last kept request with a trace id (32 hexadecimal digits) or a request id; None where none is."""
        kept: Kept | None = None
        if len(key) == 32:
            with suppress(ValueError):
                kept = self.ring.find(int(key, 16))
        kept = kept or self.ring.find(key)
        return found_trace(kept, self.ring) if kept is not None else None

    def recent(self, which: str, minutes: float, most: int = 20) -> list[FoundTrace]:
        """Return kept requests of the last minutes.

        Args:
            which: "slowest", which begins with the slowest, or "failed", which begins with the latest.
            most: how many.
        """
        since_ns = self._clock_ns() - int(minutes * 60e9)
        wants_failed = which == "failed"
        held = [kept for kept in self.ring if kept.start_ns >= since_ns and kept.failed == wants_failed]
        held.sort(key=lambda kept: -kept.start_ns if wants_failed else -kept.total_ns)
        return [found_trace(kept, self.ring) for kept in held[:most]]

    def samples(self) -> Iterator[Sample]:
        """Yield what /metrics shows of traces."""
        for reason in REASONS:
            yield KEPT(self.kept[reason], reason)
        yield HELD(len(self.ring))

    def _decide(self, model: str, request: FinishedRequest, trace: RequestTrace, reason: str) -> None:
        """Decide on a request whose place in a trace is known: others may be parts of it, or it of another one."""
        caller = trace.caller
        if caller is not None and not caller.is_closed:
            caller.asked_for = caller.asked_for or reason or trace.asked_for
            return  # it comes with its caller
        if trace.is_closed:
            return  # it came with its caller
        trace.is_closed = True
        reason = reason or trace.asked_for
        if not reason and trace.flags & SAMPLED and caller is None:
            reason = "parent" if trace.parent_id else "sample"
        if reason:
            self._keep(model, request, reason, None)
        release(trace)

    def _keep(self, model: str, request: FinishedRequest, reason: str, drawn: float | None) -> None:
        limit = self._limits.get(reason)
        if limit is not None and not limit.allows(self._clock_ns()):
            self.limited[reason] += 1
            return
        origin = request.origin
        trace = origin.trace if origin is not None else None
        if trace is None:
            trace = self.tracer.begin(request.headers, drawn)
            trace.is_closed = True
            if origin is not None:
                origin.trace = trace  # for a source that is still asked, and asks for it only now
        # One difference for a whole trace: a step of the clock moves it, and does not tear it apart.
        to_wall_ns = self._wall_ns() - self._clock_ns()
        kept = copied(request, model, reason, trace, to_wall_ns, self._versions)
        self.kept[reason] += 1
        self.ring.add(kept)
        for exporter in self.exporters:
            exporter(kept)


class _RateLimit:
    """A token bucket."""

    def __init__(self) -> None:
        self._left = _BURST
        self._at_ns = 0

    def allows(self, now_ns: int) -> bool:
        self._left = min(self._left + (now_ns - self._at_ns) * 1e-9 * _PER_S, _BURST)
        self._at_ns = now_ns
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


def _failure(code: str) -> str:
    """Return the reason of a code that is not "ok"; empty where the client is to blame."""
    if code == Shed.code:
        return "shed"
    return "failed" if outcome_of(code) == "5xx" or code == RequestTimeout.code else ""
