"""Rules of alerts that the server evaluates: what fires, what stays quiet, and where it probably comes from."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from tests.alerts_kit import P95, Traffic, bad, histogram

from tailcut.manifest.schema.observe import Alerts as Settings
from tailcut.observe.alerts.evaluation import (
    Hour,
    MemoryGrowth,
    MovedColumns,
    find_burn_rates,
    find_growth,
    find_moved,
    find_shares,
    most_grown,
)
from tailcut.observe.alerts.rules import RULES, AlertFinding, windows_for
from tailcut.observe.history import Series
from tailcut.observe.latency_figures import SLO_GOOD, SLO_REQUESTS
from tailcut.observe.path_metrics import FEATURE_SOURCE_ERRORS

STAGES = {"features": 5.0, "infer": 8.0}
ERRORS = {"slo": "errors", "objective": "0.999", "limit": ""}


def hour(medians_ms: Mapping[str, float], requests: int, seed: int, groups: Mapping[str, float] = {}) -> Hour:
    """An hour whose stages take log-normal times with these medians."""
    rng = np.random.default_rng(seed)
    times = {name: median * rng.lognormal(0, 0.4, requests) for name, median in medians_ms.items()}
    return Hour(
        histogram(sum(times.values())), {name: float(ms.sum()) * 1e6 for name, ms in times.items()}, dict(groups)
    )


def growth(now: Hour, then: Hour) -> list[AlertFinding]:
    """What is found of two hours of one model."""
    return find_growth({"m": now}, {"m": then}, 0.15, 1000)


def burning(traffic: Traffic) -> list[AlertFinding]:
    """All findings on burn rates."""
    return list(find_burn_rates(Settings(), traffic.counts, ["m"]))


def shares(traffic: Traffic, uptime: int = 1440) -> list[AlertFinding]:
    """Findings on shares that are bad."""
    return bad(list(find_shares(Settings(), traffic.counts, ["m"], uptime)))


def add(traffic: Traffic, labels: Mapping[str, str], requests: float, good: float) -> None:
    """Count requests of an objective."""
    for metric, value in ((SLO_REQUESTS, requests), (SLO_GOOD, good)):
        traffic.counts.add(Series.of("counter", "m", metric.series[0], labels), value)


# -- p95 week over week ----------------------------------------------------------------------------------------------


def fired(stages: dict[str, float], requests: int, seed: int) -> str | None:
    """The likely place where the growth fires against a week ago; None where it does not."""
    found = bad(growth(hour(stages, requests, seed), hour(STAGES, requests, seed + 1)))
    return found[0].place if found else None


def test_p95_fires_at_15_percent_and_not_at_8() -> None:
    def times(factor: float) -> dict[str, float]:
        return {name: ms * factor for name, ms in STAGES.items()}

    seeds = range(0, 40, 2)
    assert all(fired(times(1.15), 60_000, seed) for seed in seeds)
    assert not any(fired(times(1.08), 60_000, seed) for seed in seeds)
    assert not any(fired(times(1.08), 2_000, seed) for seed in seeds)
    assert not any(fired(times(1.0), 1_200, seed) for seed in seeds), "noise of few requests"


def test_p95_names_the_stage_and_the_group_that_grew() -> None:
    assert fired(STAGES | {"infer": 11.0}, 60_000, 1) == "infer"
    now = hour(STAGES | {"features": 9.0}, 12_000, 0, {"weather": 0.009, "routes": 0.001})
    then = hour(STAGES, 12_000, 1, {"weather": 0.004, "routes": 0.001})
    (found,) = bad(growth(now, then))
    assert found.place == "features/weather"
    assert "a week ago" in found.text


def test_p95_is_not_compared_with_few_requests() -> None:
    many, few = hour(STAGES, 5_000, 0), hour(STAGES, 600, 0)
    assert growth(many, few) == growth(few, many) == []


def test_p95_is_not_alarmed_where_few_requests_vary_much() -> None:
    now, then = (histogram(np.random.default_rng(0).lognormal(0, 1.0, 1_200) * ms) for ms in (1.25, 1.0))
    assert not bad(growth(Hour(now, {}, {}), Hour(then, {}, {})))
    assert bad(growth(Hour(50 * now, {}, {}), Hour(50 * then, {}, {}))), "the same of many requests"


def test_a_stage_that_few_requests_meet_is_not_named() -> None:
    now, then = hour(STAGES | {"infer": 12.0}, 12_000, 0), hour(STAGES, 12_000, 1)
    now.stage_ns["hook"] = 30 * 1e9
    (found,) = growth(now, then)
    assert found.place == "infer"


# -- Burn rates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("long", "short", "share", "severity"),
    [(60, 30, 0.73, "page"), (360, 30, 0.31, "page"), (4320, 360, 0.052, "ticket")],
)
def test_each_pair_of_windows_fires_and_is_quiet_when_it_is_over(
    long: int, short: int, share: float, severity: str
) -> None:
    traffic = Traffic().minutes(long, requests=1000, bad=1000 * share * 1.05)
    assert severity in {each.severity for each in bad(burning(traffic))}
    traffic.minutes(short, requests=1000)
    assert severity not in {each.severity for each in bad(burning(traffic))}


def test_an_alarm_needs_both_windows_to_burn() -> None:
    traffic = Traffic().minutes(4320, requests=1000, bad=100)  # twice as fast as the SLO allows
    assert bad(burning(traffic))
    traffic.minutes(360, requests=1000, bad=40)  # slower than it allows
    assert not bad(burning(traffic))


def test_one_bad_request_at_night_pages_no_one() -> None:
    traffic = Traffic().minutes(300, requests=0).minutes(1, requests=1, bad=1)
    assert not bad(burning(traffic))
    traffic.minutes(4, requests=3, bad=3)
    assert bad(burning(traffic)), "thirteen of thirteen"


@pytest.mark.parametrize(("bad_share", "fires"), [(0.0503, False), (0.0525, True)])
def test_more_than_chance_explains_must_be_bad(bad_share: float, fires: bool) -> None:
    traffic = Traffic().minutes(4320, requests=20, bad=20 * bad_share)
    assert bool(bad(burning(traffic))) == fires, "a budget that is used up as planned raises nothing"


@pytest.mark.parametrize(("times", "level"), [(1.05, "bad"), (0.85, "between"), (0.75, "good")])
def test_a_burn_rate_is_good_only_clearly_below_its_limit(times: float, level: str) -> None:
    traffic = Traffic().minutes(360, requests=1000, bad=1000 * 0.05 * times)
    assert [each.level for each in burning(traffic) if each.severity == "ticket"] == [level]


def test_an_outage_pages_whatever_the_order_of_the_objectives() -> None:
    traffic = Traffic()
    for objective in ("0.5", "0.95"):  # the budget of p50 admits a ticket only
        for _ in range(60):
            traffic.counts.begin_minute()
            add(traffic, P95 | {"slo": "p", "objective": objective}, 100, 0)
    assert [(each.severity, each.level) for each in burning(traffic)] == [("page", "bad"), ("ticket", "between")]


def test_a_start_that_fails_pages_and_is_no_ticket_of_days_yet() -> None:
    traffic = Traffic().minutes(2, requests=100, bad=11)  # more than the ticket allows, less than a page
    assert not bad(burning(traffic))
    assert bad(burning(traffic.minutes(30, requests=100, bad=11)))
    assert {each.severity for each in bad(burning(Traffic().minutes(2, requests=100, bad=100)))} == {"page"}


def test_windows_that_a_wide_budget_can_never_fill_are_left_out() -> None:
    assert [window.factor for window in windows_for(0.5)] == [1.0]
    assert [window.factor for window in windows_for(0.001)] == [14.4, 6.0, 1.0]
    traffic = Traffic().minutes(5, requests=100)
    add(traffic, ERRORS | {"objective": "1"}, 500, 400)  # slo.errors = 0
    assert not bad(burning(traffic))


def test_without_requests_nothing_is_judged_but_an_objective_of_the_past_is_over() -> None:
    traffic = Traffic().minutes(60, requests=1000, bad=900)
    assert {each.level for each in burning(traffic) if each.severity == "page"} == {"bad"}
    silent = Traffic().minutes(60, requests=1000, bad=900).minutes(30)
    assert [each.severity for each in burning(silent)] == ["ticket"], "of the last 6 h"
    add(silent, P95 | {"limit": "0.08"}, 100, 100)
    (page,) = [each for each in burning(silent) if each.severity == "page"]
    assert (page.level, "p95 of 80 ms" in page.text) == ("good", True)


def test_a_burn_rate_names_the_stage_that_grew() -> None:
    traffic = Traffic().minutes(60, requests=100, features_ms=5, infer_ms=20)
    traffic.minutes(10, requests=100, bad=90, features_ms=60, infer_ms=20)
    assert {each.place for each in bad(burning(traffic))} == {"features/weather"}


def test_a_burn_rate_names_the_stage_that_grew_where_few_of_the_bad_requests_failed() -> None:
    traffic = Traffic().minutes(60, requests=100, features_ms=5, infer_ms=20)
    traffic.minutes(10, requests=100, bad=90, failed=5, features_ms=5, infer_ms=60)
    assert {each.place for each in bad(burning(traffic))} == {"infer"}


def test_where_nothing_grew_the_largest_is_named() -> None:
    before = {"queue": 1.0, "infer": 20.0}
    assert most_grown({"queue": 1.9, "infer": 20.0}, before) == "infer", "4 % of the whole"
    assert most_grown({"queue": 2.5, "infer": 20.0}, before) == "queue"


def test_where_requests_fail_burn_rates_name_the_group_that_fails_whatever_else_grew() -> None:
    traffic = Traffic().minutes(60, requests=100, features_ms=5)
    traffic.minutes(5, requests=100, bad=100, failed=100, features_ms=80)
    traffic.counts.add(
        Series.of("counter", "m", FEATURE_SOURCE_ERRORS.series[0], {"group": "zone", "entity_type": "id"}), 40
    )
    add(traffic, ERRORS, 500, 0)
    (found,) = bad(burning(traffic))
    assert found.place == "features/zone"


def test_of_the_windows_that_are_bad_the_one_that_burns_a_budget_fastest_is_told_and_the_ticket_waits() -> None:
    traffic = Traffic().minutes(40, requests=1000, bad=1000)
    found = burning(traffic)
    assert [(each.severity, each.level) for each in found] == [("page", "bad"), ("ticket", "between")]
    assert "limit 14.4: 40000 bad requests in 1 h, and it goes on in the last 5 min" in found[0].text


# -- Shares ----------------------------------------------------------------------------------------------------------


def test_errors_fire_and_shed_requests_are_none() -> None:
    (found,) = shares(Traffic().minutes(15, requests=100, failed=2))
    assert (found.alert, found.place) == ("errors", "features")
    assert "feature_unavailable" in found.text
    assert not shares(Traffic().minutes(15, requests=100, shed=2)), "the exported rules have shed requests"
    assert not shares(Traffic().minutes(1, requests=99, failed=50)), "too few"
    assert not shares(Traffic().minutes(15, requests=10, failed=0.5)), "seven"


def test_under_overload_errors_name_the_code_that_failed_and_burn_rates_the_queue() -> None:
    traffic = Traffic().minutes(15, requests=100, failed=5, shed=40)
    (found,) = shares(traffic)
    assert found.place == "features"
    assert "feature_unavailable" in found.text
    add(traffic, ERRORS | {"objective": "0.99"}, 1500, 825)  # shed requests are bad ones
    assert {each.place for each in bad(burning(traffic))} == {"queue"}


def test_the_hit_rate_names_the_group_and_its_entity_type() -> None:
    traffic = Traffic().minutes(60, hits=95, misses=5).minutes(15, hits=60, misses=40)
    (found,) = shares(traffic)
    assert (found.alert, found.subject, found.place) == ("hit_rate", "weather", "features/weather")
    assert "60 % of 1500 look-ups of group 'weather' (entity type origin+hour) hit, limit 70 %" in found.text
    assert not shares(Traffic().minutes(15, hits=60, misses=40), uptime=20), "caches are filling"
    assert not shares(Traffic().minutes(15, hits=70, misses=29))
    assert not shares(Traffic().minutes(15, hits=5, misses=40)), "few look-ups"


def test_a_share_between_the_limit_and_clear_of_it_neither_begins_nor_ends_an_alarm() -> None:
    def level(hits: int) -> str:
        traffic = Traffic().minutes(15, hits=hits, misses=100 - hits)
        (found,) = [each for each in find_shares(Settings(), traffic.counts, ["m"], 99) if each.alert == "hit_rate"]
        return found.level

    assert [level(hits) for hits in (69, 71, 75, 77)] == ["bad", "between", "between", "good"]


def test_stale_values() -> None:
    assert [each.alert for each in shares(Traffic().minutes(15, hits=90, misses=10, stale=6))] == ["stale"]


def test_drift() -> None:
    (found,) = find_moved([MovedColumns("m", ["age", "height"], 0.31, 0.1)])
    assert (found.level, found.place) == ("bad", "columns/age")
    assert "'age', 'height'" in found.text
    (calm,) = find_moved([MovedColumns("m", [], 0.0, 0.1)])
    assert calm.level == "good"


def test_every_alert_that_can_be_switched_off_is_a_row_of_the_table() -> None:
    in_server = [rule.alert for rule in RULES if rule.in_server]
    assert in_server == ["burn_rate", "errors", "p95_growth", "hit_rate", "stale", "drift", "memory_leak"]
    for rule in RULES:
        assert Settings(off=(rule.alert,))


# -- Memory ----------------------------------------------------------------------------------------------------------

MIB = 1024.0**2


def leak_at(memory_mib: object, until_s: int, limit_mib: float = float("inf")) -> float | None:
    """When a memory that is a function of seconds is alarmed, sampled once a minute; None if it is not."""
    memory = MemoryGrowth(limit_mib * MIB)
    rng = np.random.default_rng(5)
    for at_s in range(60, until_s, 60):
        memory.add((memory_mib(at_s) + rng.normal(0, 1.0)) * MIB)
        found = memory.find(0.25)
        if found is not None and found.level == "bad":
            return at_s
    return None


@pytest.mark.parametrize("rate", [20, 50, 100, 200])
def test_a_leak_of_1_mb_per_1000_requests_is_alarmed_before_memory_has_doubled(rate: int) -> None:
    at_s = leak_at(lambda s: 150 + rate * s / 1000, 40_000)
    assert at_s is not None
    assert at_s * rate / 1000 < 150


@pytest.mark.parametrize(
    "memory_mib",
    [
        lambda s: 150.0,
        lambda s: 150 + 90 * (1 - np.exp(-s / 120)),  # caches and arenas that fill up
        lambda s: 150 + (60 if s > 300 else 0),  # another variant is loaded
        lambda s: 150 + 20 * (s // 60 % 2),  # a sawtooth
        lambda s: 150 + 0.03 * s,  # 18 MiB in ten minutes
    ],
)
def test_no_leak_is_alarmed_in_a_soak_of_ten_minutes(memory_mib: object) -> None:
    assert leak_at(memory_mib, 601) is None


def test_a_slow_growth_is_alarmed_where_a_limit_is_near() -> None:
    assert leak_at(lambda s: 4000 + 0.06 * s, 3 * 3600) is None, "16 % in three hours, and no limit"
    at_s = leak_at(lambda s: 4000 + 0.06 * s, 3 * 3600, limit_mib=5000)
    assert at_s == 1500, "reached within a day, which fewer minutes cannot tell"


@pytest.mark.parametrize("percent_per_hour", [2, 5, 10, 20])
def test_a_leak_that_takes_hours_is_alarmed_without_a_limit(percent_per_hour: int) -> None:
    at_s = leak_at(lambda s: 1024 * (1 + percent_per_hour / 100 * s / 3600), 30 * 3600)
    assert at_s is not None
    assert 0.25 <= percent_per_hour / 100 * at_s / 3600 < 0.35


def test_a_level_that_settled_hours_ago_is_no_leak() -> None:
    assert leak_at(lambda s: 1024 * (1 + 0.24 * min(s / 7200, 1)), 30 * 3600) is None


def test_samples_of_a_day_stay_few() -> None:
    memory = MemoryGrowth(float("inf"))
    for _ in range(2 * 24 * 60):
        memory.add(1e8)
    assert len(memory._samples) < 1600
    found = memory.find(0.25)
    assert found is not None
    assert found.level == "good"
