"""Counts everything that /metrics shows. One call per request, no lock; the counting itself is done for many at once.

Owned by the event loop: written and read on it.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from tailcut.common.histogram import LATENCY_BOUNDS_NS, ROW_BOUNDS, Histogram
from tailcut.common.timings import STAGE_NAMES, Timings
from tailcut.observe.outcomes import CODES, OUTCOMES, outcome_of

_AT_ONCE = 64
"""Requests that are counted together: in NumPy that takes a fifth of the time of one after the other, and holds the
event loop up for less than a tenth of a millisecond."""

_BOUNDS = np.array(LATENCY_BOUNDS_NS)
_STAGES, _PLACES = len(STAGE_NAMES), len(LATENCY_BOUNDS_NS) + 1
_FIRST_PLACES = np.arange(_STAGES) * _PLACES

_Key = tuple[str, str, str, str]


class Recorder:
    """Histograms per stage and counters per outcome.

    Attributes:
        by_rows: batches by their rows: [how many, nanoseconds].
        last_ns: when the last request ended, on the clock of its timings; 0 before the first.
    """

    def __init__(self) -> None:
        self.batch_rows = Histogram(ROW_BOUNDS)
        self.batch_ns = Histogram()
        self.by_rows: dict[int, list[int]] = {}
        self.last_ns = 0
        self._ended: dict[tuple[str, str], Histogram] = {}
        self._requests: dict[_Key, int] = {}
        self._stage_counts = np.zeros(_STAGES * _PLACES, np.int64)
        self._stage_totals = np.zeros(_STAGES, np.int64)
        self._pending: list[tuple[list[int], _Key]] = []

    def expect(self, route: str) -> None:
        """Show a route from now on, also before its first request: a rate over a series that is not there is none."""
        for outcome in OUTCOMES:
            self._ended.setdefault((route, outcome), Histogram())

    def serve(self, variant: str) -> None:
        """Show a variant from now on, with every way in which a request of a route can end; see ``expect``."""
        for route in {route for route, _ in self._ended}:
            for code in ("ok", *CODES):
                self._requests.setdefault((route, variant, code, "off"), 0)

    def request(self, timings: Timings, route: str, variant: str, code: str, cache: str) -> None:
        """Count one finished request; its timings must not change any more.

        Args:
            code: "ok", or the error's.
            cache: how it was answered; of an error it is not kept.
        """
        pending = self._pending
        pending.append((timings.ns, (route, variant, code, cache if code == "ok" else "off")))
        self.last_ns = timings.last_ns
        if len(pending) >= _AT_ONCE:
            self._count()

    @property
    def stages(self) -> list[Histogram]:
        """One histogram of nanoseconds per stage, in the order of ``Stage``."""
        self._count()
        counts = self._stage_counts.reshape(_STAGES, _PLACES).tolist()
        return [_histogram(each, total) for each, total in zip(counts, self._stage_totals.tolist(), strict=True)]

    @property
    def ended(self) -> dict[tuple[str, str], Histogram]:
        """Histograms of requests' nanoseconds by route and outcome: "ok", "4xx" or "5xx".

        Failures stand apart: a server that refuses at once must not look the faster for it.
        """
        self._count()
        return self._ended

    @property
    def answered(self) -> list[Histogram]:
        """Histograms of answered requests' nanoseconds."""
        return [each for (_, outcome), each in self.ended.items() if outcome == "ok"]

    @property
    def failed(self) -> list[Histogram]:
        """As ``answered``, of those that failed."""
        return [each for (_, outcome), each in self.ended.items() if outcome != "ok"]

    @property
    def requests(self) -> dict[_Key, int]:
        """Counts by (route, variant, code, cache); code is "ok" or an error's."""
        self._count()
        return self._requests

    def _count(self) -> None:
        """Count what has ended since the last time."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        stages_ns = np.array([ns for ns, _ in pending], np.int64)
        places = np.searchsorted(_BOUNDS, stages_ns) + _FIRST_PLACES
        # A stage that a request did not meet is not counted as one that took no time.
        self._stage_counts += np.bincount(places[stages_ns != 0], minlength=self._stage_counts.size)
        self._stage_totals += stages_ns.sum(0)
        totals_ns = stages_ns.sum(1)
        keys = [key for _, key in pending]
        for key, count in Counter(keys).items():
            self._requests[key] = self._requests.get(key, 0) + count
            found = totals_ns if count == len(keys) else totals_ns[[each == key for each in keys]]
            ended = key[0], outcome_of(key[2])
            if ended not in self._ended:  # of a route that few deployments use
                self.expect(key[0])
                self.serve(key[1])
            self._ended[ended].add_all(np.searchsorted(_BOUNDS, found).tolist(), int(found.sum()))

    def batch(self, rows: int, duration_ns: int) -> None:
        """Count one batch that ran."""
        self.batch_rows.add(rows)
        self.batch_ns.add(duration_ns)
        counted = self.by_rows.get(rows)
        if counted is None:
            counted = self.by_rows[rows] = [0, 0]
        counted[0] += 1
        counted[1] += duration_ns


def _histogram(counts: list[int], total: int) -> Histogram:
    made = Histogram()
    made.counts, made.total = counts, total
    return made
