"""Burn rates: how many times faster than the SLO allows its error budget is being used up.

Source: Site Reliability Workbook (Google, 2018), chapter 5, "Multiwindow, Multi-Burn-Rate Alerts": the long window says
that it matters, the short one that it goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from typing import NamedTuple

from tailcut.observe.alerts.evidence import BUDGET_MINUTES, Evidence
from tailcut.observe.alerts.findings import Finding, Level, Severity
from tailcut.observe.alerts.likely_place import likely_place
from tailcut.observe.alerts.minute_counts import Key, MinuteCounts
from tailcut.observe.alerts.series import SLO_GOOD, SLO_REQUESTS
from tailcut.observe.latency_figures import ERRORS


class BurnWindow(NamedTuple):
    """One pair of windows, in minutes, with the burn rate that both must exceed."""

    factor: float
    long: int
    short: int
    severity: Severity


BURN_WINDOWS = (
    BurnWindow(14.4, 60, 5, "page"),
    BurnWindow(6.0, 360, 30, "page"),
    BurnWindow(1.0, BUDGET_MINUTES, 360, "ticket"),
)

_CLEAR_SHARE = 0.9
_TICKET_AFTER = 30
"""Minutes before which there must have been requests."""
_BEYOND = 2.0
"""Standard deviations (Poisson) by which the bad requests of the long window must exceed what the factor allows: a
budget that is used up exactly as planned raises no alarm half of the time."""


def windows_for(budget: float) -> list[BurnWindow]:
    """Return the windows that can fire with a budget: of one of 50 % no more than twice can be used, of 0 none."""
    return [window for window in BURN_WINDOWS if 0 < window.factor * budget < 1]


def find_burn_rates(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding per objective and severity: of the windows that are bad, those with the largest factor."""
    for model in evidence.models:
        places: dict[bool, str] = {}
        keys = evidence.counts.keys(SLO_REQUESTS, model)
        for key in keys:
            budget = 1 - float(key.label("objective"))
            for severity in ("page", "ticket"):
                windows = [each for each in windows_for(budget) if each.severity == severity]
                windows = [each for each in windows if _has_requests(evidence.counts, keys, each.short)]
                found = [_judge(evidence, key, budget, window) for window in windows]
                if not found:
                    continue
                worst = max(found, key=lambda each: (_ORDER[each[0]], each[2].factor))
                place = ""
                if worst[0] != "good":
                    errors = _is_by_errors(evidence.counts, key, keys, worst[2].short)
                    if errors not in places:  # an objective counts a shed request as bad
                        places[errors] = likely_place(evidence.counts, model, errors=errors, shed=True)
                    place = places[errors]
                yield _finding(model, key, worst, place)


def _has_requests(counts: MinuteCounts, keys: Sequence[Key], minutes: int) -> bool:
    """Whether there is anything to judge by. Objectives count the same requests: one without any is of the past."""
    return any(counts.sum(key, minutes) for key in keys)


def _is_by_errors(counts: MinuteCounts, key: Key, keys: Sequence[Key], minutes: int) -> bool:
    """Whether at least half of the bad requests of an objective were not answered: then a code says more than times."""
    failed = max((bad_requests(counts, each, minutes)[1] for each in keys if each.label("slo") == ERRORS), default=0)
    return failed > 0 and 2 * failed >= bad_requests(counts, key, minutes)[1]


_Judged = tuple[Level, float, BurnWindow, int]
_ORDER: dict[Level, int] = {"good": 0, "between": 1, "bad": 2}


def _judge(evidence: Evidence, key: Key, budget: float, window: BurnWindow) -> _Judged:
    """Return the level, the lower of the two windows' burn rates, the windows, and bad requests in the long one."""
    total, bad = bad_requests(evidence.counts, key, window.long)
    total_now, bad_now = bad_requests(evidence.counts, key, window.short)
    rate = min(_share(bad, total), _share(bad_now, total_now)) / budget
    allowed = window.factor * budget * total
    if rate <= window.factor * _CLEAR_SHARE:
        return "good", rate, window, bad
    # A ticket is about days, of which minutes after a start say nothing. A page does not wait: a new version that fails
    # at once is what it is for.
    known = window.severity == "page" or total > bad_requests(evidence.counts, key, _TICKET_AFTER)[0]
    enough = known and bad >= evidence.settings.burn_requests and bad_now >= 2
    if rate > window.factor and enough and bad > allowed + _BEYOND * sqrt(allowed):
        return "bad", rate, window, bad
    return "between", rate, window, bad


def bad_requests(counts: MinuteCounts, key: Key, minutes: int) -> tuple[int, int]:
    """Return the requests of a window, and how many of them missed the objective."""
    total = counts.sum(key, minutes)
    good = counts.sum(Key(key.model, SLO_GOOD, key.labels), minutes)
    return round(total), max(round(total - good), 0)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _finding(model: str, key: Key, judged: _Judged, place: str) -> Finding:
    level, rate, window, bad = judged
    slo, limit = key.label("slo"), key.label("limit")
    what = f"{slo} of {float(limit) * 1e3:g} ms" if limit else slo
    times = f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
    text = (
        f"the error budget of {what} burns {times} times as fast as the SLO allows, limit {window.factor:g}: "
        f"{bad} bad requests in {_time(window.long)}, and it goes on in the last {_time(window.short)}"
    )
    hint = "look at the slowest requests" if limit else "look at the log for the code of the error"
    return Finding("burn_rate", model, what, window.severity, level, rate, window.factor, "x", place, text, hint)


def _time(minutes: int) -> str:
    if minutes >= 2 * 24 * 60:
        return f"{minutes // (24 * 60)} d"
    return f"{minutes // 60} h" if minutes >= 60 else f"{minutes} min"
