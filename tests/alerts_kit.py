"""What the tests of alerts share: traffic of minutes as snapshots, and evidence made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from tailcut.manifest.schema.observe import Alerts as Settings
from tailcut.observe.alerts import series
from tailcut.observe.alerts.evidence import BUDGET_MINUTES, SHORT_MINUTES, Evidence
from tailcut.observe.alerts.findings import Finding
from tailcut.observe.alerts.latency_growth import Period
from tailcut.observe.alerts.likely_place import STAGE_NS, STAGE_REQUESTS
from tailcut.observe.alerts.minute_counts import Key, MinuteCounts
from tailcut.observe.alerts.probes import Figures
from tailcut.observe.fine_histogram import PLACES, Counts, places_of
from tailcut.observe.history.tables import Series, Snapshot

P95 = {"slo": "p95", "objective": "0.95", "limit": "0.05"}
QUIET = Figures(memory_bytes=10**8, descriptors=50, threads=20, periods=0, throttled=0)


def histogram(milliseconds: np.ndarray | Sequence[float]) -> Counts:
    """The fine histogram of latencies."""
    places = places_of(np.round(np.asarray(milliseconds) * 1e6).astype(np.int64))
    return np.bincount(places, minlength=PLACES)


def period(
    milliseconds: Mapping[str, float],
    *,
    requests: int,
    blocks: int = 12,
    seed: int = 0,
    groups: Mapping[str, float] = {},
) -> Period:
    """An hour whose stages take log-normal times with these medians; "request" is their sum."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(blocks):
        times = {name: median * rng.lognormal(0, 0.4, requests // blocks) for name, median in milliseconds.items()}
        found.append(
            {name: histogram(each) for name, each in times.items()} | {"request": histogram(sum(times.values()))}
        )
    return Period.of(found, groups)


def evidence(counts: MinuteCounts, settings: Settings | None = None, **changes: object) -> Evidence:
    """Evidence of a server that has been up for a day."""
    made = Evidence(settings or Settings(), counts, ["m"], 1440, {}, (), (), ())
    return made._replace(**changes)


class Traffic:
    """Counts, written minute by minute."""

    def __init__(self) -> None:
        self.counts = MinuteCounts(
            {series.SLO_GOOD: BUDGET_MINUTES, series.SLO_REQUESTS: BUDGET_MINUTES}, SHORT_MINUTES
        )
        self.minute = 29_000_000

    def minutes(self, count: int, **of_each: float) -> Traffic:
        """Let minutes pass.

        Args:
            of_each: requests, bad (beyond p95's limit), failed, shed, hits, misses, stale; and milliseconds per request
                of a stage, as queue_ms.
        """
        for _ in range(count):
            self.minute += 1
            self.counts.advance(self.minute)
            for key, value in _growth(of_each):
                self.counts.add(self.minute, key, value)
        return self


def _growth(of: Mapping[str, float]) -> list[tuple[Key, float]]:
    requests, bad = of.get("requests", 0.0), of.get("bad", 0.0)
    ends = {"ok": requests - of.get("failed", 0.0) - of.get("shed", 0.0)}
    ends |= {"feature_unavailable": of.get("failed", 0.0), "shed": of.get("shed", 0.0)}
    outcome = {"ok": "ok", "feature_unavailable": "5xx", "shed": "4xx"}
    group = {"group": "weather", "entity_type": "origin+hour"}
    found = [(Key.of("m", series.REQUESTS, {"code": code, "outcome": outcome[code]}), n) for code, n in ends.items()]
    found += [(Key.of("m", series.SLO_REQUESTS, P95), requests), (Key.of("m", series.SLO_GOOD, P95), requests - bad)]
    for result in ("hit", "miss"):
        found.append(
            (
                Key.of("m", series.FEATURE_LOOKUPS, group | {"result": result}),
                of.get({"hit": "hits", "miss": "misses"}[result], 0.0),
            )
        )
    found.append((Key.of("m", series.FEATURE_STALE, group), of.get("stale", 0.0)))
    found.append((Key.of("m", series.FEATURE_SOURCE_SECONDS, group), requests * of.get("features_ms", 0.0) / 1e3))
    stages = {name.removesuffix("_ms"): ms for name, ms in of.items() if name.endswith("_ms")}
    for stage, ms in (stages | {"request": sum(stages.values())}).items():
        found.append((Key("m", STAGE_NS, (("stage", stage),)), requests * ms * 1e6))
        found.append((Key("m", STAGE_REQUESTS, (("stage", stage),)), requests))
    return [(key, value) for key, value in found if value]


def bad(findings: Sequence[Finding], alert: str = "") -> list[Finding]:
    """Those that are bad."""
    return [each for each in findings if each.level == "bad" and alert in {"", each.alert}]


def snapshot(minute: int, numbers: Mapping[tuple[str, str, str], float]) -> Snapshot:
    """A snapshot of model "m"; labels as JSON text."""
    made = [(Series("counter", model, name, labels), value) for (model, name, labels), value in numbers.items()]
    return Snapshot(minute, minute, 0, [], made)


def slo_snapshot(minute: int, requests: float, good: float) -> Snapshot:
    """A minute of an objective of model "m"."""
    labels = json.dumps(P95, sort_keys=True)
    return snapshot(minute, {("m", series.SLO_REQUESTS, labels): requests, ("m", series.SLO_GOOD, labels): good})
