"""What may run on the event loop: batches of a model, decided at the start, and calls of hooks, decided call by call.

One slow call on the event loop delays every other request by its whole length; a thread costs each call about a tenth
of a millisecond. So a call goes to a thread where it is expected to take longer than ``INLINE_LIMIT_NS``.
"""

from __future__ import annotations

from typing import NamedTuple

from tailcut.scheduler.cost import FREE, BatchCost

INLINE_LIMIT_NS = 1_000_000
"""Longest work that may run on the event loop: behind 50 ms inline batches clients were seen to wait 101 ms."""

INLINE_BATCH_NS = 0.75 * INLINE_LIMIT_NS
"""Longest batch that `auto` runs on the event loop. It is measured as the fastest of several runs, so that other
processes do not count; the rest of the limit is for what makes runs slower under load."""

_OVERRULES = 2.0
"""A start overrules the build's figure by what its own is off by more than this factor. Within it starts of one
deployment agree, however busy the machine is at each of them."""

_CLEARLY_LONG_NS = 100.0 * INLINE_LIMIT_NS
"""No busy machine makes a batch for the event loop look so long in half of its runs."""

ALL_ROWS = 1 << 62
"""More rows than any request has."""

_BACK = 0.5
"""What ran in threads comes back to the loop where it takes at most this part of the limit."""

_QUIET = 0.125
"""Inline calls that take at most this part of the limit are not worth learning from, as long as they stay so."""

_RISE = 0.1
_DECAY = 0.02
"""Least weight of a call above and of one below what was expected. Bad news counts more: a hook of which one call in
twenty is slow would otherwise come back to the loop between two of those."""

_PROOFS = 3
"""Calls to learn from before any runs on the loop."""

_KNOWN = 50
"""Calls after which a hook is known, so that one hiccup weighs little, and its quick calls need no watching."""

_HELD_NS = 20 * INLINE_LIMIT_NS
"""A call that occupies the event loop for longer than this delays other requests noticeably."""

_AWAY = 1000.0
"""A hook that held the loop for longer than ``_HELD_NS`` stays in threads for this many times as long. Nothing
foresees that a quick hook turns slow once, but such calls then take at most a thousandth of the loop's time."""

_SPREAD_ROWS2 = 0.05
"""Least variance of the rows from which a slope can be told."""


class BatchTime(NamedTuple):
    """Time of the largest batch, which decides whether batches run on the event loop.

    Attributes:
        rows: of that batch.
        here_ns: fastest of several runs at this start.
        built_ns: median of the build's runs on such a machine; None where the evidence has none.
    """

    rows: int
    here_ns: float
    built_ns: float | None = None

    @property
    def expected_ns(self) -> float:
        """The build's figure, kept within a factor of two of this start's; this start's where there is no other."""
        if self.built_ns is None:
            return self.here_ns
        return min(max(self.built_ns, self.here_ns / _OVERRULES), self.here_ns * _OVERRULES)

    @property
    def runs_inline(self) -> bool:
        """Whether the batch is surely short enough for the event loop; near the limit it is not."""
        return self.expected_ns <= INLINE_BATCH_NS

    @property
    def is_long(self) -> bool:
        """Whether further runs at this start would not bring the batch to the event loop."""
        if self.built_ns is None:
            return self.here_ns > _CLEARLY_LONG_NS
        return min(self.built_ns, self.here_ns) > INLINE_BATCH_NS

    def __str__(self) -> str:
        built = "" if self.built_ns is None else f", {self.built_ns / 1e6:.2f} ms in the build"
        return (
            f"a batch of {self.rows} rows takes {self.here_ns / 1e6:.2f} ms here{built}; "
            f"inline up to {INLINE_BATCH_NS / 1e6:g} ms"
        )


