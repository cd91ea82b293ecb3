"""Into which runs of the model a batch is divided, where several small runs take less than a large one.

A batch has two costs. What serving does for it (handing it over, planning the next, caches that have gone cold
meanwhile) is the same for any size, so large batches are right. The model itself may be fastest by the row in small
runs: what one layer hands to the next then stays in the processor's cache. On one core of a Zen 5, texts of 128 tokens
through MiniLM in INT8 take 6.1 ms a row two at a time and 7.8 thirty-two at a time. So a batch may be large and yet run
as many small ones, one after the other (micro-batches, as they are called where pipelines do so: Y. Huang et al.,
"GPipe", NeurIPS 2019).

Which size is fastest is learned by comparing runs of the same batch, so that a machine whose speed wanders, or somebody
else on its cores, slows both sides alike; by medians, because noise of that kind has one direction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import exp, log
from statistics import median

from tailcut.scheduler.latency_filter import nearest

_SHORT_NS = 2_000_000.0
"""Batches up to this long are not divided: what calling the runtime takes is no longer small beside it."""

_KEPT = 15
"""The last batches in which a size ran that count."""

_OPEN = 0.1
"""A size is tried where the one beside it, towards the best, is dearer by the row than the best by no more than this: a
model that gains by batching shows it at the first step, and pays for no other."""

_ALIKE = 0.01
"""Of sizes that differ by no more than that the largest runs."""

_CLEAR = 0.03
"""A size has ceased to be the best where another is better by more than that: what noise alone does to medians is less.
"""

_FEW, _AGAIN, _MOST = 5, 2, 10
"""A size is tried in every batch until it ran so often, then after so many batches for each time that it did, ten times
at most, so that a wrong choice does not stay."""

_DEAR, _MOST_DEAR = 16, 6
"""One that is clearly dearer is after so many, and twice as many each time, six times over: for who is in that batch
it takes longer. Not without end, so that neighbours who come or go are noticed within minutes."""


class Division:
    """Learns which runs are fastest by the row for batches of one kind, and divides batches into them.

    Sizes are counted by their logarithm: 0, 1, 2, ... for 1, 2, 4, ... rows. What is kept of a size is the logarithm of
    its time by the row over what the best one takes, in the same batch or, where both do not fit into one, the last.
    """

    __slots__ = ("_again", "_batches", "_judge", "_level", "_seen", "_top", "_turns", "_typical")

    def __init__(self) -> None:
        self._seen: dict[int, deque[float]] = {}
        self._typical: dict[int, float] = {}
        self._again: dict[int, int] = {}
        self._level = 0.0
        self._top = self._judge = -1
        self._batches = 0
        self._turns = 0

    def is_short(self, rows: int) -> bool:
        """Whether a batch is known to be too short to be divided."""
        known = self._up_to(nearest(rows)).values()
        return bool(known) and rows * exp(self._level + min(known)) < _SHORT_NS

    def runs(self, rows: int) -> list[int]:
        """Return the sizes of the runs that a batch is divided into, in order; their sum is ``rows``.

        All alike but for one row; where a size is tried, runs of that size are the last.

        Args:
            rows: of the batch, at least 1.
        """
        if rows < 2 or not self._seen or self.is_short(rows):
            return [rows]
        self._batches += 1
        whole = nearest(rows)
        self._turns ^= 1 << whole
        best = self._best(whole)
        tried = self._tried(whole, best)
        if tried == whole:
            return [rows]
        if tried == best:
            return _alike(rows, 1 << best)
        size = 1 << tried
        count = max(rows // size // 2, 1)
        rest = rows - count * size
        return [*(_alike(rest, min(1 << best, rest)) if rest else ()), *[size] * count]

    def learn(self, runs: Sequence[int], took_ns: Sequence[float]) -> None:
        """Take in what the runs of a batch took, in nanoseconds."""
        found: dict[int, list[float]] = {}
        exact = {rows for rows in runs if not rows & (rows - 1)}
        for rows, took in zip(runs, took_ns, strict=True):
            # A run of 15 rows counts as one of 16 only where there is none of 16.
            if rows in exact or 1 << nearest(rows) not in exact:
                found.setdefault(nearest(rows), []).append(log(max(took, 1.0) / rows))
        each = {size: median(logs) for size, logs in found.items()}
        best, whole = self._best(max(each)), nearest(sum(runs))
        tried = whole not in each or self._best(whole) not in each
        if not self._seen:
            self._level = each[best]
        elif best in each and best in self._typical and (len(each) > 1 or best == self._top):
            # How fast the machine is now: by the best size there is in the batch; by one that is alone, only if none is
            # better, or a wrong opinion of a size would confirm itself. What it is measured by, it says nothing of.
            self._level = each.pop(best) - self._typical[best]
        least = min(self._up_to(whole).values(), default=0.0)
        for size, value in each.items():
            seen = self._seen.setdefault(size, deque(maxlen=_KEPT))
            if tried and seen and value - self._level - least <= _OPEN / 2 < _OPEN < self._typical[size] - least:
                # Dear until now: it is tried again at once. Once may be a hiccup of the other's; where it happens twice
                # in a row, what was seen before counts once.
                self._again.pop(size, None)
                if len(seen) > 2 and seen[-1] - least <= _OPEN / 2:
                    self._seen[size] = seen = deque([self._typical[size], seen[-1]], _KEPT)
            seen.append(value - self._level)
            self._typical[size] = median(seen)
        self._measure_anew()

    def _measure_anew(self) -> None:
        """Where another size is clearly the best now, let what was measured by the one before count no more than once.

        A size that is clearly dearer stays so, because to try it costs somebody time; unless what was the best is it.
        """
        typical = self._typical
        self._top = top = self._best(max(self._seen))
        if self._judge not in typical:
            self._judge = top
        before, limit = typical[self._judge], typical[top] + _OPEN
        if before > typical[top] + _CLEAR:
            for size, value in typical.items():
                if before > limit or value <= limit:
                    self._seen[size] = deque([value], _KEPT)
                    self._again.pop(size, None)
            self._judge = top

    def _best(self, whole: int) -> int:
        """Return the size that is fastest by the row, of those up to ``whole`` that have run; else ``whole``."""
        known = self._up_to(whole)
        least = min(known.values(), default=0.0)
        return max([size for size, typical in known.items() if typical <= least + _ALIKE], default=whole)

    def _up_to(self, whole: int) -> dict[int, float]:
        """Return what is known of the sizes up to one."""
        return {size: typical for size, typical in self._typical.items() if size <= whole}

    def _tried(self, whole: int, best: int) -> int:
        """Return the size to try in a batch of size ``whole``; ``best`` for none."""
        typical = self._typical
        if best not in typical:
            return whole
        limit = typical[best] + _OPEN
        # Beyond a size that is clearly dearer, on either side, nothing better is to be expected.
        last, first = best, best
        while last > 0 and typical.get(last, limit + 1.0) <= limit:
            last -= 1
        while first < whole and typical.get(first, limit) <= limit:
            first += 1
        if first == whole and whole not in typical:
            return whole  # before all others: what gains by batching shows it here
        if last not in typical:
            return last
        # Side by side with the best: in one batch, or in turns.
        due = [size for size in range(last, first + 1) if size != best and self._batches >= self._again.get(size, 0)]
        if not due or (best == whole and self._turns >> whole & 1):
            return best
        found = min(due, key=lambda size: len(self._seen.get(size, ())))
        count = len(self._seen.get(found, ())) + 1
        dear = typical.get(found, limit) > limit
        after = _DEAR << min(max(count - 2, 0), _MOST_DEAR) if dear else _pause(count)
        self._again[found] = self._batches + after
        return found


def _pause(count: int) -> int:
    """Return after how many batches a size that may be the best is tried again, once it was tried so often."""
    return _AGAIN * min(count, _MOST) if count > _FEW else 1


def _alike(rows: int, size: int) -> list[int]:
    """Divide rows into runs of about a size that differ by one row at most, larger ones first."""
    count = max(round(rows / size), 1)
    least, more = divmod(rows, count)
    return [least + 1] * more + [least] * (count - more)
