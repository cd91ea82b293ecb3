from __future__ import annotations

import pytest

from tailcut.common.slo import Tally, hopeless, judge, parse_duration_s, parse_objectives
from tailcut.errors import LoadTestError


def test_objectives_are_read_as_written() -> None:
    slo = parse_objectives("p95=200ms, p99.9=1.5s ,max=2s,errors=0.1%")
    assert [(one.name, one.limit_s) for one in slo.latency] == [("p95", 0.2), ("p99.9", 1.5), ("max", 2.0)]
    assert slo.errors == pytest.approx(0.001)
    assert str(slo) == "p95=200ms,p99.9=1500ms,max=2000ms,errors=0.1%"
    assert slo.loosest_ns == 2_000_000_000


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("p95", "has no value"),
        ("p95=1s,p95=2s", "given twice"),
        ("p0=1s", "unknown objective 'p0'"),
        ("p101=1s", "unknown objective"),
        ("latency=1s", "unknown objective"),
        ("p95=200", "has no unit"),
        ("p95=0ms", "the limit of p95 is 0ms; it must be above 0"),
        ("errors=1%,max=-5ms", "the limit of max is -5ms; it must be above 0"),
        ("p95=-5", "has no unit"),
        ("errors=x", "not a share"),
        ("errors=101%", "more than 100%"),
        ("errors=2", "not between 0 and 1"),
    ],
)
def test_wrong_objectives_are_refused(text: str, says: str) -> None:
    with pytest.raises(LoadTestError, match=says) as caught:
        parse_objectives(text)
    assert caught.value.hint


def test_no_failures_at_all_is_an_objective() -> None:
    assert parse_objectives("errors=0%").errors == 0.0


def test_units_are_those_of_the_manifest() -> None:
    texts = ("250us", "15ms", "1.5s", "5m", "2h", "1d")
    assert [parse_duration_s(text) for text in texts] == [250e-6, 0.015, 1.5, 300, 7200, 86400]
    assert parse_objectives("errors=0.1%") == parse_objectives("errors=0.001")


def test_a_duration_without_a_unit_is_refused() -> None:
    with pytest.raises(LoadTestError, match='"5" has no unit; write "5s" or "5ms"') as caught:
        parse_duration_s("5")
    assert caught.value.hint


def test_a_verdict_says_which_objective_the_value_and_the_limit() -> None:
    slo = parse_objectives("p95=200ms,errors=1%")
    latency, errors = judge(slo, {"p95": 212.0}, failed=3, count=1000)
    assert not latency.met
    assert str(latency) == "p95 MISSED: 212 ms, limit 200 ms"
    assert errors.met
    assert str(errors) == "errors met: 0.3 %, limit 1 % (3 of 1000)"


def test_a_percentile_of_few_samples_says_so() -> None:
    (finding,) = judge(parse_objectives("p99=1s"), {"p99": 5.0}, failed=0, count=1999)
    assert finding.met
    assert "few samples: 1999; use at least 2000" in finding.note


def test_no_answers_miss_every_objective() -> None:
    findings = judge(parse_objectives("p50=1s,errors=100%"), {"p50": None}, failed=0, count=0)
    assert [finding.met for finding in findings] == [False, False]


def test_a_run_is_hopeless_only_once_it_cannot_be_saved() -> None:
    slo = parse_objectives("p95=10ms,errors=1%")
    assert hopeless(slo, Tally(planned=100, failed=1, late=[5])) == ""
    assert hopeless(slo, Tally(planned=100, failed=1, late=[6])).startswith("p95 (limit 10 ms): 6 of 100")
    assert hopeless(slo, Tally(planned=100, failed=2, late=[0])).startswith("errors (limit 1 %): 2 of 100")
