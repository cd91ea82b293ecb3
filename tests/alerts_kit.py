"""What the tests of alerts share: traffic of minutes as counts and as snapshots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tailcut.observe.alerts.evaluation import ANSWERED, STAGE_NS, MinuteCounts
from tailcut.observe.alerts.probes import Figures
from tailcut.observe.alerts.rules import AlertFinding
from tailcut.observe.exposition import REQUESTS
from tailcut.observe.fine_histogram import PLACES, Counts, places_of
from tailcut.observe.history import HistorySnapshot, Series
from tailcut.observe.latency_figures import SLO_GOOD, SLO_REQUESTS
from tailcut.observe.path_metrics import FEATURE_LOOKUPS, FEATURE_SOURCE_SECONDS, FEATURE_STALE
from tailcut.observe.sample import Metric

P95 = {"slo": "p95", "objective": "0.95", "limit": "0.05"}
QUIET = Figures(memory_bytes=10**8, periods=0, throttled=0)


def histogram(milliseconds: np.ndarray | Sequence[float]) -> Counts:
    """The fine histogram of latencies."""
    places = places_of(np.round(np.asarray(milliseconds) * 1e6).astype(np.int64))
    return np.bincount(places, minlength=PLACES)


class Traffic:
    """Counts, written minute by minute."""

    def __init__(self) -> None:
        self.counts = MinuteCounts({each.series[0]: 3 * 24 * 60 for each in (SLO_GOOD, SLO_REQUESTS)}, 125)

    def minutes(self, count: int, **of_each: float) -> Traffic:
        """Let minutes pass.

        Args:
            of_each: requests, bad (beyond p95's limit), failed, shed, hits, misses, stale; and milliseconds per request
                of a stage, as queue_ms.
        """
        for _ in range(count):
            self.counts.begin_minute()
            for key, value in _growth(of_each):
                self.counts.add(key, value)
        return self


def _counter(metric: Metric, labels: Mapping[str, str]) -> Series:
    return Series.of("counter", "m", metric.series[0], labels)


def _growth(of: Mapping[str, float]) -> list[tuple[Series, float]]:
    requests, bad = of.get("requests", 0.0), of.get("bad", 0.0)
    ends = {"ok": requests - of.get("failed", 0.0) - of.get("shed", 0.0)}
    ends |= {"feature_unavailable": of.get("failed", 0.0), "shed": of.get("shed", 0.0)}
    outcome = {"ok": "ok", "feature_unavailable": "5xx", "shed": "4xx"}
    group = {"group": "weather", "entity_type": "origin+hour"}
    found = [(_counter(REQUESTS, {"code": code, "outcome": outcome[code]}), n) for code, n in ends.items()]
    found += [(_counter(SLO_REQUESTS, P95), requests)]
    found += [(_counter(SLO_GOOD, P95), requests - bad)]
    for result, name in (("hit", "hits"), ("miss", "misses")):
        found.append((_counter(FEATURE_LOOKUPS, group | {"result": result}), of.get(name, 0.0)))
    found.append((_counter(FEATURE_STALE, group), of.get("stale", 0.0)))
    source_s = requests * of.get("features_ms", 0.0) / 1e3
    found.append((_counter(FEATURE_SOURCE_SECONDS, group), source_s))
    stages = {name.removesuffix("_ms"): ms for name, ms in of.items() if name.endswith("_ms")}
    found += [
        (Series("counter", "m", STAGE_NS, (("stage", stage),)), requests * ms * 1e6) for stage, ms in stages.items()
    ]
    found.append((Series("counter", "m", ANSWERED), requests))
    return [(key, value) for key, value in found if value]


def bad(findings: Sequence[AlertFinding]) -> list[AlertFinding]:
    """Those that are bad."""
    return [each for each in findings if each.level == "bad"]


def slo_snapshot(minute: int, requests: float, good: float) -> HistorySnapshot:
    """A minute of an objective of model "m"."""
    numbers = [(_counter(metric, P95), value) for metric, value in ((SLO_REQUESTS, requests), (SLO_GOOD, good))]
    return HistorySnapshot(minute, minute, 0, [], numbers)
