"""The comparison of a profile's advice with a ladder, on a made-up recording."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.profile_ladder import Compared, compare, p95s, verdicts
from tests.unit.profiler.profile_sample import recording

from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.levers.known import LeverAssumptions
from tailcut.profiler.levers.work import read_work
from tailcut.report.ladder.file import load_ladder

LADDER = Path(__file__).parents[3] / "benchmarks/results/ladder/ladder.json"


def compared(*p95s_ms: tuple[str, float]) -> list[Compared]:
    """Rungs with one round each, whose bound is 2 ms."""
    return [Compared(rung, (p95_ms,), 3.0, 9.0, 2.0) for rung, p95_ms in p95s_ms]


def test_levers_of_a_rung_come_on_top_of_those_before_it() -> None:
    recorded = recording()
    known = LeverAssumptions(feature_hits=dict.fromkeys(range(400), 0.9), family="torch")
    work = read_work(recorded, attribute(recorded), known)
    measured = {"pilot": [20.0, 30.0, 22.0], "+ feature cache": [9.0], "+ ONNX": [8.0]}
    pilot, cached, onnx = compare(work, known, measured, recorded.rate)
    assert pilot.p95_ms == 22.0
    assert pilot.best_ms == pilot.worst_ms == pilot.bound_ms == pytest.approx(work.percentile_ms(0.95))
    assert pilot.best_ms > cached.best_ms > onnx.best_ms
    for one in (cached, onnx):
        assert one.bound_ms <= one.best_ms <= one.worst_ms


def test_a_p95_below_the_bound_is_named_and_the_pilots_is_none() -> None:
    assert verdicts(compared(("pilot", 1.0), ("+ ONNX", 2.5), ("+ prediction caches", 1.9)), "runtime")[0] == (
        "- Below the bound: + prediction caches."
    )
    assert verdicts(compared(("pilot", 9.0), ("+ ONNX", 2.5)), "runtime")[0] == "- Below the bound: no rung."


def test_the_first_lever_is_that_of_the_rung_that_won_most_or_not() -> None:
    rungs = compared(("pilot", 9.0), ("+ feature cache", 4.0), ("+ ONNX", 3.0))
    assert verdicts(rungs, "feature cache")[1] == (
        "- The rung that won most is + feature cache (5 ms); the first lever of the advice, feature cache, is part"
        " of it."
    )
    assert verdicts(rungs, "runtime")[1].endswith("the first lever of the advice, runtime, is not part of it.")
    assert verdicts(rungs, "")[1].endswith("the advice has no lever to pull.")


def test_a_ladders_rounds_are_read_by_rung_without_those_that_did_not_run() -> None:
    found = p95s(load_ladder(LADDER))
    assert list(found)[:2] == ["pilot", "levers off"]
    assert "+ INT8" not in found, "the gate refused it"
    assert all(len(rounds) == 3 for rounds in found.values())
