"""build.verdicts: faster or not, the SLO, cost and choice, from measured rounds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailcut.build.verdicts import Choice, Cost, SpeedVerdict, choose, cost, speed, speed_refusal
from tailcut.core.slo import LatencyObjective

SLO = LatencyObjective(share=0.95, limit_s=0.025)
REFERENCE = [10.0, 11.0, 10.5, 9.8, 10.2, 10.9, 10.1]


def judged(ratio: float, noise: float = 0.0) -> SpeedVerdict:
    signs = [1, -1, 1, -1, 1, -1, 1]
    rounds = [each * ratio * (1 + noise * sign) for each, sign in zip(REFERENCE, signs, strict=True)]
    return speed("onnx", rounds, REFERENCE, [0.0] * len(rounds), SLO, 0.001)


def test_a_variant_that_is_faster_in_every_round_is_faster() -> None:
    verdict = judged(0.8, noise=0.05)
    assert verdict.faster
    assert verdict.meets_slo
    assert verdict.percentile == "p95"
    assert verdict.ratio[1] < 0.8 < verdict.ratio[2] + 0.02
    assert speed_refusal(verdict) == ""


def test_a_variant_that_is_not_shown_to_be_faster_is_refused_with_its_interval() -> None:
    verdict = judged(0.99, noise=0.2)
    assert not verdict.faster
    refusal = speed_refusal(verdict)
    assert refusal.startswith("not faster here beyond doubt: p95 ")
    assert refusal.endswith("more or longer rounds may show it (build.rounds, build.round)")
    assert f"of onnx (90 % interval {verdict.ratio[1]:.2f}-{verdict.ratio[2]:.2f})" in refusal


def test_a_slower_variant_is_refused_without_a_hope_that_more_rounds_would_help() -> None:
    assert speed_refusal(judged(1.3)).endswith(")")
    assert speed_refusal(judged(1.3)).startswith("not faster here: p95 ")


def test_one_round_shows_nothing() -> None:
    verdict = speed("onnx", [1.0], [100.0], [0.0], SLO, 0.001)
    assert not verdict.faster
    assert not verdict.meets_slo


@settings(max_examples=25, deadline=None)
@given(st.floats(1.0, 5.0), st.lists(st.floats(0.1, 1e3), min_size=3, max_size=9))
def test_slower_in_every_round_is_never_faster(ratio: float, reference: list[float]) -> None:
    verdict = speed("onnx", [each * ratio for each in reference], reference, [0.0] * len(reference), SLO, 0.0)
    assert not verdict.faster
    assert verdict.ratio[1] <= verdict.ratio[0] + 1e-9
    assert verdict.ratio[0] <= verdict.ratio[2] + 1e-9


def test_errors_above_the_slo_miss_it_however_quick_the_answers_are() -> None:
    verdict = speed("onnx", [1.0] * 3, [2.0] * 3, [0.0, 0.01, 0.0], SLO, 0.001)
    assert verdict.faster
    assert not verdict.meets_slo


def test_cost_is_of_a_million_requests() -> None:
    found = cost([0.5, 0.7, 0.6], gpu_ms=2.0, core_hour=0.036, gpu_hour=3.6, currency="EUR")
    assert found.cpu_s == (pytest.approx(600.0), 500.0, 700.0)
    assert found.gpu_s == 2000.0
    assert found.money == pytest.approx(600 * 0.036 / 3600 + 2000 * 3.6 / 3600)
    without = cost([0.5], None, 0.0, 3.6, "EUR")
    assert (without.gpu_s, without.money) == (None, 0.0)
    assert cost([0.5], None, 0.0, 0.0, "EUR").currency == ""


def pick(ratios: dict[str, float], cpu_s: dict[str, float], refused: dict[str, str], limit_s: float) -> Choice | None:
    slo = LatencyObjective(share=0.95, limit_s=limit_s)
    verdicts = {
        name: speed("torch", [each * ratio for each in REFERENCE], REFERENCE, [0.0] * 7, slo, 0.001)
        for name, ratio in ratios.items()
    }
    costs = {name: Cost(cpu_s=(value, value, value)) for name, value in cpu_s.items()}
    return choose(verdicts, costs, refused, slo, 200.0)


def test_the_cheapest_that_meets_the_slo_and_passed_is_chosen() -> None:
    ratios = {"torch": 1.0, "onnx": 0.5, "openvino": 0.4, "int8": 0.1}
    cpu_s = {"torch": 900.0, "onnx": 300.0, "openvino": 400.0, "int8": 100.0}
    chosen = pick(ratios, cpu_s, {"int8": "auc fell"}, 0.025)
    assert chosen is not None
    assert (chosen.variant, chosen.meets_slo) == ("onnx", True)
    assert chosen.why == "the cheapest that passed and meets p95 <= 25 ms at 200/s"


def test_of_variants_whose_costs_the_rounds_cannot_tell_apart_the_fastest_is_chosen() -> None:
    def chosen(second: list[float]) -> Choice | None:
        slo = LatencyObjective(share=0.95, limit_s=0.1)
        timed = {"onnx": 20.0, "openvino": 10.0, "torch": 50.0}
        verdicts = {name: speed("torch", [ms] * 4, [50.0] * 4, [0.0] * 4, slo, 0.001) for name, ms in timed.items()}
        rounds = {"onnx": [0.50, 0.52, 0.48, 0.50], "openvino": second, "torch": [0.9, 0.9, 0.9, 0.91]}
        costs = {name: cost(each, None, 0.03, 0.0, "EUR") for name, each in rounds.items()}
        return choose(verdicts, costs, {}, slo, 200.0)

    alike = chosen([0.51, 0.50, 0.50, 0.51])
    assert alike is not None
    assert alike.variant == "openvino"
    assert alike.why.startswith("the fastest of onnx, openvino, which passed, meet p95 <= 100 ms at 200/s and cost")
    dearer = chosen([0.56, 0.57, 0.54, 0.55])
    assert dearer is not None
    assert dearer.variant == "onnx"
    assert dearer.why == "the cheapest that passed and meets p95 <= 100 ms at 200/s"


def test_where_none_meets_the_slo_the_fastest_that_passed_is_chosen_and_says_so() -> None:
    chosen = pick({"torch": 1.0, "onnx": 0.5}, {"torch": 1.0, "onnx": 2.0}, {}, 0.001)
    assert chosen == Choice(
        variant="onnx", why="the fastest that passed; none meets p95 <= 1 ms at 200/s", meets_slo=False
    )
    assert pick({"torch": 1.0}, {"torch": 1.0}, {"torch": "not measured"}, 1.0) is None
