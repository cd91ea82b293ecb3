"""The metrics of one model, which count everything that /metrics shows of it, and what hands requests to the sinks.

Owned by the event loop: written and read on it, without a lock.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from tailcut.common.histogram import LATENCY_BOUNDS_NS, ROW_BOUNDS, Histogram
from tailcut.common.slo import LatencyObjective
from tailcut.common.tensors import Arrays, Keys
from tailcut.common.timings import STAGE_NAMES
from tailcut.observe.latency_figures import LatencyFigures
from tailcut.observe.outcomes import CODES, OUTCOMES, outcome_of
from tailcut.observe.sample import counter
from tailcut.observe.sinks import FinishedBatch, FinishedRequest, Sinks, VariantSwitch

_BOUNDS = np.array(LATENCY_BOUNDS_NS)
_STAGES, _PLACES = len(STAGE_NAMES), len(LATENCY_BOUNDS_NS) + 1
_FIRST_PLACES = np.arange(_STAGES) * _PLACES

_Key = tuple[str, str, str, str]


class Recorder:
    """Histograms per stage and counters per outcome.

    Args:
        window_s: of recent percentiles, see ``LatencyFigures``.

    Attributes:
        by_rows: batches by their rows: [how many, nanoseconds].
        flush: called before counts are read: has requests handed over that have ended.
        latency: recent percentiles, and the counts of the latency objectives.
    """

    def __init__(self, window_s: float = 60.0) -> None:
        self.batch_ns = Histogram()
        self.by_rows: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
        self.flush: Callable[[], None] = lambda: None
        self.latency = LatencyFigures(window_s)
        self._bounds = LATENCY_BOUNDS_NS
        self._last_ns = 0
        self._ended: dict[tuple[str, str], Histogram] = {}
        self._totals = {outcome: (0, 0) for outcome in OUTCOMES}
        self._requests: dict[_Key, int] = {}
        self._stage_counts = np.zeros(_STAGES * _PLACES, np.int64)
        self._stage_totals = np.zeros(_STAGES, np.int64)

    def set_objectives(self, latency: Sequence[LatencyObjective], errors: float) -> None:
        """Count requests against objectives from now on; latency limits become bounds of the histograms.

        Where that changes the bounds, the histograms of whole requests begin again at 0, as after a restart.
        """
        self.flush()
        self.latency.set_objectives(latency, errors)
        bounds = tuple(sorted({*LATENCY_BOUNDS_NS, *(each.limit_ns for each in latency)}))
        if bounds != self._bounds:
            self._bounds = bounds
            self._ended = {key: Histogram(bounds) for key in self._ended}

    def expect(self, route: str) -> None:
        """Show a route from now on, also before its first request: a rate over a series that is not there is none."""
        for outcome in OUTCOMES:
            self._ended.setdefault((route, outcome), Histogram(self._bounds))

    def serve(self, variant: str) -> None:
        """Show a variant from now on, with every way in which a request of a route can end; see ``expect``."""
        for route in {route for route, _ in self._ended}:
            for code in ("ok", *CODES):
                self._requests.setdefault((route, variant, code, "off"), 0)

    def on_requests(self, model: str, requests: Sequence[FinishedRequest]) -> None:
        """Count requests that have ended; of an error it is not kept what the cache did."""
        self._last_ns = max([self._last_ns, *[each.timings.last_ns for each in requests]])
        stages_ns = np.array([each.timings.ns for each in requests], np.int64)
        places = np.searchsorted(_BOUNDS, stages_ns) + _FIRST_PLACES
        # A stage that a request did not meet is not counted as one that took no time.
        self._stage_counts += np.bincount(places[stages_ns != 0], minlength=self._stage_counts.size)
        self._stage_totals += stages_ns.sum(0)
        totals_ns = stages_ns.sum(1)
        self.latency.add(stages_ns, [each.variant for each in requests], [each.code for each in requests])
        keys = [(each.route, each.variant, each.code, each.cache if each.code == "ok" else "off") for each in requests]
        for key, count in Counter(keys).items():
            self._requests[key] = self._requests.get(key, 0) + count
            found = totals_ns if count == len(keys) else totals_ns[[each == key for each in keys]]
            ended = key[0], outcome_of(key[2])
            if ended not in self._ended:  # of a route that few deployments use
                self.expect(key[0])
                self.serve(key[1])
            total_ns = int(found.sum())
            self._ended[ended].add_all(np.searchsorted(self._bounds, found).tolist(), total_ns)
            earlier = self._totals[ended[1]]
            self._totals[ended[1]] = earlier[0] + count, earlier[1] + total_ns

    def count_batch(self, rows: int, duration_ns: int) -> None:
        """Count one batch that ran."""
        self.batch_ns.add(duration_ns)
        counted = self.by_rows[rows]
        counted[0] += 1
        counted[1] += duration_ns

    @property
    def last_ns(self) -> int:
        """When the last request ended, on the clock of its timings; 0 before the first."""
        self.flush()
        return self._last_ns

    @property
    def stages(self) -> list[Histogram]:
        """One histogram of nanoseconds per stage, in the order of ``Stage``."""
        self.flush()
        counts = self._stage_counts.reshape(_STAGES, _PLACES).tolist()
        return [Histogram(LATENCY_BOUNDS_NS, *each) for each in zip(counts, self._stage_totals.tolist(), strict=True)]

    @property
    def batch_rows(self) -> Histogram:
        """Histogram of batches by their rows."""
        made = Histogram(ROW_BOUNDS)
        for rows, (count, _) in self.by_rows.items():
            made.add(rows, count)
        return made

    @property
    def ended(self) -> dict[tuple[str, str], Histogram]:
        """Histograms of requests' nanoseconds by route and outcome: "ok", "4xx" or "5xx".

        Failures stand apart: a server that refuses at once must not look the faster for it.
        """
        self.flush()
        return self._ended

    @property
    def answered(self) -> list[Histogram]:
        """Histograms of answered requests' nanoseconds."""
        return [each for (_, outcome), each in self.ended.items() if outcome == "ok"]

    @property
    def totals(self) -> dict[str, tuple[int, int]]:
        """Requests and their nanoseconds by outcome, since the start: no objective that changes makes them less."""
        self.flush()
        return self._totals

    @property
    def requests(self) -> dict[_Key, int]:
        """Counts by (route, variant, code, cache); code is "ok" or an error's."""
        self.flush()
        return self._requests


