"""The server's rules, evaluated over the counts of the last minutes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from math import sqrt
from typing import NamedTuple

from tailcut.manifest.schema.observe import Alerts as Settings
from tailcut.observe.alerts.likely_stage import failures, likely_stage
from tailcut.observe.alerts.minute_counts import Key, MinuteCounts
from tailcut.observe.alerts.rules import RULES, BurnWindow, Finding, Level, Rule, Selection, Share, windows_for
from tailcut.observe.latency_figures import SLO_GOOD, SLO_REQUESTS
from tailcut.observe.outcomes import SHED_CODES

_LEVELS: Sequence[Level] = ("good", "between", "bad")
_CLEAR_SHARE = 0.8
_CLEAR_BURN_SHARE = 0.9
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


def find_shares(settings: Settings, counts: MinuteCounts, models: Iterable[str], uptime: int) -> Iterator[Finding]:
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


def find_burn_rates(settings: Settings, counts: MinuteCounts, models: Iterable[str]) -> Iterator[Finding]:
    """Yield the worst finding per model and severity; while a page is bad, a ticket is not."""
    for model in models:
        found: dict[str, list[tuple[Finding, int]]] = {}
        for key in counts.keys(SLO_REQUESTS.series[0], model):
            budget = 1 - float(key.label("objective"))
            for window in windows_for(budget):
                if counts.sum(key, window.short):  # else there is nothing to judge by
                    judged = _of_budget(settings, counts, key, budget, window)
                    found.setdefault(window.severity, []).append(judged)
        paged = False
        for judgements in found.values():  # pages first
            worst, bad = max(judgements, key=lambda each: (_LEVELS.index(each[0].level), each[0].limit))
            if worst.level != "good":
                codes = failures(counts, model, 10)
                code = next(iter(codes)) if codes and 2 * sum(codes.values()) >= bad else ""
                worst = worst._replace(place=likely_stage(counts, model, code))
            yield worst._replace(level="between") if paged and worst.level == "bad" else worst
            paged = paged or worst.level == "bad"


def find_moved(moved: Iterable[MovedColumns]) -> Iterator[Finding]:
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
        yield Finding("drift", each.model, "", "ticket", level, each.effect, each.limit, place, text)


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


def _of_share(rule: Rule, share: Share, model: str, labels: tuple[str, ...], of: tuple[float, float, float]) -> Finding:
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
    return Finding(rule.alert, model, group, rule.severities[0], level, 100 * value, 100 * limit, place, text)


def _explained(finding: Finding, counts: MinuteCounts, minutes: int) -> Finding:
    """Return a finding of failed requests with the most frequent code and its stage."""
    code = next((code for code in failures(counts, finding.model, minutes) if code not in SHED_CODES), "")
    if finding.alert != "errors" or not code:
        return finding
    place = likely_stage(counts, finding.model, code)
    return finding._replace(place=place, text=f"{finding.text}; most often with {code!r}")


def _of_budget(
    settings: Settings, counts: MinuteCounts, key: Key, budget: float, window: BurnWindow
) -> tuple[Finding, int]:
    """Judge an objective over a pair of windows; return how many requests were bad in the short one, too.

    The value is how many times faster than the SLO allows its error budget is used up, the lower one of both windows.
    """
    total, bad = _bad(counts, key, window.long)
    total_now, bad_now = _bad(counts, key, window.short)
    rate = min(bad / total, bad_now / total_now) / budget
    allowed = window.factor * budget * total
    is_enough = bad >= settings.burn_requests and bad_now >= 2 and bad > allowed + _BEYOND * sqrt(allowed)
    level: Level = "good" if rate <= window.factor * _CLEAR_BURN_SHARE else "between"
    level = "bad" if rate > window.factor and is_enough else level
    slo, limit = key.label("slo"), key.label("limit")
    what = f"{slo} of {float(limit) * 1e3:g} ms" if limit else slo
    times = f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
    text = (
        f"the error budget of {what} burns {times} times as fast as the SLO allows, limit {window.factor:g}: "
        f"{bad} bad requests in {_time(window.long)}, and it goes on in the last {_time(window.short)}"
    )
    return Finding("burn_rate", key.model, "", window.severity, level, rate, window.factor, "", text), bad_now


def _bad(counts: MinuteCounts, key: Key, minutes: int) -> tuple[int, int]:
    """Return the requests of a window, and how many of them missed the objective."""
    total, good = counts.sum(key, minutes), counts.sum(Key(key.model, SLO_GOOD.series[0], key.labels), minutes)
    return round(total), max(round(total - good), 0)


def _time(minutes: int) -> str:
    if minutes >= 2 * 24 * 60:
        return f"{minutes // (24 * 60)} d"
    return f"{minutes // 60} h" if minutes >= 60 else f"{minutes} min"
