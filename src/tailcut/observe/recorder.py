"""Counts everything that /metrics shows. One call per request, no lock, no label look-up beyond one dict.

Owned by the event loop: written and read on it.
"""

from __future__ import annotations

from bisect import bisect_left

from tailcut.core.histogram import LATENCY_BOUNDS_NS, ROW_BOUNDS, Histogram
from tailcut.core.timings import STAGE_NAMES, Timings

_BOUNDS = LATENCY_BOUNDS_NS


class Recorder:
    """Histograms per stage and counters per outcome.

    Attributes:
        stages: one histogram of nanoseconds per stage, in the order of ``Stage``.
        answered, failed: histograms of whole requests' nanoseconds by route.
        requests: counts by (route, variant, outcome, cache); outcome is "ok" or an error's code.
        by_rows: batches by their rows: [how many, nanoseconds].
        last_ns: when the last request ended, on the clock of its timings; 0 before the first.
    """

    def __init__(self) -> None:
        self.stages = [Histogram() for _ in STAGE_NAMES]
        self.answered: dict[str, Histogram] = {}
        self.failed: dict[str, Histogram] = {}
        self.requests: dict[tuple[str, str, str, str], int] = {}
        self.batch_rows = Histogram(ROW_BOUNDS)
        self.batch_ns = Histogram()
        self.loop_lag = Histogram()
        self.by_rows: dict[int, list[int]] = {}
        self.last_ns = 0
        self._counts = [histogram.counts for histogram in self.stages]

    def request(self, timings: Timings, route: str, variant: str, outcome: str, cache: str) -> None:
        """Count one finished request."""
        key = (route, variant, outcome, cache)
        requests = self.requests
        requests[key] = requests.get(key, 0) + 1
        # Apart, because a server that refuses at once would otherwise look the faster the more it refuses.
        histograms = self.answered if outcome == "ok" else self.failed
        total = histograms.get(route)
        if total is None:
            total = histograms[route] = Histogram()
        self.last_ns = timings.last_ns
        total.add(timings.last_ns - timings.start_ns)
        # Spelled out instead of Histogram.add per stage: this loop runs for every stage of every request.
        bounds = _BOUNDS
        counts = self._counts
        for index, ns in enumerate(timings.ns):
            if ns:
                counts[index][bisect_left(bounds, ns)] += 1
                self.stages[index].total += ns

    def batch(self, rows: int, duration_ns: int) -> None:
        """Count one batch that ran."""
        self.batch_rows.add(rows)
        self.batch_ns.add(duration_ns)
        counted = self.by_rows.get(rows)
        if counted is None:
            counted = self.by_rows[rows] = [0, 0]
        counted[0] += 1
        counted[1] += duration_ns

    def lag(self, lag_ns: int) -> None:
        """Count how much later than asked the event loop woke up."""
        self.loop_lag.add(max(lag_ns, 0))
