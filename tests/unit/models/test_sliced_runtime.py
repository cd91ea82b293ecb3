"""Large batches run as several smaller ones where the build found that faster: same answers, fewer rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.common.tensors import Arrays
from tailcut.errors import InferenceError
from tailcut.models.runtimes.sliced import SlicedRuntime, best_run_rows, run_rows_of, sliced, whole
from tailcut.testing.runtimes import StubRuntime


def batch(rows: int, length: int = 4) -> Arrays:
    return {"x": np.arange(rows * length, dtype=np.float32).reshape(rows, length)}


@given(st.integers(1, 70), st.integers(1, 40))
def test_answers_are_those_of_the_whole_batch_in_its_order(rows: int, most: int) -> None:
    stub = StubRuntime()
    found = SlicedRuntime(stub, most).run(batch(rows), ["y"])["y"]
    assert (found == StubRuntime().run(batch(rows), ["y"])["y"]).all()
    assert sum(stub.rows) == rows
    assert max(stub.rows) <= most
    assert max(stub.rows) - min(stub.rows) <= 1, "all slices alike"
    assert len(stub.rows) == -(-rows // most), "no more slices than needed"


def test_outputs_whose_shape_depends_on_the_batch_end_the_slicing() -> None:
    """As wide as the largest value in the batch: slices do not fit together, and batches run whole from then on."""
    stub = StubRuntime(lambda inputs: {"y": np.zeros((len(inputs["x"]), int(inputs["x"].max()) + 1), np.float32)})
    runtime = SlicedRuntime(stub, 4)
    for _ in range(2):
        assert runtime.run(batch(8), ["y"])["y"].shape == (8, 32)
    assert stub.rows == [4, 4, 8, 8]


def test_a_model_that_loses_rows_gets_its_batch_whole() -> None:
    stub = StubRuntime(lambda inputs: {"y": inputs["x"][:1]})
    assert len(SlicedRuntime(stub, 4).run(batch(8), ["y"])["y"]) == 1
    assert stub.rows == [4, 8]


def test_the_error_of_a_slice_is_the_error_of_the_batch() -> None:
    def poisoned(inputs: Arrays) -> Arrays:
        if (inputs["x"] == 20.0).any():
            raise InferenceError("a poisoned row")
        return {"y": inputs["x"][:, 0]}

    stub = StubRuntime(poisoned)
    with pytest.raises(InferenceError, match="a poisoned row"):
        SlicedRuntime(stub, 2).run(batch(8), ["y"])
    assert stub.rows == [2, 2, 2]


def test_a_batch_of_no_rows_and_texts_pass() -> None:
    runtime = SlicedRuntime(StubRuntime(lambda inputs: {"y": inputs["x"]}), 8)
    assert runtime.run({"x": np.zeros((0, 4), np.float32)}, ["y"])["y"].shape == (0, 4)
    texts = np.array([f"t{each}" for each in range(32)], object)
    assert (runtime.run({"x": texts}, ["y"])["y"] == texts).all()


def test_only_a_variant_with_the_setting_is_sliced_and_none_that_streams() -> None:
    class Streams(StubRuntime):
        def stream(self, inputs: Arrays, outputs: Sequence[str]) -> Iterator[Arrays]:
            yield inputs

    stub, streams = StubRuntime(), Streams()
    assert sliced(stub, {"threads": 2}) is stub
    assert sliced(streams, {"run_rows": 2}) is streams
    runtime = sliced(stub, {"run_rows": 2})
    runtime.run(batch(4), ["y"])
    assert stub.rows == [2, 2]
    runtime.close()
    assert stub.closed


@pytest.mark.parametrize(
    ("row_ms", "chosen"),
    [
        ({1: 6.3, 2: 6.1, 4: 6.4, 8: 7.0, 16: 7.5, 32: 7.8}, 2),
        ({1: 7.8, 2: 6.6, 4: 6.2, 8: 6.06, 16: 6.0, 32: 6.7}, 16),
        ({1: 7.8, 2: 6.05, 4: 6.0, 8: 6.06, 16: 6.2, 32: 7.8}, 8),
        ({1: 28.0, 2: 24.0, 4: 22.0, 8: 21.0}, None),
        ({1: 6.1, 2: 6.0, 4: 6.1}, None),
        ({1: 0.05, 2: 0.04, 4: 0.06, 8: 0.07}, None),
        ({}, None),
    ],
)
def test_the_size_of_a_run_is_the_largest_that_is_cheapest_by_the_row(
    row_ms: dict[int, float], chosen: int | None
) -> None:
    assert best_run_rows({rows: each_ms * rows for rows, each_ms in row_ms.items()}) == chosen


@pytest.mark.parametrize("bad", [None, True, "4", 2.0, 0, -1])
def test_a_setting_that_is_no_number_of_rows_slices_nothing(bad: object) -> None:
    stub = StubRuntime()
    assert run_rows_of({"run_rows": bad}) == 0
    assert sliced(stub, {"run_rows": bad}) is stub


def test_settings_without_slices_keep_all_else() -> None:
    assert whole({"threads": 2, "run_rows": 4}) == {"threads": 2}
