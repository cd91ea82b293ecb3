"""p95 week over week: the last hour against the same hour a week ago, from the fine histograms of the history."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import NamedTuple

import numpy as np

from tailcut.observe.alerts.likely_stage import most_grown
from tailcut.observe.alerts.rules import Finding, Level
from tailcut.observe.fine_histogram import PLACES, RATIO, Counts, percentile_ns
from tailcut.observe.history import History
from tailcut.observe.latency_figures import REQUEST
from tailcut.observe.path_metrics import FEATURE_SOURCE_SECONDS

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


def find_growth(now: Mapping[str, Hour], then: Mapping[str, Hour], limit: float, least: int) -> list[Finding]:
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
        found.append(Finding("p95_growth", model, "", "ticket", level, percent, limit * 100, place, text))
    return found


def _grown_place(now: Hour, then: Hour, requests_now: int, requests_then: int) -> str:
    """Return the stage whose time per request grew most, of features with the group."""

    def per_request(found: Mapping[str, float], requests: int) -> dict[str, float]:
        return {name: value / requests for name, value in found.items()}

    stage = most_grown(per_request(now.stage_ns, requests_now), per_request(then.stage_ns, requests_then))
    group = most_grown(per_request(now.group_s, requests_now), per_request(then.group_s, requests_then))
    return f"{stage}/{group}" if stage == "features" and group else stage
