"""Rules of alerts: what fires, what stays quiet, and where it probably comes from."""

from __future__ import annotations

import numpy as np
import pytest
from tests.alerts_kit import Traffic, bad, evidence, period

from tailcut.manifest.schema.observe import Alerts as Settings
from tailcut.observe.alerts import series
from tailcut.observe.alerts.burn_rates import find_burn_rates, windows_for
from tailcut.observe.alerts.evidence import Gpu, MovedColumns
from tailcut.observe.alerts.latency_growth import compare, find_growth
from tailcut.observe.alerts.levels import MEMORY, Levels, find_leaks, fit
from tailcut.observe.alerts.minute_counts import Key, MinuteCounts
from tailcut.observe.alerts.rules import evaluate
from tailcut.observe.alerts.shares import find_failures, find_features, find_throttling

STAGES = {"features": 5.0, "infer": 8.0}


# -- p95 week over week ----------------------------------------------------------------------------------------------


def fired(stages: dict[str, float], requests: int, seed: int) -> str | None:
    """The likely place where the growth fires against a week ago; None where it does not."""
    growth = compare(
        period(stages, requests=requests, seed=seed), period(STAGES, requests=requests, seed=seed + 1), 1000
    )
    found = bad(list(find_growth({"m": growth} if growth else {}, 0.15)))
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
    now = period(STAGES | {"features": 9.0}, requests=12_000, groups={"weather": 0.009, "routes": 0.001})
    then = period(STAGES, requests=12_000, seed=1, groups={"weather": 0.004, "routes": 0.001})
    (found,) = bad(list(find_growth({"m": compare(now, then, 1000)}, 0.15)))
    assert found.place == "features/weather"
    assert "a week ago" in found.text


def test_p95_is_not_compared_with_few_requests() -> None:
    many, few = period(STAGES, requests=5_000), period(STAGES, requests=600)
    assert compare(many, few, 1000) is None
    assert compare(few, many, 1000) is None
    assert compare(many, period(STAGES, requests=5_000, blocks=2), 1000) is None, "no noise is known of two blocks"


def test_a_stage_that_few_requests_meet_is_not_named() -> None:
    now, then = period(STAGES | {"infer": 12.0}, requests=12_000), period(STAGES, requests=12_000, seed=1)
    rare = {name: counts.copy() for name, counts in now.stages.items()}
    rare["hook"] = now.stages["infer"] * 0
    rare["hook"][:, 400] = 3
    assert compare(now._replace(stages=rare), then, 1000).place == "infer"


# -- Burn rates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("long", "short", "share", "severity"),
    [(60, 30, 0.73, "page"), (360, 30, 0.31, "page"), (4320, 360, 0.052, "ticket")],
)
def test_each_pair_of_windows_fires_and_is_quiet_when_it_is_over(
    long: int, short: int, share: float, severity: str
) -> None:
    traffic = Traffic().minutes(long, requests=1000, bad=1000 * share * 1.05)
    found = bad(list(find_burn_rates(evidence(traffic.counts))))
    assert severity in {each.severity for each in found}
    traffic.minutes(short, requests=1000)
    assert not [each for each in bad(list(find_burn_rates(evidence(traffic.counts)))) if each.severity == severity]


def test_one_bad_request_at_night_pages_no_one() -> None:
    traffic = Traffic().minutes(300, requests=0).minutes(1, requests=1, bad=1)
    assert not bad(list(find_burn_rates(evidence(traffic.counts))))
    traffic.minutes(4, requests=3, bad=3)
    assert bad(list(find_burn_rates(evidence(traffic.counts)))), "thirteen of thirteen"


def test_a_budget_used_up_as_planned_raises_nothing() -> None:
    rng = np.random.default_rng(3)
    traffic = Traffic()
    for _ in range(4320):
        traffic.minutes(1, requests=20, bad=float(rng.binomial(20, 0.05)))
    assert not bad(list(find_burn_rates(evidence(traffic.counts))))


def test_windows_that_a_wide_budget_can_never_fill_are_left_out() -> None:
    assert [window.factor for window in windows_for(0.5)] == [1.0]
    assert [window.factor for window in windows_for(0.001)] == [14.4, 6.0, 1.0]
    traffic = Traffic().minutes(5, requests=100)
    for name, value in ((series.SLO_REQUESTS, 500), (series.SLO_GOOD, 400)):  # slo.errors = 0
        labels = {"slo": "errors", "objective": "1", "limit": ""}
        traffic.counts.add(traffic.minute, Key.of("m", name, labels), value)
    assert not bad(list(find_burn_rates(evidence(traffic.counts))))


