"""All rules: evidence in, findings out. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from math import isnan

from tailcut.observe.alerts.burn_rates import find_burn_rates
from tailcut.observe.alerts.evidence import Evidence
from tailcut.observe.alerts.findings import Finding, level_of
from tailcut.observe.alerts.latency_growth import find_growth
from tailcut.observe.alerts.levels import find_leaks
from tailcut.observe.alerts.shares import find_failures, find_features, find_throttling

_MOST_COLUMNS = 5


def evaluate(evidence: Evidence) -> list[Finding]:
    """Return what every rule finds that is not switched off."""
    settings = evidence.settings
    found = (
        *find_features(evidence),
        *find_throttling(evidence),
        *_find_heat(evidence),
        *find_leaks(evidence.levels, settings.leak_growth),
        *_find_moved(evidence),
        *find_failures(evidence),
        *find_burn_rates(evidence),
        *find_growth(evidence.growth, settings.p95_growth),
    )
    return [finding for finding in found if finding.alert not in settings.off]


def _find_moved(evidence: Evidence) -> Iterator[Finding]:
    for each in evidence.moved:
        if not each.columns:
            text = f"no column's distribution moved away from the holdout's; limit {each.limit:g}"
            yield Finding("drift", each.model, "", "ticket", "good", each.effect, each.limit, "PSI", "", text, "")
            continue
        names = ", ".join(repr(name) for name in each.columns[:_MOST_COLUMNS])
        more = len(each.columns) - _MOST_COLUMNS
        since = f", since {_time(each.since_s)}" if each.since_s else ""
        text = (
            f"the distribution of {names}{f' and {more} more' if more > 0 else ''} moved away from the holdout's"
            f"{since}; population stability index {each.effect:.2f}, limit {each.limit:g}"
        )
        hint = "compare the distributions on /ui; if the change is here to stay, build on a new holdout"
        columns = f"columns/{each.columns[0]}"
        yield Finding("drift", each.model, "", "ticket", "bad", each.effect, each.limit, "PSI", columns, text, hint)


def _find_heat(evidence: Evidence) -> Iterator[Finding]:
    limit = evidence.settings.gpu_celsius
    for each in evidence.gpus:
        is_known = not isnan(each.celsius)
        if not is_known and not each.is_slowed:
            continue
        level = "bad" if each.is_slowed else level_of(each.celsius, limit, limit - 5)
        celsius = each.celsius if is_known else 0.0  # NaN has no place in a file of JSON
        at = f"is at {celsius:.0f} degrees C, limit {limit:g}" if is_known else "does not tell its temperature"
        text = f"{each.name} {at}{'; its clocks are held back' if each.is_slowed else ''}"
        hint = "check the cooling and the power limit (nvidia-smi -q -d TEMPERATURE,POWER)"
        yield Finding("gpu_hot", "", each.name, "ticket", level, celsius, limit, "degrees C", "gpu", text, hint)


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="minutes").replace("+00:00", "Z")
