"""The server's rules, evaluated over the counts of the last minutes. Pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tailcut.manifest.schema.observe import Alerts as Settings
from tailcut.observe.alerts.rules import (
    RULE,
    RULES,
    AlertFinding,
    BurnWindow,
    CountShare,
    Level,
    Rule,
    Selection,
    windows_for,
)
from tailcut.observe.exposition import REQUESTS
from tailcut.observe.fine_histogram import PLACES, RATIO, Counts, percentile_ns
from tailcut.observe.history import History, Series
from tailcut.observe.latency_figures import REQUEST, SLO_GOOD, SLO_REQUESTS
from tailcut.observe.outcomes import SHED_CODES
from tailcut.observe.path_metrics import FEATURE_SOURCE_ERRORS, FEATURE_SOURCE_SECONDS

# -- Counts by the minute ----------------------------------------------------------------------------------------------

_MOST_KEYS = 4_000
"""Series that are kept; further ones are left out."""


class MinuteCounts:
    """Sums of counters' growth over windows that end with the running minute. For one thread.

    Minutes are counted as they begin, whatever the wall clock says: one that is set moves no count.

    Args:
        minutes: kept of a series, by its name.
        short: minutes that are kept of all other series.
    """

    def __init__(self, minutes: Mapping[str, int], short: int) -> None:
        self._now = 0
        self._minutes = minutes
        self._short = short
        self._rings: dict[Series, npt.NDArray[np.float64]] = {}
        self._named: dict[tuple[str, str], list[Series]] = {}

    def begin_minute(self) -> None:
        """Begin a minute; what is older than a series keeps is forgotten."""
        self._now += 1
        for ring in self._rings.values():
            ring[self._now % len(ring)] = 0

    def add(self, key: Series, growth: float, ago: int = 0) -> None:
        """Count growth in the running minute, or so many minutes before it; left out where that is not kept."""
        ring = self._rings.get(key)
        if ring is None:
            if len(self._rings) >= _MOST_KEYS:
                return
            ring = self._rings[key] = np.zeros(self._minutes.get(key.name, self._short))
            self._named.setdefault((key.name, key.model), []).append(key)
        if ago < len(ring):
            ring[(self._now - ago) % len(ring)] += growth

    def keys(self, name: str, model: str) -> Sequence[Series]:
        """Return the series of a name and a model."""
        return self._named.get((name, model), ())

    def sum(self, key: Series, minutes: int, ago: int = 0) -> float:
        """Return the growth in a window of so many minutes that ends ``ago`` minutes before the running one's end."""
        ring = self._rings.get(key)
        if ring is None:
            return 0.0
        return float(ring[(self._now - np.arange(ago, min(ago + minutes, len(ring)))) % len(ring)].sum())


# -- The stage where requests probably lose their time --


STAGE_NS = "stage_ns"
"""Name under which nanoseconds of answered requests are counted by stage."""

ANSWERED = "answered"
"""Name under which answered requests are counted."""

_NOW, _BEFORE = (10, 0), (50, 10)
"""Minutes that are compared, and how many minutes ago they end."""

_STAGES_OF_CODES = {
    "feature_unavailable": "features",
    "feature_failed": "features",
    "feature_timeout": "features",
    **dict.fromkeys(SHED_CODES, "queue"),
    "executor_lost": "infer",
    "inference_failed": "infer",
    "infer_timeout": "infer",
    # The log says which of the two.
    "hook_failed": "preprocess or postprocess",
    "hook_timeout": "preprocess or postprocess",
}