def test_without_requests_nothing_is_judged_but_an_objective_of_the_past_is_over() -> None:
    traffic = Traffic().minutes(60, requests=1000, bad=900)
    assert {each.level for each in find_burn_rates(evidence(traffic.counts)) if each.severity == "page"} == {"bad"}
    silent = Traffic().minutes(60, requests=1000, bad=900).minutes(30)
    assert [each.severity for each in find_burn_rates(evidence(silent.counts))] == ["ticket"], "of the last 6 h"
    labels = {"slo": "p95", "objective": "0.95", "limit": "0.08"}
    for name in (series.SLO_REQUESTS, series.SLO_GOOD):
        silent.counts.add(silent.minute, Key.of("m", name, labels), 100)
    judged = [each for each in find_burn_rates(evidence(silent.counts)) if each.severity == "page"]
    assert [(each.subject, each.level) for each in judged] == [("p95 of 50 ms", "good"), ("p95 of 80 ms", "good")]


def test_a_burn_rate_names_the_stage_that_grew() -> None:
    traffic = Traffic().minutes(60, requests=100, features_ms=5, infer_ms=20)
    traffic.minutes(10, requests=100, bad=90, features_ms=60, infer_ms=20)
    assert {each.place for each in bad(list(find_burn_rates(evidence(traffic.counts))))} == {"features/weather"}


def test_where_requests_fail_burn_rates_name_the_group_that_fails_whatever_else_grew() -> None:
    traffic = Traffic().minutes(60, requests=100, features_ms=5)
    traffic.minutes(5, requests=100, bad=100, failed=100, features_ms=80)
    zone = {"group": "zone", "entity_type": "id"}
    traffic.counts.add(traffic.minute, Key.of("m", series.FEATURE_SOURCE_ERRORS, zone), 40)
    labels = {"slo": "errors", "objective": "0.999", "limit": ""}
    for name, value in ((series.SLO_REQUESTS, 500), (series.SLO_GOOD, 0)):
        traffic.counts.add(traffic.minute, Key.of("m", name, labels), value)
    found = bad(list(find_burn_rates(evidence(traffic.counts))))
    assert {each.subject for each in found} >= {"p95 of 50 ms", "errors"}
    assert {each.place for each in found} == {"features/zone"}


def test_of_the_windows_that_are_bad_the_one_that_burns_a_budget_fastest_is_told() -> None:
    traffic = Traffic().minutes(10, requests=1000, bad=1000)
    (page,) = [each for each in find_burn_rates(evidence(traffic.counts)) if each.severity == "page"]
    assert "limit 14.4: 10000 bad requests in 1 h, and it goes on in the last 5 min" in page.text


# -- Shares ----------------------------------------------------------------------------------------------------------


def test_errors_and_shed_requests_stand_apart() -> None:
    failing = Traffic().minutes(15, requests=100, failed=2)
    (found,) = bad(list(find_failures(evidence(failing.counts))))
    assert (found.alert, found.place) == ("errors", "features")
    assert "feature_unavailable" in found.text
    shedding = Traffic().minutes(15, requests=100, shed=2)
    (found,) = bad(list(find_failures(evidence(shedding.counts))))
    assert (found.alert, found.place) == ("shed", "queue")
    assert not bad(list(find_failures(evidence(Traffic().minutes(1, requests=99, failed=50).counts)))), "too few"
    assert not bad(list(find_failures(evidence(Traffic().minutes(15, requests=10, failed=0.5).counts)))), "seven"


def test_under_overload_errors_name_the_code_that_failed_and_burn_rates_the_queue() -> None:
    traffic = Traffic().minutes(15, requests=100, failed=5, shed=40)
    found = {each.alert: each for each in bad(list(find_failures(evidence(traffic.counts))))}
    assert (found["errors"].place, found["shed"].place) == ("features", "queue")
    assert "feature_unavailable" in found["errors"].text
    labels = {"slo": "errors", "objective": "0.99", "limit": ""}
    for name, value in ((series.SLO_REQUESTS, 1500), (series.SLO_GOOD, 825)):  # shed requests are bad ones
        traffic.counts.add(traffic.minute, Key.of("m", name, labels), value)
    burning = bad(list(find_burn_rates(evidence(traffic.counts))))
    assert {each.place for each in burning} == {"queue"}


def test_the_hit_rate_names_the_group_and_its_entity_type() -> None:
    traffic = Traffic().minutes(60, hits=95, misses=5).minutes(15, hits=60, misses=40)
    (found,) = bad(list(find_features(evidence(traffic.counts))))
    assert (found.alert, found.subject, found.place) == ("hit_rate", "weather", "features/weather")
    assert "origin+hour" in found.text
    assert "95 % in the hour before" in found.text
    new = Traffic().minutes(15, hits=60, misses=40)
    assert "it is new" in bad(list(find_features(evidence(new.counts))))[0].text
    assert not bad(list(find_features(evidence(new.counts, uptime_minutes=20)))), "caches are filling"
    assert not bad(list(find_features(evidence(Traffic().minutes(15, hits=70, misses=29).counts))))
    assert not bad(list(find_features(evidence(Traffic().minutes(15, hits=5, misses=40).counts)))), "few look-ups"


