"""build.verdicts: faster, cheaper or neither, the SLO, cost and choice, from what the rounds showed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.builder.speed.verdicts import MARGIN, choose, cost, outcome, ratio_of, speed_refusal
from tailcut.common.slo import LatencyObjective
from tailcut.gate.sequential import NOTHING, Interval
from tailcut.registry.evidence import Choice, Cost, SpeedOutcome, SpeedVerdict, Three

RATIOS = st.tuples(*[st.floats(0.1, 10.0)] * 3).map(sorted).map(tuple)


def logs(low: float, high: float) -> Interval:
    return Interval(math.log((low * high) ** 0.5), math.log(low), math.log(high))


@pytest.mark.parametrize(
    ("latency", "cpu", "expected"),
    [
        ((0.7, 0.99), (0.9, 1.2), "faster"),
        ((0.7, 0.99), (1.5, 1.6), "faster"),
        ((0.8, 1.08), (0.4, 0.5), "cheaper"),
        ((0.8, 1.12), (0.4, 0.5), "open"),  # it may be slower than the margin
        ((1.12, 1.3), (0.4, 0.5), "no"),
        ((0.8, 1.08), (0.93, 0.97), "open"),  # two processes of one program differ by as much
        ((0.92, 1.08), (0.97, 1.02), "no"),
        ((0.88, 1.08), (0.97, 1.02), "open"),
        ((1.02, 1.3), (0.8, 1.02), "open"),
    ],
)
def test_a_variant_passes_by_its_latency_or_by_its_cpu_time(
    latency: tuple[float, float], cpu: tuple[float, float], expected: SpeedOutcome
) -> None:
    assert outcome(logs(*latency), logs(*cpu)) == expected


def test_cpu_time_is_no_evidence_where_a_gpu_does_the_work() -> None:
    assert outcome(logs(0.8, 1.08), None) == "open"
    assert outcome(logs(0.95, 1.08), None) == "no"
    assert outcome(NOTHING, None) == "open"


@given(RATIOS, RATIOS)
def test_what_passes_is_shown_not_to_be_slower_than_the_margin(latency: Three, cpu: Three) -> None:
    found = outcome(Interval(*map(math.log, latency)), Interval(*map(math.log, cpu)))
    if found in ("faster", "cheaper"):
        assert latency[2] < MARGIN
    if latency[0] > MARGIN:
        assert found == "no"


def judged(
    ratio: Three,
    cpu: Three | None = (1.0, 0.98, 1.02),
    kind: SpeedOutcome = "open",
    *,
    ms: float = 10.0,
    meets: bool = True,
) -> SpeedVerdict:
    return SpeedVerdict(
        reference="torch",
        percentile="p95",
        latency_ms=(ms, ms * 0.9, ms * 1.1),
        ratio=ratio,
        cpu_ratio=cpu,
        outcome=kind,
        meets_slo=meets,
        errors=0.0,
        rounds=20,
        stopped="300 s of load were used (build.load_limit)",
    )


def test_what_is_not_proven_says_what_it_seems_to_be_and_why_it_ended() -> None:
    assert speed_refusal(judged((0.75, 0.42, 1.33))) == (
        "perhaps faster (0.75), not proven: p95 10 ms under load, 0.75 of torch (95 % interval 0.42-1.33), "
        "CPU time 1.00 (0.98-1.02) in 20 rounds; 300 s of load were used (build.load_limit)"
    )
    assert speed_refusal(judged((1.05, 0.9, 1.2), (0.43, 0.4, 0.5))).startswith(
        "perhaps cheaper (CPU time 0.43), not proven: "
    )
    assert speed_refusal(judged((1.05, 0.9, 1.2), None)).startswith("perhaps not slower (1.05), not proven: ")


def test_what_is_shown_not_to_be_faster_is_said_without_hope() -> None:
    assert speed_refusal(judged((1.5, 1.2, 1.9), None, "no")) == (
        "slower here: p95 10 ms under load, 1.50 of torch (95 % interval 1.20-1.90)"
    )
    assert speed_refusal(judged((1.0, 0.95, 1.05), None, "no")).startswith("not faster here: ")
    assert speed_refusal(judged((1.0, 0.0, 1e300), None, "no")).endswith("(95 % interval 0.00 or more)")


@pytest.mark.parametrize("kind", ["faster", "cheaper"])
def test_what_passed_is_not_refused(kind: SpeedOutcome) -> None:
    assert speed_refusal(judged((0.75, 0.6, 0.9), kind=kind)) == ""


def test_ratios_without_an_end_stay_finite() -> None:
    assert ratio_of(Interval(0.0, -math.inf, math.inf)) == (1.0, 0.0, 1e300)


def test_cost_is_of_a_million_requests() -> None:
    found = cost([0.5, 0.7, 0.6], gpu_ms=2.0, core_hour=0.036, gpu_hour=3.6, currency="EUR")
    assert found.cpu_s == (pytest.approx(600.0), 500.0, 700.0)
    assert found.gpu_s == 2000.0
    assert found.money == pytest.approx(600 * 0.036 / 3600 + 2000 * 3.6 / 3600)
    without = cost([0.5], None, 0.0, 3.6, "EUR")
    assert (without.gpu_s, without.money) == (None, 0.0)
    assert cost([0.5], None, 0.0, 0.0, "EUR").currency == ""


def pick(ms: dict[str, float], cpu_s: dict[str, float], refused: dict[str, str], limit_s: float) -> Choice | None:
    verdicts = {
        name: judged((1.0, 1.0, 1.0), kind="faster", ms=each, meets=each <= limit_s * 1e3) for name, each in ms.items()
    }
    costs = {name: Cost(cpu_s=(value, value, value)) for name, value in cpu_s.items()}
    slo = LatencyObjective(share=0.95, limit_s=limit_s)
    return choose(verdicts, costs, refused, slo, 200.0, lambda name, other: cpu_s[name] > 1.05 * cpu_s[other])


def test_the_cheapest_that_meets_the_slo_and_passed_is_chosen() -> None:
    ms = {"torch": 10.0, "onnx": 5.0, "openvino": 4.0, "int8": 1.0}
    cpu_s = {"torch": 900.0, "onnx": 300.0, "openvino": 400.0, "int8": 100.0}
    chosen = pick(ms, cpu_s, {"int8": "auc fell"}, 0.025)
    assert chosen is not None
    assert (chosen.variant, chosen.meets_slo) == ("onnx", True)
    assert chosen.why == "the cheapest that passed and meets p95 <= 25 ms at 200/s"


def test_of_variants_whose_costs_the_rounds_cannot_tell_apart_the_fastest_is_chosen() -> None:
    alike = pick({"onnx": 20.0, "openvino": 10.0}, {"onnx": 500.0, "openvino": 510.0}, {}, 0.1)
    assert alike is not None
    assert alike.variant == "openvino"
    assert alike.why.startswith("the fastest of onnx, openvino, which passed, meet p95 <= 100 ms at 200/s and cost")
    dearer = pick({"onnx": 20.0, "openvino": 10.0}, {"onnx": 500.0, "openvino": 560.0}, {}, 0.1)
    assert dearer is not None
    assert (dearer.variant, dearer.why) == ("onnx", "the cheapest that passed and meets p95 <= 100 ms at 200/s")


def test_where_none_meets_the_slo_the_fastest_that_passed_is_chosen_and_says_so() -> None:
    chosen = pick({"torch": 10.0, "onnx": 5.0}, {"torch": 1.0, "onnx": 2.0}, {}, 0.001)
    assert chosen == Choice(
        variant="onnx", why="the fastest that passed; none meets p95 <= 1 ms at 200/s", meets_slo=False
    )
    assert pick({"torch": 10.0}, {"torch": 1.0}, {"torch": "not measured"}, 1.0) is None
