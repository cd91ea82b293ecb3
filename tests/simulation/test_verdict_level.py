"""The promise of the verdict on speed: equal variants rarely pass, and faster ones nearly always, whatever disturbs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from tests.scale import sized
from tests.simulation.load_noise import Machine, Variant

from tailcut.builder.speed.rounds import Entrant, Rounds, RoundTerms, play
from tailcut.common.slo import LatencyObjective
from tailcut.gate.sequential import LEAST, interval, schedule
from tailcut.manifest.schema.build import Build
from tailcut.registry.evidence import SpeedVerdict

TERMS = RoundTerms(LatencyObjective(share=0.95, limit_s=0.1), rate=200.0, errors=0.001, rounds=Build().rounds)
LIMIT_S = float(Build().load_limit_s)

EQUAL, SLOWER, FASTER = sized((200, 100, 100), (1000, 400, 300))
"""Builds that are simulated; limits widen as they get fewer."""

QUIET: dict[str, Any] = {}
BURSTS: dict[str, Any] = {"on_s": 8.0}
UNSEEN: dict[str, Any] = {"on_s": 8.0, "seen": 0.0}
NOISY: dict[str, Any] = {"on_s": 8.0, "noise": 0.2}


def build(seed: int, latency: float, cpu: float, machine: dict[str, Any]) -> tuple[SpeedVerdict, float]:
    """Play the rounds of one build of a variant with these ratios to its reference; verdict, and seconds of load."""
    variants = {"torch": Variant(10.0, 5.0), "onnx": Variant(10.0 * latency, 5.0 * cpu)}
    measured = Machine(seed, variants, **machine)
    rounds = Rounds([Entrant("torch"), Entrant("onnx", "torch")], TERMS)
    play(rounds, measured.measure, limit_s=LIMIT_S, clock_s=measured.clock_s)
    verdict = rounds.verdict("onnx")
    assert verdict is not None
    return verdict, measured.now_s


def outcomes(builds: int, latency: float, cpu: float, machine: dict[str, Any]) -> Counter[str]:
    found = [build(seed, latency, cpu, machine) for seed in range(builds)]
    assert max(seconds for _, seconds in found) <= LIMIT_S + 7.0, "the round under way ends, and no other begins"
    return Counter(verdict.outcome for verdict, _ in found)


def most(share: float, trials: int) -> float:
    """Count of events that happen with this chance, and three standard deviations more."""
    return trials * share + 3.0 * (trials * share * (1.0 - share)) ** 0.5


@pytest.mark.parametrize("machine", [QUIET, BURSTS, UNSEEN, NOISY], ids=["quiet", "bursts", "unseen", "noisy"])
def test_of_a_hundred_equal_variants_at_most_five_pass(machine: dict[str, Any]) -> None:
    found = outcomes(EQUAL, 1.0, 1.0, machine)
    assert found["faster"] + found["cheaper"] <= most(0.05, EQUAL), found


@pytest.mark.parametrize("machine", [BURSTS, UNSEEN], ids=["bursts", "unseen"])
def test_a_cheaper_variant_that_is_slower_than_the_margin_hardly_ever_passes(machine: dict[str, Any]) -> None:
    found = outcomes(SLOWER, 1.12, 0.5, machine)
    assert found["faster"] + found["cheaper"] <= most(0.05, SLOWER), found


@pytest.mark.parametrize(
    ("cpu", "machine"),
    [(1.0, QUIET), (1.0, BURSTS), (1.0, UNSEEN), (0.8, NOISY)],
    ids=["quiet", "bursts", "unseen", "noisy, and cheaper by as much"],
)
def test_a_variant_that_is_a_fifth_faster_passes(cpu: float, machine: dict[str, Any]) -> None:
    found = outcomes(FASTER, 0.8, cpu, machine)
    assert found["faster"] + found["cheaper"] >= 0.95 * FASTER, found


def test_a_variant_that_is_as_fast_and_much_cheaper_passes_by_its_cpu_time() -> None:
    found = outcomes(200, 0.97, 0.5, QUIET)
    assert found["faster"] + found["cheaper"] >= 0.95 * 200, found
    assert found["cheaper"] > 100


def test_rounds_that_seen_bursts_hit_are_repeated_and_left_out() -> None:
    found = [build(seed, 0.8, 1.0, {"on_s": 8.0, "seen": 1.0})[0] for seed in range(40)]
    assert sum(each.left_out for each in found) > 40
    assert all(each.left_out <= 0.5 * each.rounds + 1 for each in found)


@pytest.mark.parametrize("drawn", ["normal", "heavy", "either"])
def test_intervals_hold_at_all_looks_together(drawn: str) -> None:
    """Of any symmetric distribution: 2.5 % at each end, though one looks again and again."""
    random = np.random.default_rng(7)
    looks = schedule(48, 0.025)
    trials, missed = 1500, Counter[str]()
    for _ in range(trials):
        values = {
            "normal": random.normal(0.0, 1.0, 48),
            "heavy": random.standard_t(2, 48),
            "either": random.choice([-1.0, 1.0], 48) + random.normal(0.0, 0.05, 48),
        }[drawn]
        found = [interval(values[: look.rounds].tolist(), look.error) for look in looks]
        missed["low"] += any(each.low > 0.0 for each in found)
        missed["high"] += any(each.high < 0.0 for each in found)
    assert looks[0].rounds == LEAST
    assert max(missed.values()) <= most(0.025, trials), missed
