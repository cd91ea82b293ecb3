"""A runtime that divides batches: the same answers in the same order, from fewer rows at a time where that is fast."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tailcut.common.tensors import Arrays
from tailcut.common.validation import InputSpec
from tailcut.errors import InferenceError
from tailcut.models.batch_item import WrongRows, run_rows
from tailcut.models.example_rows import Examples
from tailcut.models.executors.in_process import ThreadExecutor
from tailcut.models.runtimes.batch_buckets import powers
from tailcut.models.runtimes.divided import DividedRuntime, dividing, undivided
from tailcut.models.warm_up import warm_up
from tailcut.serving.metrics import run_samples
from tailcut.testing.runtimes import CallableRuntime, StubRuntime

MS = 1_000_000


class Timed(StubRuntime):
    """Takes a time of its own for each number of rows, on a clock of its own."""

    def __init__(self, row_ms: Callable[[int], float], answer: Callable[[Arrays], Arrays] | None = None) -> None:
        super().__init__(answer)
        self.now_ns = 0
        self._row_ms = row_ms
        self.hook: Callable[[], None] = lambda: None

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        rows = len(next(iter(inputs.values())))
        self.hook()
        self.now_ns += int(self._row_ms(rows) * rows * MS)
        return super().run(inputs, outputs)


def small_are_fast(rows: int) -> float:
    return {1: 6.5, 2: 6.0}.get(rows, 6.0 + 0.4 * rows.bit_length())


def divided(timed: Timed) -> DividedRuntime:
    return DividedRuntime(timed, lambda: timed.now_ns)


def batch(rows: int, length: int = 4) -> Arrays:
    return {"x": np.arange(rows * length, dtype=np.float32).reshape(rows, length)}


def test_answers_are_those_of_the_whole_batch_in_its_order() -> None:
    timed = Timed(small_are_fast)
    runtime = divided(timed)
    for rows in [32, 32, 7, 31, 1, 16] * 10:
        assert (runtime.run(batch(rows), ["y"])["y"] == StubRuntime().run(batch(rows), ["y"])["y"]).all()
    before = len(timed.rows)
    runtime.run(batch(32), ["y"])
    assert max(timed.rows[before:]) <= 4
    assert runtime.run_rows == max(timed.rows[before:])
    assert sum(timed.rows[before:]) == 32


def test_where_large_batches_are_faster_they_run_whole() -> None:
    timed = Timed(lambda rows: (20.0 + rows) / rows)
    runtime = divided(timed)
    for _ in range(20):
        runtime.run(batch(32), ["y"])
    before = len(timed.rows)
    for _ in range(10):
        runtime.run(batch(32), ["y"])
    assert timed.rows[before:] == [32] * 10
    assert runtime.run_rows == 32


def test_rows_of_another_length_are_learned_apart() -> None:
    """Long rows are fastest two at a time, short ones all together."""
    clock = [0]

    class Both(StubRuntime):
        def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
            rows, length = inputs["x"].shape
            took_ms = small_are_fast(rows) * rows if length > 16 else 5.0 + 0.05 * rows
            clock[0] += int(took_ms * MS)
            return super().run(inputs, outputs)

    both = Both()
    runtime = DividedRuntime(both, lambda: clock[0])
    for _ in range(60):
        runtime.run(batch(32, 128), ["y"])
        runtime.run(batch(32, 8), ["y"])
    before = len(both.rows)
    runtime.run(batch(32, 8), ["y"])
    assert both.rows[before:] == [32]
    before = len(both.rows)
    runtime.run(batch(32, 128), ["y"])
    assert len(both.rows[before:]) >= 8


def test_outputs_whose_shape_depends_on_the_batch_end_the_dividing() -> None:
    """As wide as the largest value in the batch: parts do not fit together, and the batch runs whole from then on."""

    def widest(inputs: Arrays) -> Arrays:
        wide = int(inputs["x"].max()) + 1
        return {"y": np.zeros((len(inputs["x"]), wide), np.float32)}

    timed = Timed(small_are_fast, widest)
    runtime = divided(timed)
    for _ in range(5):
        assert runtime.run(batch(8), ["y"])["y"].shape == (8, 32)
    assert timed.rows[-3:] == [8, 8, 8]
    assert runtime.run_rows == 8


def test_the_first_rows_of_a_length_run_whole_because_nothing_says_what_the_parts_should_give() -> None:
    """As wide as the number of columns that hold something anywhere: three for each half, and four for the whole."""

    def filled(inputs: Arrays) -> Arrays:
        return {"y": inputs["x"][:, (inputs["x"] > 0).any(axis=0)]}

    timed = Timed(small_are_fast, filled)
    runtime = divided(timed)
    for _ in range(40):
        runtime.run({"x": batch(32)["x"] + 1.0}, ["y"])
    assert timed.rows[-1] <= 4
    rows = np.ones((32, 5), np.float32)
    rows[:16, 0] = rows[16:, 1] = 0.0
    rows[:, 4] = 0.0
    before = len(timed.rows)
    assert runtime.run({"x": rows}, ["y"])["y"].shape == (32, 4)
    assert timed.rows[before:] == [32]
    assert runtime.run({"x": rows}, ["y"])["y"].shape == (32, 4)
    assert timed.rows[-1] == 32, "the parts gave something else, so that the batch ran again whole"
    assert runtime.run_rows == 32


def test_many_lengths_are_known_and_no_more_than_many() -> None:
    timed = Timed(small_are_fast)
    runtime = divided(timed)
    for length in [4, 3072] * 40 + list(range(2049, 3072)):
        runtime.run(batch(32, length), ["y"])
    before = len(timed.rows)
    runtime.run(batch(32, 3071), ["y"])
    assert len(timed.rows) > before + 1, "known: in parts"
    before = len(timed.rows)
    runtime.run(batch(32), ["y"])
    assert timed.rows[before:] == [32], "forgotten: whole, once"
    runtime.run(batch(32), ["y"])
    assert len(timed.rows) > before + 2


def test_what_a_batch_ran_as_is_told_where_it_ended_the_dividing() -> None:
    """Two batches of one row, of which the second gives another shape."""
    wide = [1]
    timed = Timed(small_are_fast, lambda inputs: {"y": np.zeros((len(inputs["x"]), wide[0]), np.float32)})
    runtime = divided(timed)
    for _ in range(30):
        runtime.run(batch(32), ["y"])
    assert runtime.run_rows < 32
    wide[0] = 2
    runtime.run(batch(1), ["y"])
    assert runtime.run_rows == 1
    runtime.run(batch(32), ["y"])
    assert runtime.run_rows == 32


def test_outputs_as_wide_as_the_batch_end_the_dividing_too() -> None:
    """Rows compared with each other: both halves have the same shape, and neither is what the whole has."""
    timed = Timed(small_are_fast, lambda inputs: {"y": inputs["x"] @ inputs["x"].T})
    runtime = divided(timed)
    for _ in range(6):
        assert runtime.run(batch(32), ["y"])["y"].shape == (32, 32)
    assert timed.rows[-4:] == [32] * 4


def test_who_wants_other_outputs_does_not_end_it() -> None:
    timed = Timed(small_are_fast, lambda inputs: {"y": inputs["x"], "z": inputs["x"][:, :1]})
    runtime = divided(timed)
    for number in range(80):
        runtime.run(batch(32), (["y"], ["z"], ["y", "z"], ["z", "y"])[number % 4])
    assert timed.rows[-1] < 32


@pytest.mark.parametrize("kept", [2, 0])
def test_a_model_that_loses_rows_is_found_out(kept: int) -> None:
    """It answers up to four rows and loses all beyond, or the last of more than one."""
    timed = Timed(small_are_fast, lambda inputs: {"y": inputs["x"][: kept or max(len(inputs["x"]) - 1, 1)]})
    runtime = divided(timed)
    for rows in (1, 2, 4, 8) * 4:
        found = runtime.run(batch(rows), ["y"])["y"]
        if rows > 2:
            assert len(found) < rows
            with pytest.raises(WrongRows):
                run_rows(runtime, batch(rows), rows, ["y"])


def test_the_error_of_a_part_is_the_error_of_the_batch() -> None:
    bad = [False]

    def poisoned(inputs: Arrays) -> Arrays:
        if (inputs["x"] == -1.0).any():
            bad[0] = True
            raise InferenceError("a poisoned row")
        return {"y": inputs["x"][:, 0]}

    timed = Timed(small_are_fast, poisoned)
    runtime = divided(timed)
    for _ in range(30):
        runtime.run(batch(16), ["y"])
    poison = batch(16)
    poison["x"][9, 0] = -1.0
    before = len(timed.rows)
    with pytest.raises(InferenceError, match="a poisoned row"):
        runtime.run(poison, ["y"])
    assert bad[0]
    assert len(timed.rows[before:]) > 1, "not the whole batch"
    assert sum(timed.rows[before:]) < 16
    assert (runtime.run(batch(16), ["y"])["y"] == batch(16)["x"][:, 0]).all()


@pytest.mark.parametrize("most", [20, 24, 32, 5])
def test_warm_up_runs_every_size_whole_once(most: int) -> None:
    timed = Timed(small_are_fast)
    warm_up(divided(timed), Examples([InputSpec("x", "FP32", (-1, 4))]), ["y"], most)
    assert set(powers(most)) <= set(timed.rows)


def test_a_batch_of_no_rows_and_texts_pass() -> None:
    runtime = divided(Timed(small_are_fast, lambda inputs: {"y": inputs["x"]}))
    assert runtime.run({"x": np.zeros((0, 4), np.float32)}, ["y"])["y"].shape == (0, 4)
    texts = np.array([f"t{each}" for each in range(32)], object)
    for _ in range(30):
        assert (runtime.run({"x": texts}, ["y"])["y"] == texts).all()


def test_short_batches_are_timed_one_in_eight() -> None:
    asked = [0]

    def clock() -> int:
        asked[0] += 1
        return 0

    runtime = DividedRuntime(StubRuntime(), clock)
    for _ in range(80):
        runtime.run(batch(4), ["y"])
    assert asked[0] <= 2 * (80 // 8 + 2)


def test_what_streams_is_not_divided_and_closing_closes_what_is_inside() -> None:
    streams = CallableRuntime(stream=lambda inputs: iter(()))
    assert dividing(streams) is streams
    stub = StubRuntime()
    runtime = dividing(stub)
    assert undivided(runtime) is stub
    assert undivided(stub) is stub
    runtime.close()
    assert stub.closed


def test_metrics_say_how_many_rows_run_at_a_time() -> None:
    timed = Timed(small_are_fast)
    runtime = divided(timed)
    assert list(run_samples([runtime])) == []
    during: list[bool] = []
    seen = set()
    for _ in range(40):
        before = len(timed.rows)
        last = runtime.run_rows
        timed.hook = lambda last=last: during.append(runtime.run_rows == last)
        runtime.run(batch(32), ["y"])
        [sample] = run_samples([runtime, StubRuntime()])
        assert sample.name == "tailcut_micro_batch_rows"
        assert sample.value == max(timed.rows[before:])
        seen.add(sample.value)
    assert {2, 32} <= seen
    assert all(during), "while a batch runs it is the last one's"


def test_the_thread_that_runs_it_tells_what_it_ran() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        timed = Timed(small_are_fast)
        runtime = divided(timed)
        parts = ThreadExecutor(runtime, lambda *_: None, loop, "in parts")
        whole = ThreadExecutor(timed, lambda *_: None, loop, "whole")
        assert parts.run_rows == 0
        for _ in range(30):
            runtime.run(batch(32), ["y"])
        assert parts.run_rows == runtime.run_rows > 0
        assert whole.run_rows == 0
        for executor in (parts, whole):
            executor.close(5.0)

    asyncio.run(main())
