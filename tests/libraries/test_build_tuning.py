"""build.tuning and build.turns: what is measured, and what comes of it."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models import tokens

from tailcut.builder.holdouts.holdout import Holdout
from tailcut.builder.records import Made
from tailcut.builder.speed import tuning
from tailcut.builder.speed.interleaving import take_turns, turn
from tailcut.builder.speed.tuning import measure, tune
from tailcut.common.tensors import Arrays
from tailcut.manifest import Batching, Deployment, Manifest, Model, Slo, TensorSpec
from tailcut.models.runtimes import Runtime
from tailcut.models.runtimes.sliced import sliced
from tailcut.models.tuning import choose, grid
from tailcut.registry.evidence import Setting

INPUTS = tuple(TensorSpec(name=name, datatype="INT64", shape=(-1, -1)) for name in ("ids", "mask"))


def manifest(folder: Path, rate: float = 1.0) -> Manifest:
    model = Model(source="m.onnx", inputs=INPUTS, outputs=(TensorSpec(name="y", shape=(-1,)),))
    return Manifest(Deployment(name="m", model=model, slo=Slo(rate=rate)), folder, {})


@pytest.mark.parametrize("names", ["ab", "abc", "abcde"])
def test_each_of_a_pair_comes_first_as_often(names: str) -> None:
    rounds = [turn(names, number) for number in range(4 * len(names))]
    assert all(sorted(each) == list(names) for each in rounds)
    for one, other in itertools.combinations(names, 2):
        first = [each.index(one) < each.index(other) for each in rounds]
        assert all(before != after for before, after in zip(first[::2], first[1::2], strict=True))
    assert {each[0] for each in rounds} == set(names)


def test_every_block_has_its_turn_in_each_round() -> None:
    order: list[str] = []
    found = take_turns({name: lambda name=name: order.append(name) or name for name in "abc"},
                       least=1, most=3, budget_s=9.0, clock_s=lambda: 0.0)  # fmt: skip
    assert order == [*"abc", *"cba", *"bca"]
    assert found == {name: [name] * 3 for name in "abc"}


def test_turns_end_with_the_budget_but_not_before_the_least_rounds() -> None:
    now_s = 0.0

    def block() -> None:
        nonlocal now_s
        now_s += 1.0

    def rounds(budget_s: float) -> int:
        return len(take_turns({"a": block}, least=3, most=9, budget_s=budget_s, clock_s=lambda: now_s)["a"])

    assert [rounds(budget_s) for budget_s in (0.0, 5.0, 100.0)] == [3, 5, 9]


@pytest.mark.parametrize(
    ("two_threads_ms", "rounds"),
    [([1.0] * 9, 3), ([0.5] * 9, 3), ([0.85, 1.0] * 5, 9), ([1.0, 0.85, 0.85, 0.85], 4)],
    ids=["as slow", "twice as fast", "never sure", "sure without its first round"],
)
def test_settings_are_measured_until_no_single_round_decides(two_threads_ms: list[float], rounds: int) -> None:
    """Two threads are worth it where they take less than 1 / NEAR of the time, 0.91."""
    settings = [Setting(threads=1), Setting(threads=2)]
    timed = iter(two_threads_ms)
    taken = []

    def two() -> tuple[float, float, float]:
        taken.append(next(timed))
        return taken[-1], 1.0, 100.0

    found = measure(
        settings, [lambda: (1.0, 1.0, 100.0), two], lambda timings: choose(timings, rate=1.0), budget_s=60.0
    )
    assert len(taken) == rounds
    assert found[1].ms == statistics.median(taken)


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_every_setting_of_the_table_is_measured_and_one_is_chosen(tmp_path: Path, runtime: str) -> None:
    pytest.importorskip(runtime)
    made = Made(
        name="v", runtime=runtime, path=str(tokens.counting(tmp_path / "m.onnx", word_layers=1)),
        settings={"threads": 64, "spin_us": 5, "precision": "f32"},
    )  # fmt: skip
    found = tune(manifest(tmp_path), made, tokens.holdout(rows=40), cores=2, budget_s=0.1)
    assert [row.setting for row in found.table] == grid(2)
    varied = [row.setting for row in found.variations]
    plain = [each.plain for each in (*grid(2), *varied[1:])]
    assert found.settings in plain
    assert {"spin_us": 5}.items() not in [each.items() for each in plain]
    assert len(plain) == len({str(each) for each in plain}) > 3
    assert [cost.rows for cost in found.costs] == [1, 2, 4, 8, 16, 32]
    assert all(cost.p95_ms >= cost.p50_ms > 0 and cost.calls >= 3 for cost in found.costs)
    assert found.points == {cost.rows: cost.mean_ms * 1e6 for cost in found.costs}
    for row in (*found.table, *found.variations):
        assert row.ms > 0
        assert row.rows_per_s > 0


def test_a_rate_that_no_setting_carries_takes_every_core(tmp_path: Path) -> None:
    made = Made(name="v", runtime="onnxruntime", path=str(tokens.counting(tmp_path / "m.onnx", word_layers=8)))
    found = tune(manifest(tmp_path, rate=1e9), made, tokens.holdout(rows=40), cores=2, budget_s=0.1)
    carried = {(row.setting.threads, row.setting.executors): row.rows_per_s for row in found.table}
    chosen = found.settings["threads"], found.settings["executors"]
    assert carried[chosen] * 1.1 >= max(carried.values())


@pytest.mark.parametrize(
    ("runtime", "settings", "why"),
    [
        ("pair", {}, "takes no settings"),
        ("sklearn", {}, "takes no settings"),
        ("onnxruntime", {"provider": "cuda"}, "runs on the GPU"),
    ],
)
def test_where_there_is_nothing_to_choose_it_says_why(
    tmp_path: Path, runtime: str, settings: dict[str, str], why: str
) -> None:
    made = Made(name="v", runtime=runtime, path="no such file", settings=settings)
    found = tune(manifest(tmp_path), made, tokens.holdout(rows=20), cores=2)
    assert (found.settings, found.table) == ({}, [])
    assert why in found.why


class Clock:
    """Stands in for the module ``time``: only what sleeps takes any."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def perf_counter(self) -> float:
        return self._now_s

    process_time = perf_counter

    def sleep(self, seconds: float) -> None:
        self._now_s += seconds