# -- What one model finished, on its way to the sinks ------------------------------------------------------------------


DEVICE_BUSY = counter(
    "tailcut_device_busy_seconds",
    "Seconds in which executors held the device; only for variants that run on a device.",
    "variant",
    "version",
)

_AT_ONCE = 64
"""Requests that are handed over together: counting in NumPy then takes a fifth of the time of one after the other, and
holds the event loop up for less than a tenth of a millisecond."""


class ModelSinks:
    """Hands what one model finished to its metrics, then to the sinks of the host. Owned by the event loop.

    Attributes:
        metrics: of the model.
    """

    def __init__(self, model: str, others: Sinks | None = None, window_s: float = 60.0) -> None:
        self.metrics = Recorder(window_s)
        self.metrics.flush = self.flush
        self._model = model
        self._others = Sinks() if others is None else others
        self._ended: list[FinishedRequest] = []

    def request(self, request: FinishedRequest) -> None:
        """Take a request that has ended."""
        ended = self._ended
        ended.append(request)
        if len(ended) == _AT_ONCE:
            # In the next turn: the reply of this request goes first.
            asyncio.get_running_loop().call_soon(self.flush)

    @property
    def wants_batches(self) -> bool:
        """Whether anything wants more of a batch than its rows and duration."""
        return bool(self._others.of_batches)

    def batch(self, batch: FinishedBatch) -> None:
        """Take a batch that ran."""
        self.metrics.count_batch(batch.rows, batch.duration_ns)
        self._others.batch(self._model, batch)

    def switch(self, switch: VariantSwitch) -> None:
        """Take a switch; requests that ended before are handed over first."""
        self.flush()
        self.metrics.serve(switch.variant)
        self._others.switch(self._model, switch)

    def flush(self) -> None:
        """Hand over what has ended; called every 0.1 s, and before the metrics are read."""
        if self._ended:
            ended, self._ended = self._ended, []
            self.metrics.on_requests(self._model, ended)
            self._others.requests(self._model, ended)


class VariantBatches:
    """Tells the sinks of the batches of one variant, and sums how long they held a device.

    Attributes:
        busy_ns: time of all batches, which a GPU-hour is paid for; executors that share a device count each.
    """

    def __init__(self, variant: str, version: str, sinks: ModelSinks) -> None:
        self._variant, self._version = variant, version
        self._sinks = sinks
        self.busy_ns = 0

    def batch(
        self,
        rows: int,
        duration_ns: int,
        inputs: Sequence[Arrays],
        outputs: Sequence[Arrays],
        entities: Sequence[Keys | None] = (),
    ) -> None:
        """Note a batch that ran."""
        self.busy_ns += duration_ns
        if not self._sinks.wants_batches:
            self._sinks.metrics.count_batch(rows, duration_ns)
            return
        self._sinks.batch(FinishedBatch(self._variant, self._version, rows, duration_ns, inputs, outputs, entities))
