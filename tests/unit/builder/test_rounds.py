"""build.rounds: who is measured next, which rounds count, and when there are enough. No server, no waiting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailcut.builder.speed.pairs import UNSEEN, look, undisturbed
from tailcut.builder.speed.rounds import Entrant, Rounds, RoundTerms, play
from tailcut.builder.speed.verdicts import ERROR, speed_refusal
from tailcut.common.slo import LatencyObjective
from tailcut.errors import BuildError
from tailcut.gate.sequential import LEAST, interval, schedule
from tailcut.manifest import CostSettings as Prices
from tailcut.registry.evidence import Round

WOBBLE = [1.0, 1.15, 0.9, 1.05, 0.86, 1.1, 0.94]
ROUND_S = 3.5


class Bench:
    """Measures on a clock of its own; ``ms`` gives latency and CPU time of a variant in a round."""

    def __init__(self, ms: Callable[[str, int], tuple[float, float]], others: Mapping[tuple[str, int], float]) -> None:
        self.now_s = 0.0
        self.played: list[tuple[str, int]] = []
        self._ms = ms
        self._others = others

    def clock_s(self) -> float:
        return self.now_s

    def measure(self, name: str, number: int) -> Round:
        self.now_s += ROUND_S
        self.played.append((name, number))
        latency_ms, cpu_ms = self._ms(name, number)
        wobble = WOBBLE[(number * 3 + len(name)) % len(WOBBLE)]
        return Round(
            number=number,
            latency_ms=latency_ms * wobble,
            p50_ms=latency_ms / 2,
            errors=0.0,
            cpu_ms=cpu_ms * (1 + (wobble - 1) / 10),
            others=self._others.get((name, number), 0.0),
        )

    def rounds_of(self, name: str) -> list[int]:
        return [number for each, number in self.played if each == name]


def played(
    variants: Mapping[str, tuple[float, float]],
    references: Mapping[str, str],
    *,
    refused: tuple[str, ...] = (),
    limit_ms: float = 100.0,
    most: int = 48,
    limit_s: float = 300.0,
    others: Mapping[tuple[str, int], float] | None = None,
) -> tuple[Rounds, Bench]:
    bench = Bench(lambda name, number: variants[name], others or {})
    entrants = [Entrant(name, references.get(name, ""), name in refused) for name in variants]
    slo = LatencyObjective(share=0.95, limit_s=limit_ms / 1e3)
    rounds = Rounds(entrants, RoundTerms(slo, rate=200.0, errors=0.001, rounds=most))
    play(rounds, bench.measure, limit_s=limit_s, clock_s=bench.clock_s)
    return rounds, bench


def outcomes(rounds: Rounds, *names: str) -> list[str]:
    found = [rounds.verdict(name) for name in names]
    return [each.outcome for each in found if each is not None]


def test_clear_cases_end_with_the_first_look() -> None:
    rounds, bench = played({"torch": (10, 5), "onnx": (5, 2), "slow": (30, 9)}, {"onnx": "torch", "slow": "onnx"})
    assert outcomes(rounds, "onnx", "slow") == ["faster", "no"]
    assert len(bench.played) == 3 * LEAST
    choice = rounds.choice({})
    assert choice is not None
    assert (choice.variant, choice.meets_slo) == ("onnx", True)


def test_rounds_go_on_where_a_verdict_is_open_and_without_those_that_are_decided() -> None:
    variants = {"torch": (10.0, 5.0), "onnx": (5.0, 2.0), "openvino": (4.8, 2.0)}
    rounds, bench = played(variants, {"onnx": "torch", "openvino": "onnx"})
    assert len(bench.rounds_of("openvino")) > LEAST
    assert bench.rounds_of("onnx") == bench.rounds_of("openvino"), "the reference stays while one needs it"
    assert len(bench.rounds_of("torch")) == LEAST
    assert outcomes(rounds, "onnx") == ["faster"]


def test_a_variant_that_leaves_before_its_rounds_suffice_has_a_latency_without_an_upper_end() -> None:
    """Given work of others beside one of six rounds: beside its reference all count, alone five do, and it leaves."""

    def ms(name: str, number: int) -> tuple[float, float]:
        latency_ms = {"torch": 10.0, "onnx": 5.0}.get(name, 4.0 if number % 2 else 12.0)
        return latency_ms, {"torch": 5.0, "onnx": 2.0}.get(name, 4.0)

    bench = Bench(ms, {("dear", 2): 2.0, ("onnx", 3): 2.0, ("onnx", 4): 2.0})
    entrants = [Entrant(name, {"torch": "", "onnx": "torch"}.get(name, "onnx")) for name in ("torch", "onnx", "dear")]
    rounds = Rounds(
        entrants, RoundTerms(LatencyObjective(share=0.95, limit_s=0.1), rate=200.0, errors=0.001, rounds=48)
    )
    play(rounds, bench.measure, limit_s=300.0, clock_s=bench.clock_s)
    verdict = rounds.verdict("dear")
    assert verdict is not None
    assert "costs less" in speed_refusal(verdict)
    assert "nan" not in speed_refusal(verdict)
    middle, low, high = verdict.latency_ms
    assert low == 0.0
    assert 4.0 < middle < 12.0 < high


def test_what_others_are_compared_with_is_decided_first() -> None:
    """Its first rounds show nothing, because one of them met a burst; two variants take turns until it is decided."""

    def ms(name: str, number: int) -> tuple[float, float]:
        burst = 1.5 if name == "onnx" and number == 2 else 1.0
        return {"torch": 10.0, "onnx": 7.0}.get(name, 7.1) * burst, {"torch": 5.0, "onnx": 3.0}.get(name, 3.02)

    names = ("torch", "onnx", "int8-a", "int8-b", "int8-c", "openvino")
    bench = Bench(ms, {})
    entrants = [Entrant(name, {"torch": "", "onnx": "torch"}.get(name, "onnx")) for name in names]
    slo = LatencyObjective(share=0.95, limit_s=0.1)
    rounds = Rounds(entrants, RoundTerms(slo, rate=200.0, errors=0.001, rounds=48))
    play(rounds, bench.measure, limit_s=9 * 6 * ROUND_S, clock_s=bench.clock_s)
    assert outcomes(rounds, "onnx") == ["cheaper"]
    assert [name for name, number in bench.played if number == LEAST] in (["torch", "onnx"], ["onnx", "torch"])
    assert len(bench.rounds_of("int8-a")) > LEAST, "the others go on once it is decided"


def test_what_its_quality_refuses_is_shown_but_holds_nothing_up() -> None:
    rounds, bench = played(
        {"torch": (10.0, 5.0), "onnx": (5.0, 2.0), "int8": (4.9, 2.0)},
        {"onnx": "torch", "int8": "onnx"},
        refused=("int8",),
    )
    assert len(bench.rounds_of("int8")) == len(bench.rounds_of("onnx")) == LEAST
    verdict = rounds.verdict("int8")
    assert verdict is not None
    assert verdict.latency_ms[0] == pytest.approx(4.9, rel=0.1)


def test_what_can_no_longer_win_is_measured_no_longer() -> None:
    """It may be faster than its reference; another one surely costs less, and meets the SLO."""
    variants = {"torch": (10.0, 5.0), "openvino": (9.7, 4.9), "int8": (4.0, 1.0)}
    rounds, bench = played(variants, {"openvino": "torch", "int8": "torch"})
    assert len(bench.rounds_of("openvino")) == LEAST
    verdict = rounds.verdict("openvino")
    assert verdict is not None
    assert (verdict.outcome, verdict.stopped) == (
        "open", "left out of further rounds, because int8 costs less and meets the SLO",
    )  # fmt: skip
    choice = rounds.choice({})
    assert choice is not None
    assert choice.variant == "int8"


def test_a_limit_of_time_ends_rounds_but_not_before_the_first_look() -> None:
    variants = {"torch": (10.0, 5.0), "onnx": (9.7, 5.0)}
    rounds, bench = played(variants, {"onnx": "torch"}, limit_s=1.0)
    assert len(bench.rounds_of("onnx")) == LEAST
    verdict = rounds.verdict("onnx")
    assert verdict is not None
    assert "build.load_limit" in verdict.stopped


def test_no_more_rounds_than_are_allowed() -> None:
    variants = {"torch": (10.0, 5.0), "onnx": (9.7, 5.0)}
    _, bench = played(variants, {"onnx": "torch"}, most=7, limit_s=3600.0)
    assert len(bench.rounds_of("onnx")) <= 7


def test_a_variant_that_fails_leaves_and_what_rests_on_it_has_no_verdict() -> None:
    variants = {"torch": (10.0, 5.0), "onnx": (5.0, 2.0), "int8": (4.0, 1.0)}

    def measure(name: str, number: int) -> Round:
        if name == "onnx" and number >= 2:
            raise BuildError("the server exited with code 1", hint="its last lines")
        return bench.measure(name, number)

    bench = Bench(lambda name, number: variants[name], {})
    entrants = [Entrant("torch"), Entrant("onnx", "torch"), Entrant("int8", "onnx")]
    terms = RoundTerms(LatencyObjective(share=0.95, limit_s=0.1), rate=200.0, errors=0.001, rounds=48)
    rounds = Rounds(entrants, terms)
    play(rounds, measure, limit_s=300.0, clock_s=bench.clock_s)
    assert rounds.trial("onnx").failed == "the server exited with code 1: its last lines"
    assert (rounds.verdict("onnx"), rounds.verdict("int8")) == (None, None)
    choice = rounds.choice({})
    assert choice is not None
    assert choice.variant == "torch"


def test_where_a_gpu_does_the_work_the_price_decides_and_cpu_time_is_no_evidence() -> None:
    entrants = [Entrant("onnx"), Entrant("cuda", "onnx")]
    terms = RoundTerms(
        LatencyObjective(share=0.95, limit_s=0.1), 200.0, 0.001, 48, Prices(core_hour=0.04, gpu_hour=2.0)
    )
    bench = Bench(lambda name, number: {"onnx": (10.0, 5.0), "cuda": (10.0, 1.0)}[name], {})

    def measure(name: str, number: int) -> Round:
        return msgspec.structs.replace(bench.measure(name, number), gpu_ms=2.0 if name == "cuda" else None)

    rounds = Rounds(entrants, terms)
    play(rounds, measure, limit_s=300.0, clock_s=bench.clock_s)
    verdict = rounds.verdict("cuda")
    assert verdict is not None
    assert (verdict.cpu_ratio, verdict.passed) == (None, False)
    assert rounds.dearer("cuda", "onnx")
    assert not rounds.dearer("onnx", "cuda")


def made(others: list[float]) -> dict[int, Round]:
    return {
        number: Round(number=number, latency_ms=1.0, p50_ms=1.0, errors=0.0, cpu_ms=1.0, others=each)
        for number, each in enumerate(others)
    }


def test_rounds_that_other_processes_disturb_are_left_out_for_both() -> None:
    quiet, hit = made([0.0] * 8), made([0.0, 0.9, 0.0, 0.0, 0.0, 0.05, 0.0, 0.0])
    assert undisturbed(hit, quiet, range(8)) == undisturbed(quiet, hit, range(8)) == [0, 2, 3, 4, 5, 6, 7]


def test_a_neighbour_that_is_always_there_disturbs_no_round() -> None:
    always = made([0.62, 0.58, 0.6, 0.61, 0.6, 0.59])
    assert undisturbed(always, made([0.6] * 6), range(6)) == list(range(6))
    more = made([0.62, 0.58, 1.4, 0.61, 0.6, 0.59])
    assert undisturbed(always, more, range(6)) == [0, 1, 3, 4, 5]


def test_where_every_second_round_is_disturbed_all_count() -> None:
    often = made([0.0, 0.9, 0.0, 0.9, 0.0, 0.9, 0.0])
    assert undisturbed(often, made([0.0] * 7), range(7)) == list(range(7))


def test_disturbed_rounds_are_repeated_as_pairs() -> None:
    variants = {"torch": (10.0, 5.0), "onnx": (5.0, 2.0)}
    rounds, bench = played(variants, {"onnx": "torch"}, others={("onnx", 1): 0.9, ("torch", 4): 0.8})
    verdict = rounds.verdict("onnx")
    assert verdict is not None
    assert (verdict.outcome, verdict.rounds, verdict.left_out) == ("faster", LEAST, 2)
    assert bench.rounds_of("onnx") == bench.rounds_of("torch") == list(range(LEAST + 2))


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.floats(1.0, 20.0), st.floats(0.5, 10.0)), min_size=1, max_size=5),
    st.floats(3.0, 300.0),
    st.floats(2.0, 40.0),
)
def test_rounds_end_within_their_limits_and_every_pair_shares_its_rounds(
    figures: list[tuple[float, float]], limit_s: float, limit_ms: float
) -> None:
    variants = {f"v{place}": each for place, each in enumerate(figures)}
    references = {f"v{place}": f"v{place - 1}" for place in range(1, len(figures))}
    rounds, bench = played(variants, references, limit_s=limit_s, limit_ms=limit_ms)
    assert bench.now_s <= max(limit_s, LEAST * len(variants) * ROUND_S) + len(variants) * ROUND_S
    for name in variants:
        numbers = bench.rounds_of(name)
        assert numbers == sorted(set(numbers))
    choice = rounds.choice({})
    assert choice is not None
    verdict = rounds.verdict(choice.variant)
    assert verdict is not None
    assert verdict.passed or choice.variant == "v0"


def test_the_last_look_has_the_error_that_no_other_look_will_spend() -> None:
    """Nine rounds of time: eight in favour and a slight one against are enough, as nothing follows."""
    mine = {number: made_one(number, 8.0 + 0.1 * number if number != 4 else 10.2) for number in range(9)}
    theirs = {number: made_one(number, 10.0) for number in range(9)}
    plan = schedule(48, ERROR)
    first = look(UNSEEN, {n: mine[n] for n in range(LEAST)}, theirs, plan)
    assert (first.looks, first.latency.high > 0.0) == (1, True)
    assert look(first, mine, theirs, plan).looks == 1, "it is not time for the second"
    assert look(first, mine, theirs, plan, last=True).latency.high < 0.0
    assert interval([log(mine[n].latency_ms / 10.0) for n in mine], plan[1].error).high > 0.0


def made_one(number: int, latency_ms: float) -> Round:
    return Round(number=number, latency_ms=latency_ms, p50_ms=latency_ms / 2, errors=0.0, cpu_ms=1.0)


def ended(
    variants: Mapping[str, tuple[float, float]], references: Mapping[str, str], fails: Mapping[str, set[int]]
) -> Rounds:
    """Rounds in which variants could not be measured in some of theirs."""
    bench = Bench(lambda name, number: variants[name], {})

    def measure(name: str, number: int) -> Round:
        if number in fails.get(name, ()):
            raise BuildError("no answers")
        return bench.measure(name, number)

    terms = RoundTerms(LatencyObjective(share=0.95, limit_s=0.1), rate=200.0, errors=0.001, rounds=48)
    rounds = Rounds([Entrant(name, references.get(name, "")) for name in variants], terms)
    play(rounds, measure, limit_s=300.0, clock_s=bench.clock_s)
    return rounds


def test_one_round_that_cannot_be_measured_costs_that_round_only() -> None:
    rounds = ended({"torch": (10.0, 5.0), "onnx": (5.0, 2.0)}, {"onnx": "torch"}, {"onnx": {2}})
    verdict = rounds.verdict("onnx")
    assert verdict is not None
    assert (verdict.outcome, verdict.rounds) == ("faster", LEAST)


def test_without_the_source_nothing_that_rests_on_it_is_promoted() -> None:
    """int8 beats onnx, which is slower than the source; the source itself could not be measured."""
    variants = {"torch": (5.0, 2.0), "onnx": (20.0, 8.0), "int8": (15.0, 6.0)}
    rounds = ended(variants, {"onnx": "torch", "int8": "onnx"}, {"torch": {1, 4}})
    assert [rounds.verdict(name) for name in variants] == [None] * 3
    assert rounds.choice({}) is None


def test_a_variant_that_beats_a_slow_reference_and_not_the_source_is_not_promoted() -> None:
    variants = {"torch": (10.0, 5.0), "onnx": (20.0, 5.0), "int8": (14.0, 4.5)}
    rounds, _ = played(variants, {"onnx": "torch", "int8": "onnx"})
    assert outcomes(rounds, "int8") == ["faster"]
    choice = rounds.choice({})
    assert choice is not None
    assert choice.variant == "torch"


def test_a_variant_that_fails_requests_does_not_pass() -> None:
    """No limit is met: the fastest of those that passed would be chosen."""

    def measure(name: str, number: int) -> Round:
        found = bench.measure(name, number)
        return msgspec.structs.replace(found, errors=0.04 if name == "onnx" else 0.0)

    bench = Bench(lambda name, number: {"torch": (60.0, 5.0), "onnx": (45.0, 4.0)}[name], {})
    terms = RoundTerms(LatencyObjective(share=0.95, limit_s=0.02), rate=200.0, errors=0.01, rounds=48)
    rounds = Rounds([Entrant("torch"), Entrant("onnx", "torch")], terms)
    play(rounds, measure, limit_s=300.0, clock_s=bench.clock_s)
    verdict, choice = rounds.verdict("onnx"), rounds.choice({})
    assert verdict is not None
    assert choice is not None
    assert (verdict.outcome, verdict.passed, choice.variant) == ("faster", False, "torch")
    assert "4.00% of its requests failed" in speed_refusal(verdict)


def test_on_a_gpu_the_means_of_cpu_time_choose_nothing() -> None:
    """fp16 holds the device for less and is the fastest; that it took 1 % more CPU time is noise."""
    figures = {"torch": (8.0, 0.300, 7.0), "graphs": (6.0, 0.301, 5.0), "fp16": (3.0, 0.303, 2.0)}

    def measure(name: str, number: int) -> Round:
        return msgspec.structs.replace(bench.measure(name, number), gpu_ms=figures[name][2])

    bench = Bench(lambda name, number: figures[name][:2], {})
    terms = RoundTerms(LatencyObjective(share=0.95, limit_s=0.1), rate=200.0, errors=0.01, rounds=48)
    rounds = Rounds([Entrant("torch"), Entrant("graphs", "torch"), Entrant("fp16", "torch")], terms)
    play(rounds, measure, limit_s=300.0, clock_s=bench.clock_s)
    choice = rounds.choice({})
    assert choice is not None
    assert choice.variant == "fp16"


def test_every_percentile_of_the_slo_is_to_be_met() -> None:
    """The other one is beyond its limit by a half."""

    def measure(name: str, number: int) -> Round:
        return msgspec.structs.replace(bench.measure(name, number), excess=1.5 if name == "onnx" else 0.9)

    bench = Bench(lambda name, number: {"torch": (10.0, 5.0), "onnx": (9.0, 2.0)}[name], {})
    terms = RoundTerms(LatencyObjective(share=0.99, limit_s=0.1), rate=200.0, errors=0.01, rounds=48)
    rounds = Rounds([Entrant("torch"), Entrant("onnx", "torch")], terms)
    play(rounds, measure, limit_s=300.0, clock_s=bench.clock_s)
    choice = rounds.choice({})
    assert choice is not None
    assert (choice.variant, choice.meets_slo) == ("torch", True)