def test_stale_values_and_throttling() -> None:
    stale = Traffic().minutes(15, hits=90, misses=10, stale=6)
    assert [each.alert for each in bad(list(find_features(evidence(stale.counts))))] == ["stale"]
    counts = MinuteCounts({}, 60)
    counts.advance(10)
    counts.add(10, Key("", series.CPU_PERIODS), 1000)
    assert not bad(list(find_throttling(evidence(counts))))
    counts.add(10, Key("", series.CPU_THROTTLED), 200)
    assert [each.place for each in bad(list(find_throttling(evidence(counts))))] == ["cpu"]


def test_drift_heat_and_what_is_switched_off() -> None:
    moved = MovedColumns("m", ["age", "height"], 0.0, 0.31, 0.1)
    hot, slowed = Gpu("GPU 0", 91.0, is_slowed=False), Gpu("GPU 1", float("nan"), is_slowed=True)
    found = bad(evaluate(evidence(Traffic().counts, moved=[moved], gpus=[hot, slowed])))
    assert [each.alert for each in found] == ["gpu_hot", "gpu_hot", "drift"]
    assert "'age', 'height'" in found[2].text
    calm, unknown = MovedColumns("m", [], 0.0, 0.0, 0.1), Gpu("GPU 1", float("nan"), is_slowed=False)
    judged = [*evaluate(evidence(Traffic().counts, moved=[calm], gpus=[hot, unknown]))]
    assert [(each.alert, each.level) for each in judged] == [("gpu_hot", "bad"), ("drift", "good")]
    settings = Settings(off=("drift", "gpu_hot"))
    assert not evaluate(evidence(Traffic().counts, settings, moved=[moved], gpus=[hot]))


# -- Leaks -----------------------------------------------------------------------------------------------------------

MIB = 1024.0**2


def leak_at(memory_mib: object, until_s: int, limit_mib: float = float("inf")) -> float | None:
    """When a memory that is a function of seconds is alarmed, looked at once a minute; None if it is not."""
    levels = Levels(MEMORY, limit_mib * MIB)
    rng = np.random.default_rng(5)
    for at_s in range(0, until_s, 10):
        levels.add(at_s, (memory_mib(at_s) + rng.normal(0, 1.0)) * MIB)
        if at_s % 60 == 0 and bad(list(find_leaks([levels], 0.25))):
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
        lambda s: 150 + 20 * (s // 10 % 2),  # a sawtooth
        lambda s: 150 + 0.03 * s,  # 18 MiB in ten minutes
    ],
)
def test_no_leak_is_alarmed_in_a_soak_of_ten_minutes(memory_mib: object) -> None:
    assert leak_at(memory_mib, 601) is None


def test_a_slow_growth_is_alarmed_where_a_limit_is_near() -> None:
    assert leak_at(lambda s: 4000 + 0.02 * s, 3 * 3600) is None, "5 % in three hours, and no limit"
    at_s = leak_at(lambda s: 4000 + 0.02 * s, 3 * 3600, limit_mib=5000)
    assert at_s is not None, "reached within a day"
    assert at_s >= 1500


@pytest.mark.parametrize("percent_per_hour", [2, 5, 10, 20])
def test_a_leak_that_takes_hours_is_alarmed_without_a_limit(percent_per_hour: int) -> None:
    """Samples of the last two hours are close together, older ones are not: a line must stay a line."""
    at_s = leak_at(lambda s: 1024 * (1 + percent_per_hour / 100 * s / 3600), 30 * 3600)
    assert at_s is not None
    assert 0.25 <= percent_per_hour / 100 * at_s / 3600 < 0.35


def test_a_level_that_settled_hours_ago_is_no_leak() -> None:
    assert leak_at(lambda s: 1024 * (1 + 0.24 * min(s / 7200, 1)), 30 * 3600) is None


def test_samples_with_a_gap_are_fitted() -> None:
    """As after a machine that slept."""
    times = np.concatenate([np.arange(100.0, 400, 10), np.arange(7000.0, 7300, 10)])
    slope = fit(times, 2 * times)
    assert (slope.per_s, slope.is_steady) == (pytest.approx(2), True)


def test_samples_of_a_day_stay_few() -> None:
    levels = Levels(MEMORY)
    for at_s in range(0, 2 * 86_400, 10):
        levels.add(at_s, 1e8)
    assert len(levels._times) < 1600
    assert not bad(list(find_leaks([levels], 0.25)))