def failures(counts: MinuteCounts, model: str, minutes: int) -> dict[str, float]:
    """Return how many requests the server failed or shed, by code, the most frequent code first."""
    found: dict[str, float] = {}
    for key in counts.keys(REQUESTS.series[0], model):
        code, number = key.label("code"), counts.sum(key, minutes)
        if number and (code in SHED_CODES or key.label("outcome") == "5xx"):
            found[code] = found.get(code, 0.0) + number
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def likely_stage(counts: MinuteCounts, model: str, code: str = "") -> str:
    """Return the likely stage, of features with the group; empty if it is not known.

    Args:
        code: of most of the requests that failed, where it is about failures and not about time.
    """
    stage = _STAGES_OF_CODES.get(code, "") if code else _grown(counts, model, STAGE_NS, "stage")
    source = (FEATURE_SOURCE_ERRORS if code else FEATURE_SOURCE_SECONDS).series[0]
    group = _grown(counts, model, source, "group") if stage == "features" else ""
    return f"{stage}/{group}" if group else stage


def most_grown(now: Mapping[str, float], before: Mapping[str, float]) -> str:
    """Return what grew most, or, where nothing grew by 5 % of the whole, what is largest; empty if there is nothing."""
    grown = {name: value - before.get(name, 0.0) for name, value in now.items()}
    largest = max(grown, key=lambda name: grown[name], default="")
    if grown.get(largest, 0.0) < 0.05 * sum(now.values()):
        largest = max(now, key=lambda name: now[name], default="")
    return largest if now.get(largest) else ""


def _grown(counts: MinuteCounts, model: str, name: str, label: str) -> str:
    """Return the label whose counter grew most per answered request, the last minutes against the hour before."""
    found: list[dict[str, float]] = []
    for window in (_NOW, _BEFORE):
        requests = max(counts.sum(Series("counter", model, ANSWERED), *window), 1.0)
        found.append({key.label(label): counts.sum(key, *window) / requests for key in counts.keys(name, model)})
    return most_grown(*found)


_LEVELS: Sequence[Level] = ("good", "between", "bad")
_CLEAR_SHARE = 0.8
_LEAST_BAD = 10
"""Requests or look-ups below which a share is not bad: few of them page no one."""
_BEYOND = 2.0
"""Standard deviations (Poisson) by which the bad requests of the long window must exceed what the factor allows: a
budget that is used up exactly as planned raises no alarm half of the time."""
_MOST_COLUMNS = 5


class MovedColumns(NamedTuple):
    """Verdict of a model's drift detector on its inputs and outputs, once it can judge them.

    Attributes:
        columns: that moved, the one that moved most first; empty if none did.
        effect: population stability index of the first column; 0 without one.
        limit: that it must reach for an alarm.
    """

    model: str
    columns: Sequence[str]
    effect: float
    limit: float


def find_shares(settings: Settings, counts: MinuteCounts, models: Iterable[str], uptime: int) -> Iterator[AlertFinding]:
    """Yield a finding per share, model and group that has enough to judge by.

    Args:
        uptime: minutes since the start.
    """
    minutes = max(round(settings.window_s / 60), 1)
    for rule in RULES:
        # Before two windows have passed, caches are filling.
        if rule.share is None or not rule.in_server or (rule.share.below and uptime <= 2 * minutes):
            continue
        for model in models:
            parts = _sums(counts, model, rule.share.part, rule.share.by, minutes)
            for labels, whole in _sums(counts, model, rule.share.whole, rule.share.by, minutes).items():
                if whole >= max(getattr(settings, rule.share.least), 1):
                    limit = getattr(settings, rule.share.limit)
                    finding = _of_share(rule, rule.share, model, labels, (parts.get(labels, 0.0), whole, limit))
                    yield _explained(finding, counts, minutes)