class HookPlacement:
    """Where the calls of one hook run, by their rows.

    The caller runs a call of at most ``inline_rows`` rows on the event loop, any other in a thread. It tells
    ``observe`` of every call in a thread, and of those inline that took longer than ``look_ns``: a quick hook costs
    two comparisons. What a call takes is a line over its rows, fitted without a cut of outliers: those are
    what hurts here.

    Args:
        inline_rows, look_ns: to begin with; ``ALL_ROWS`` of both where there is no hook: it then never asks for a
            thread and never wants to learn.
        back_ns: infinite where every call is to run in a thread; it still learns what calls take.

    Attributes:
        inline_rows: 0 until enough calls were seen; a hook is slow until it has shown otherwise.
        look_ns: 0 while a hook is under watch, ``INLINE_LIMIT_NS`` where it is far below.
        cost: what a call is expected to take.
        back_ns: no call runs on the loop before this time.
    """

    def __init__(self, *, inline_rows: int = 0, look_ns: int = 0, back_ns: float = 0.0) -> None:
        self.inline_rows = inline_rows
        self.look_ns = look_ns
        self.cost = FREE
        self.back_ns = back_ns
        self._seen = -1  # the first call does not count: it imports, compiles and fills caches
        self._mean_rows = 0.0
        self._mean_ns = 0.0
        self._variance = 0.0
        self._covariance = 0.0
        self._slope_ns: float | None = None

    def observe(self, rows: int, duration_ns: float, now_ns: int = 0, *, on_loop: bool = False) -> None:
        """Learn from one call; it may change what the next ones do.

        Args:
            rows: at least 1.
            duration_ns: at least 0.
            now_ns: when the call ended.
            on_loop: whether it ran on the event loop.
        """
        if on_loop and duration_ns > _HELD_NS:
            self.back_ns = max(self.back_ns, now_ns + _AWAY * duration_ns)
        self._seen += 1
        if not self._seen:
            return
        step = _RISE if duration_ns > self.cost.batch_ns(rows) else _DECAY
        self._learn(rows, duration_ns, max(1.0 / self._seen, step))
        most = _rows_within(self.cost, INLINE_LIMIT_NS)
        proven = _rows_within(self.cost, _BACK * INLINE_LIMIT_NS) if self._seen >= _PROOFS else 0
        # Between the two nothing changes, or a hook near the limit would go to and fro.
        self.inline_rows = min(max(self.inline_rows, proven), most) if now_ns >= self.back_ns else 0
        quiet = self._seen >= _KNOWN and self.cost.batch_ns(rows) <= _QUIET * INLINE_LIMIT_NS
        self.look_ns = INLINE_LIMIT_NS if quiet else 0

    def _learn(self, rows: int, duration_ns: float, weight: float) -> None:
        """Source: weighted incremental mean and covariance, T. Finch (2009)."""
        off_rows = rows - self._mean_rows
        off_ns = duration_ns - self._mean_ns
        self._mean_rows += weight * off_rows
        self._mean_ns += weight * off_ns
        self._variance = (1.0 - weight) * (self._variance + weight * off_rows * off_rows)
        self._covariance = (1.0 - weight) * (self._covariance + weight * off_rows * off_ns)
        steepest_ns = self._mean_ns / self._mean_rows
        if self._variance > _SPREAD_ROWS2:
            self._slope_ns = self._covariance / self._variance
        # As long as all calls had the same rows, time is taken to be in proportion to them.
        slope_ns = steepest_ns if self._slope_ns is None else min(max(self._slope_ns, 0.0), steepest_ns)
        self.cost = BatchCost(max(self._mean_ns - slope_ns * self._mean_rows, 0.0), slope_ns)


def _rows_within(cost: BatchCost, limit_ns: float) -> int:
    """Return the most rows of a call that is expected to end within the limit; 0 where none does."""
    left_ns = limit_ns - cost.base_ns
    if left_ns < cost.row_ns:
        return 0
    return ALL_ROWS if left_ns >= cost.row_ns * ALL_ROWS else int(left_ns / cost.row_ns)
