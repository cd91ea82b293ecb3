"""Shares of a recent window: errors, shed requests, stale features, feature hits, throttled CPU periods."""

from __future__ import annotations

from collections.abc import Iterator

from tailcut.manifest.schema.observe import AlertName
from tailcut.observe.alerts.evidence import Evidence
from tailcut.observe.alerts.findings import Finding, Severity, level_of
from tailcut.observe.alerts.likely_place import likely_place, top_code
from tailcut.observe.alerts.minute_counts import Key
from tailcut.observe.alerts.series import CPU_PERIODS, CPU_THROTTLED, FEATURE_LOOKUPS, FEATURE_STALE, REQUESTS
from tailcut.observe.outcomes import SHED_CODES

_CLEAR_SHARE = 0.8
_LEAST_BAD = 10
_LEAST_PERIODS = 100


def find_failures(evidence: Evidence) -> Iterator[Finding]:
    """Yield the shares of failed and of shed requests of each model."""
    settings, minutes = evidence.settings, _minutes(evidence)
    for model in evidence.models:
        total, failed, shed = _ends(evidence, model, minutes)
        if total < settings.share_requests:
            continue
        code = top_code(evidence.counts, model, minutes)
        text = f"{_percent(failed / total)} of {total:.0f} requests failed in {minutes} min, most often with {code!r}"
        yield _high(
            ("errors", model, ""),
            (failed, total, settings.errors),
            likely_place(evidence.counts, model, errors=True) if failed else "",
            text,
            "look at the log for the code",
        )
        text = f"{_percent(shed / total)} of {total:.0f} requests were shed or timed out in the queue in {minutes} min"
        hint = "there is too little capacity: add servers or executors, or serve a faster variant"
        yield _high(("shed", model, ""), (shed, total, settings.shed), "queue" if shed else "", text, hint)


def find_features(evidence: Evidence) -> Iterator[Finding]:
    """Yield the hit rate and the share of stale values of each feature group."""
    settings, minutes = evidence.settings, _minutes(evidence)
    for model in evidence.models:
        keys = [key for key in evidence.counts.keys(FEATURE_LOOKUPS, model) if key.label("result") == "hit"]
        for key in keys:
            group, entity_type = key.label("group"), key.label("entity_type")
            hits, lookups = _lookups(evidence, key, minutes, 0)
            if lookups < settings.hit_rate_lookups:
                continue
            place = f"features/{group}"
            of = {"group": group, "entity_type": entity_type}
            stale = evidence.counts.sum(Key.of(model, FEATURE_STALE, of), minutes)
            text = f"{_percent(stale / lookups)} of {lookups:.0f} values of group {group!r} were stale in {minutes} min"
            hint = "the source of the group fails: look at the log of tailcut.features"
            yield _high(("stale", model, group), (stale, lookups, settings.stale), place, text, hint)
            if evidence.uptime_minutes > 2 * minutes:  # before, caches are filling
                yield _hit_rate(evidence, key, hits / lookups, lookups)


def find_throttling(evidence: Evidence) -> Iterator[Finding]:
    """Yield the share of CPU periods in which the control group's quota was used up."""
    minutes = _minutes(evidence)
    periods = evidence.counts.sum(Key("", CPU_PERIODS), minutes)
    throttled = evidence.counts.sum(Key("", CPU_THROTTLED), minutes)
    if periods < _LEAST_PERIODS:
        return
    share = throttled / periods
    text = f"the CPU quota was used up in {_percent(share)} of {periods:.0f} periods in {minutes} min"
    hint = "raise the CPU limit of the container, or lower pool.threads and pool.executors"
    yield _high(("cpu_throttled", "", ""), (throttled, periods, evidence.settings.throttled), "cpu", text, hint)


def _minutes(evidence: Evidence) -> int:
    return max(round(evidence.settings.window_s / 60), 1)


def _ends(evidence: Evidence, model: str, minutes: int) -> tuple[float, float, float]:
    """Return requests but those that were themselves wrong, those that failed, and those that were shed."""
    total = failed = shed = 0.0
    for key in evidence.counts.keys(REQUESTS, model):
        found = evidence.counts.sum(key, minutes)
        code, outcome = key.label("code"), key.label("outcome")
        if code in SHED_CODES:
            shed += found
        elif outcome == "5xx":
            failed += found
        elif outcome != "ok":
            continue
        total += found
    return total, failed, shed


def _lookups(evidence: Evidence, key: Key, minutes: int, ago: int) -> tuple[float, float]:
    """Return hits and look-ups of a group; ``key`` is the series of its hits."""
    misses = Key.of(key.model, key.name, {**dict(key.labels), "result": "miss"})
    hits = evidence.counts.sum(key, minutes, ago)
    return hits, hits + evidence.counts.sum(misses, minutes, ago)


def _hit_rate(evidence: Evidence, key: Key, rate: float, lookups: float) -> Finding:
    limit, minutes = float(evidence.settings.hit_rate), _minutes(evidence)
    clear = limit + (1 - limit) * 0.1
    group, entity_type = key.label("group"), key.label("entity_type")
    hits_before, before = _lookups(evidence, key, 60, minutes)
    if before >= evidence.settings.hit_rate_lookups:
        earlier = f"{_percent(hits_before / before)} in the hour before"
    else:
        earlier = "it is new: there were hardly any in the hour before"
    text = (
        f"{_percent(rate)} of {lookups:.0f} look-ups of group {group!r} (entity type {entity_type}) hit in {minutes} "
        f"min, limit {_percent(limit)}; {earlier}"
    )
    hint = f"are there new values of {entity_type}? raise ttl or refresh_ahead of the group, or the cache's size"
    level = level_of(rate, limit, clear)
    place = f"features/{group}"
    return Finding("hit_rate", key.model, group, "ticket", level, 100 * rate, 100 * limit, "%", place, text, hint)


def _high(
    which: tuple[AlertName, str, str], counts: tuple[float, float, float], place: str, text: str, hint: str
) -> Finding:
    """Judge a share that must not be above its limit.

    Args:
        which: alert, model and subject.
        counts: bad ones, all, and the largest share.
    """
    alert, model, subject = which
    bad, total, limit = counts
    share = bad / total
    level = level_of(share, limit, _CLEAR_SHARE * limit)
    if level == "bad" and bad < _LEAST_BAD:
        level = "between"
    severity: Severity = "page" if alert in {"errors", "shed"} else "ticket"
    text = f"{text}, limit {_percent(limit)}"
    return Finding(alert, model, subject, severity, level, 100 * share, 100 * limit, "%", place, text, hint)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
