"""Exports kept requests from a thread of its own: one bounded queue, and what it cannot take is dropped and counted."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Literal, NamedTuple, Protocol

from tailcut.observe.traces.kept import Kept
from tailcut.observe.traces.spans import BatchIds, Span, batch_span, spans_of

log = logging.getLogger("tailcut.server")

DROPS = ("queue", "collector", "refused", "stop")
"""Why a trace was dropped: the queue was full, the collector failed for long or refused it, or the server stopped."""

_INTERVAL_S = 0.5
"""Between two looks at the queue: waking a thread for each trace would cost the event loop more than the trace."""
_AT_ONCE = 128
_MOST_BATCHES = 4096
"""Batches whose spans were exported that are remembered, so that each is exported once."""
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.5, 60.0
_GIVE_UP_S = 300.0
"""After so long one batch of traces is dropped: it may be what the collector fails of."""


class Sent(NamedTuple):
    """What became of one attempt to send.

    Attributes:
        outcome: "sent", "retry" where it may work later, or "refused".
        why: the error; of what was sent, what was not taken of it.
        after_s: seconds after which the collector asks to be tried again; 0 where it does not say.
    """

    outcome: Literal["sent", "retry", "refused"]
    why: str = ""
    after_s: float = 0.0


class Destination(Protocol):
    """Takes spans. Used by one thread at a time; it does not raise for what goes wrong outside of this process.

    Attributes:
        where: its name, in the log.
    """

    where: str

    def encoded(self, traces: Sequence[Sequence[Span]]) -> Any:
        """Return what ``send`` takes for some traces."""
        ...

    def send(self, body: Any, timeout_s: float) -> Sent:
        """Send it, once, with waits of at most ``timeout_s``."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


class Exporter:
    """Hands kept requests to a destination. ``offer`` is the event loop's; all else happens in its thread.

    Args:
        most: traces that wait; further ones are dropped.
        in_batch: returns the kept requests of a batch; called from the thread.
        clock_s: monotonic.
        wait: waits for so many seconds, or until the exporter stops; says whether it does. None for the real thing.

    Attributes:
        exported: traces that were sent.
        dropped: traces that were not, by ``DROPS``.
        errors: attempts that failed.
    """

    def __init__(
        self,
        destination: Destination,
        ids: BatchIds,
        in_batch: Callable[[int], Sequence[Kept]],
        *,
        most: int,
        clock_s: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
        random: Random | None = None,
    ) -> None:
        self.exported = 0
        self.errors = 0
        # With all keys from the start: another thread iterates it while this one counts.
        self.dropped: Counter[str] = Counter(dict.fromkeys(DROPS, 0))
        self._destination = destination
        self._ids = ids
        self._in_batch = in_batch
        self._most = most
        self._clock_s = clock_s
        self._stopping = threading.Event()
        self._wait = wait or self._stopping.wait
        self._random = random or Random()
        self._queue: deque[Kept] = deque()
        self._told: OrderedDict[int, None] = OrderedDict()
        self._is_failing = False
        self._dropped_before = 0
        self._end_s = float("inf")
        self._thread: threading.Thread | None = None

    def offer(self, kept: Kept) -> None:
        """Take a kept request, or drop and count it."""
        if len(self._queue) >= self._most:
            self.dropped["queue"] += 1
        else:
            self._queue.append(kept)

    def start(self) -> None:
        """Begin to export."""
        self._thread = threading.Thread(target=self._run, name="tailcut-traces", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Export what waits, for at most ``timeout_s``, which blocks; what is left is dropped and counted."""
        self._end_s = self._clock_s() + timeout_s
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout_s + 0.1)
        else:
            self._destination.close()
        self.dropped["stop"] += len(self._queue)
        self._queue.clear()

    @property
    def waiting(self) -> int:
        """Traces that wait."""
        return len(self._queue)

    def export_waiting(self) -> None:
        """Export what waits; blocks while the destination fails, until it is back or the exporter stops."""
        while self._queue and self._clock_s() < self._end_s:
            taken: list[Kept] = []
            while self._queue and len(taken) < _AT_ONCE:
                taken.append(self._queue.popleft())
            try:
                self._deliver(self._destination.encoded([self._spans(kept) for kept in taken]), len(taken))
            except Exception:  # what it was about must not end the thread
                self.dropped["refused"] += len(taken)
                self.errors += 1
                log.exception("traces could not be exported")

    def _run(self) -> None:
        while not self._wait(_INTERVAL_S):
            self.export_waiting()
        self.export_waiting()
        self._destination.close()

    def _spans(self, kept: Kept) -> list[Span]:
        found = spans_of(kept, self._ids, self._in_batch)
        for number, requests, *_ in filter(None, kept.batches):
            if requests > 1 and number not in self._told:
                self._told[number] = None
                if len(self._told) > _MOST_BATCHES:
                    self._told.popitem(last=False)
                members = self._in_batch(number) or (kept,)
                if (of_batch := batch_span(number, members, self._ids)) is not None:
                    found.append(of_batch)
        return found

    def _deliver(self, body: Any, traces: int) -> None:
        """Send a body, again and again while that may help."""
        began_s, delay_s = self._clock_s(), _FIRST_DELAY_S
        while True:
            left_s = self._end_s - self._clock_s()
            sent = self._destination.send(body, left_s) if left_s > 0 else Sent("retry", "the server stops")
            if sent.outcome == "sent":
                self._sent(traces, sent.why)
                return
            self.errors += 1
            self._failed(sent.why)
            if sent.outcome == "refused":
                self.dropped["refused"] += traces
                return
            if self._stopping.is_set():
                self.dropped["stop"] += traces
                return
            if self._clock_s() - began_s >= _GIVE_UP_S:
                self.dropped["collector"] += traces
                return
            # A random part, so that servers that were refused together do not come back together.
            self._wait(max(sent.after_s, delay_s * (0.5 + 0.5 * self._random.random())))
            delay_s = min(delay_s * 2, _LONGEST_DELAY_S)

    def _sent(self, traces: int, why: str) -> None:
        self.exported += traces
        if why:
            self.errors += 1
            self._failed(why)
        elif self._is_failing:
            self._is_failing = False
            dropped = self.dropped.total() - self._dropped_before
            log.warning("traces are exported to %s again; %d were dropped meanwhile", self._destination.where, dropped)

    def _failed(self, why: str) -> None:
        if not self._is_failing:
            self._is_failing, self._dropped_before = True, self.dropped.total()
            log.warning(
                "traces cannot be exported to %s: %s; up to %d wait, further ones are dropped and counted",
                self._destination.where,
                why,
                self._most,
            )