class Slow:
    """Takes a time by the rows of each run, as a model does whose data leave the processor's cache."""

    def __init__(self, row_ms: Callable[[int], float], clock: Clock) -> None:
        self.rows: list[int] = []
        self._row_ms, self._clock = row_ms, clock

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        rows = len(inputs["x"])
        self.rows.append(rows)
        self._clock.sleep(rows * self._row_ms(rows) / 1e3)
        return {"y": inputs["x"][:, 0]}

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("row_ms", "mode", "chosen"),
    [
        (lambda rows: 0.4 if rows <= 4 else 0.8, "auto", 4),
        (lambda rows: 0.4 if rows <= 4 else 0.8, "fixed", None),
        (lambda rows: 0.4, "auto", None),
    ],
    ids=["small runs", "fixed sizes", "all alike"],
)
def test_large_batches_run_in_slices_where_that_is_faster_in_every_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row_ms: Callable[[int], float], mode: str, chosen: int | None
) -> None:
    opened: list[Slow] = []
    clock = Clock()

    def open_slow(variant: Any, *, threads: int, source: object) -> Runtime:
        opened.append(Slow(row_ms, clock))
        return sliced(opened[-1], variant.settings)

    monkeypatch.setattr(tuning, "open_runtime", open_slow)
    monkeypatch.setattr(tuning, "time", clock)
    tensors = (TensorSpec(name="x", shape=(-1, 2)),), (TensorSpec(name="y", shape=(-1,)),)
    model = Model(source="m.onnx", inputs=tensors[0], outputs=tensors[1])
    deployment = Deployment(name="m", model=model, slo=Slo(rate=1.0), batching=Batching(mode=mode, max_rows=16))
    holdout = Holdout(inputs={"x": np.zeros((40, 2), np.float32)})
    made = Made(name="v", runtime="onnxruntime", path="m.onnx", settings={})
    found = tune(Manifest(deployment, tmp_path, {}), made, holdout, cores=1, budget_s=0.3)
    assert found.settings.get("run_rows") == chosen
    if chosen:
        assert max(opened[-1].rows) <= chosen, "the costs are those of slices"
        (large,) = [cost.p50_ms for cost in found.costs if cost.rows == 16]
        assert large < 0.75 * 16 * 0.8