def find_burn_rates(settings: Settings, counts: MinuteCounts, models: Iterable[str]) -> Iterator[AlertFinding]:
    """Yield the worst finding per model and severity; while a page is bad, a ticket is not."""
    for model in models:
        judged = [
            _of_budget(settings, counts, key, window)
            for key in counts.keys(SLO_REQUESTS.series[0], model)
            for window in windows_for(_budget(key))
            # The last twelfth alone is nothing to judge by: a start says nothing of days or hours.
            if counts.sum(key, window.short - window.short // 12, window.short // 12)
        ]
        paged = False
        for severity in RULE["burn_rate"].severities:  # pages first
            of_severity = [each for each in judged if each[0].severity == severity]
            if not of_severity:
                continue
            worst, bad = max(of_severity, key=lambda each: (_LEVELS.index(each[0].level), each[0].limit))
            if worst.level != "good":
                codes = failures(counts, model, 10)
                code = next(iter(codes)) if codes and 2 * sum(codes.values()) >= bad else ""
                worst = worst._replace(place=likely_stage(counts, model, code))
            yield worst._replace(level="between") if paged and worst.level == "bad" else worst
            paged = paged or worst.level == "bad"


def find_moved(moved: Iterable[MovedColumns]) -> Iterator[AlertFinding]:
    """Yield a finding per model whose drift detector can judge."""
    for each in moved:
        names = ", ".join(repr(name) for name in each.columns[:_MOST_COLUMNS])
        more = len(each.columns) - _MOST_COLUMNS
        text = (
            f"the distribution of {names}{f' and {more} more' if more > 0 else ''} moved away from the holdout's; "
            f"population stability index {each.effect:.2f}, limit {each.limit:g}"
        )
        place = f"columns/{each.columns[0]}" if each.columns else ""
        level: Level = "bad" if each.columns else "good"
        yield AlertFinding("drift", each.model, "", "ticket", level, each.effect, each.limit, place, text)


def _sums(
    counts: MinuteCounts, model: str, selections: Iterable[Selection], by: Sequence[str], minutes: int
) -> dict[tuple[str, ...], float]:
    """Return the growth of selected series by the values of the labels ``by``."""
    found: dict[tuple[str, ...], float] = {}
    for metric, matches in selections:
        for key in counts.keys(metric.series[0], model):
            if all(_matches(key.label(label), how, value) for label, how, value in matches):
                group = tuple(key.label(label) for label in by)
                found[group] = found.get(group, 0.0) + counts.sum(key, minutes)
    return found


def _matches(text: str, how: str, value: str) -> bool:
    """Return whether a label's text matches, as in PromQL."""
    is_same = re.fullmatch(value, text) is not None if how.endswith("~") else text == value
    return is_same != how.startswith("!")


def _of_share(
    rule: Rule, share: CountShare, model: str, labels: tuple[str, ...], of: tuple[float, float, float]
) -> AlertFinding:
    part, whole, limit = of
    value = part / whole
    distance, room = (limit - value, 1 - limit) if share.below else (value - limit, limit)
    bad = whole - part if share.below else part
    level: Level = "good" if distance <= -(1 - _CLEAR_SHARE) * room else "between"
    level = "bad" if distance > 0 and bad >= _LEAST_BAD else level
    group, entity_type = labels or ("", "")
    about = f" of group {group!r} (entity type {entity_type})" if group else ""
    text = f"{100 * value:.3g} % of {whole:.0f} {share.of}{about} {share.what}, limit {100 * limit:.3g} %"
    place = f"features/{group}" if group else ""
    return AlertFinding(rule.alert, model, group, rule.severities[0], level, 100 * value, 100 * limit, place, text)


def _explained(finding: AlertFinding, counts: MinuteCounts, minutes: int) -> AlertFinding:
    """Return a finding of failed requests with the most frequent code and its stage."""
    code = next((code for code in failures(counts, finding.model, minutes) if code not in SHED_CODES), "")
    if finding.alert != "errors" or not code:
        return finding
    place = likely_stage(counts, finding.model, code)
    return finding._replace(place=place, text=f"{finding.text}; most often with {code!r}")


def _budget(key: Series) -> float:
    """Return the share of requests that may miss an objective."""
    return 1 - float(key.label("objective"))


def _of_budget(settings: Settings, counts: MinuteCounts, key: Series, window: BurnWindow) -> tuple[AlertFinding, int]:
    """Judge an objective over a pair of windows; return how many requests were bad in the short one, too.

    The value is how many times faster than the SLO allows its error budget is used up, the lower one of both windows.
    """
    total, bad = _bad(counts, key, window.long)
    total_now, bad_now = _bad(counts, key, window.short)
    budget = _budget(key)
    rate = min(bad / total, bad_now / total_now) / budget
    allowed = window.factor * budget * total
    is_enough = bad >= settings.burn_requests and bad > allowed + _BEYOND * sqrt(allowed)
    level: Level = "good" if rate <= window.factor * _CLEAR_SHARE else "between"
    level = "bad" if rate > window.factor and is_enough else level
    slo, limit = key.label("slo"), key.label("limit")
    what = f"{slo} of {float(limit) * 1e3:g} ms" if limit else slo
    times = f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
    text = (
        f"the error budget of {what} burns {times} times as fast as the SLO allows, limit {window.factor:g}: "
        f"{bad} bad requests in {_time(window.long)}, and it goes on in the last {_time(window.short)}"
    )
    return AlertFinding("burn_rate", key.model, "", window.severity, level, rate, window.factor, "", text), bad_now


def _bad(counts: MinuteCounts, key: Series, minutes: int) -> tuple[int, int]:
    """Return the requests of a window, and how many of them missed the objective."""
    total, good = counts.sum(key, minutes), counts.sum(key._replace(name=SLO_GOOD.series[0]), minutes)
    return round(total), max(round(total - good), 0)


def _time(minutes: int) -> str:
    if minutes >= 2 * 24 * 60:
        return f"{minutes // (24 * 60)} d"
    return f"{minutes // 60} h" if minutes >= 60 else f"{minutes} min"


# -- Memory that keeps growing --


_MIB = 1024.0**2
_LEAST_BYTES = 32 * _MIB
_DAY_MINUTES = 24 * 60
_LEAST_MINUTES = 8
_LEAST_PROJECTED = 25
"""Minutes from which on growth is projected over a day."""
_STEADY_SHARE = 1 / 6
"""Of all growth, what each of the three steps between quarters must have: half of what it has if growth is even."""


class _Growth(NamedTuple):
    """Bytes at the beginning of a span and what was added, each step of it."""

    minutes: int
    base: float
    grown: float
    is_steady: bool


class MemoryGrowth:
    """A sample of memory per minute of the last day. For one thread.

    Args:
        limit: bytes that the process may have; infinity where there is no limit.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._samples: deque[float] = deque(maxlen=_DAY_MINUTES)

    def add(self, value: float) -> None:
        """Add the bytes of a minute."""
        self._samples.append(value)

    def find(self, share: float) -> AlertFinding | None:
        """Judge the whole time, its second half, and so on; None with too few samples.

        Args:
            share: of the memory at the beginning of a span, by which it must have grown.
        """
        samples, minutes, found = np.array(self._samples), len(self._samples), []
        while minutes >= _LEAST_MINUTES:
            found.append(_growth(samples[-minutes:]))
            minutes //= 2
        if not found:
            return None
        worst = max(found, key=lambda each: (self._is_leak(each, share), each.is_steady, each.grown))
        level: Level = "bad" if self._is_leak(worst, share) else "between" if worst.is_steady else "good"
        text = (
            f"memory of the server and its executors grew by {worst.grown / _MIB:.0f} MiB from {worst.base / _MIB:.0f} "
            f"MiB in {worst.minutes} min and goes on"
        )
        if self._limit < float("inf"):
            text += f"; the limit is {self._limit / _MIB:.0f} MiB"
        percent = 100 * worst.grown / max(worst.base, 1.0)
        return AlertFinding("memory_leak", "", "", "ticket", level, percent, 100 * share, "memory", text)

    def _is_leak(self, growth: _Growth, share: float) -> bool:
        if not growth.is_steady:
            return False
        per_day = growth.grown / (0.75 * growth.minutes) * _DAY_MINUTES
        is_near = growth.minutes >= _LEAST_PROJECTED and growth.base + growth.grown + per_day >= self._limit
        return growth.grown >= share * growth.base or is_near


def _growth(samples: np.ndarray) -> _Growth:
    lows = np.array([quarter.min() for quarter in np.array_split(samples, 4)])
    grown = float(lows[-1] - lows[0])
    is_steady = grown >= _LEAST_BYTES and float(np.diff(lows).min()) >= _STEADY_SHARE * grown
    return _Growth(len(samples), float(lows[0]), grown, is_steady)


# -- p95 week over week --


WEEK_S = 7 * 24 * 3600
HOUR_S = 3600

_SHARE = 0.95
_NORMAL_95 = 1.645


class Hour(NamedTuple):
    """Answered requests of one model in one hour.

    Attributes:
        histogram: of the whole requests, (``PLACES``,).
        stage_ns: nanoseconds by stage, of all requests.
        group_s: seconds in feature sources, by group.
    """

    histogram: Counts
    stage_ns: dict[str, float]
    group_s: dict[str, float]


def read_hour(history: History, until_s: int) -> dict[str, Hour]:
    """Return the hour that ends at ``until_s`` (Unix seconds), by model. Waits for the disk.

    Raises:
        StoreError: the history cannot be read.
    """
    span = until_s - HOUR_S, until_s
    found: dict[str, Hour] = {}
    for row in history.latency(*span, bucket_s=HOUR_S):
        hour = found.setdefault(row.model, Hour(np.zeros(PLACES, np.int64), {}, {}))
        if row.stage == REQUEST:
            hour.histogram[:] += row.histogram
        else:
            hour.stage_ns[row.stage] = hour.stage_ns.get(row.stage, 0.0) + row.total_ns
    for each in history.counts(*span, name=FEATURE_SOURCE_SECONDS.series[0], bucket_s=HOUR_S):
        if each.model in found:
            groups, group = found[each.model].group_s, each.labels.get("group", "")
            groups[group] = groups.get(group, 0.0) + each.value
    return found


def find_growth(now: Mapping[str, Hour], then: Mapping[str, Hour], limit: float, least: int) -> list[AlertFinding]:
    """Return a finding per model that has at least ``least`` answers in both hours.

    Args:
        limit: growth that is alarmed, 0.15 for 15 %. A percentile of the fine histogram may be half a bound off on
            either side, so that much less fires, too; and counting alone must not explain half of the limit: the lower
            bound of p95 now (95 %, of order statistics) is compared with the upper bound of then.
    """
    found = []
    for model in now.keys() & then.keys():
        hours = now[model], then[model]
        counts = [int(each.histogram.sum()) for each in hours]
        if min(counts) < least:
            continue
        p95s = [percentile_ns(each.histogram, _SHARE) for each in hours]
        spread = [_NORMAL_95 * sqrt(_SHARE * (1 - _SHARE) / count) for count in counts]
        low = percentile_ns(hours[0].histogram, _SHARE - spread[0])
        high = percentile_ns(hours[1].histogram, min(_SHARE + spread[1], 1.0))
        ratio = p95s[0] / p95s[1]
        is_certain = low > (1 + limit / 2) * high
        level: Level = "bad" if ratio > (1 + limit) / sqrt(RATIO) and is_certain else "between"
        level = "good" if ratio <= 1 + limit * 0.6 else level
        place = _grown_place(*hours, *counts)
        percent = (ratio - 1) * 100
        where = f"; {place} grew most" if place else ""
        text = (
            f"p95 is {p95s[0] / 1e6:.3g} ms, {percent:+.1f} % on the same hour a week ago ({p95s[1] / 1e6:.3g} ms), "
            f"limit +{limit * 100:g} %{where}"
        )
        found.append(AlertFinding("p95_growth", model, "", "ticket", level, percent, limit * 100, place, text))
    return found


def _grown_place(now: Hour, then: Hour, requests_now: int, requests_then: int) -> str:
    """Return the stage whose time per request grew most, of features with the group."""

    def per_request(found: Mapping[str, float], requests: int) -> dict[str, float]:
        return {name: value / requests for name, value in found.items()}

    stage = most_grown(per_request(now.stage_ns, requests_now), per_request(then.stage_ns, requests_then))
    group = most_grown(per_request(now.group_s, requests_now), per_request(then.group_s, requests_then))
    return f"{stage}/{group}" if stage == "features" and group else stage
