"""Parity: the model's inputs of both sides, column by column."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tailcut.parity.analysis.columns import compare_columns, joined, matched, split
from tailcut.profiler.recording.model_inputs import ModelCall


def call_of(model: str, named: dict[str, Any], placed: list[Any]) -> ModelCall:
    return ModelCall(model=model, named=named, placed=tuple(placed))


NUMBERS = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.5]]
OURS = {"x": split("x", NUMBERS, 2, ("a", "b"))}


@pytest.mark.parametrize(
    "call",
    [
        call_of("M.predict", {}, [NUMBERS]),
        call_of("Session.run", {"x": NUMBERS}, []),
        call_of("Session.run", {"features": NUMBERS}, []),
        call_of("P.predict", {"b": [2.0, 4.0, 6.5], "a": [1.0, 3.0, 5.0], "more": ["x", "y", "z"]}, []),
    ],
)
def test_columns_are_matched_by_name_and_by_place(call: ModelCall) -> None:
    assert matched(call, OURS) == {"a": [1.0, 3.0, 5.0], "b": [2.0, 4.0, 6.5]}


@pytest.mark.parametrize(
    "call", [call_of("M.predict", {}, [[[1.0], [2.0], [3.0]]]), call_of("M.predict", {"y": []}, [])]
)
def test_another_form_is_not_matched(call: ModelCall) -> None:
    assert matched(call, OURS) is None


def test_inputs_of_their_own_are_matched_with_one_matrix() -> None:
    """Given a deployment with an input per column and a pilot with one array of all columns."""
    ours = {name: split(name, values, 0) for name, values in {"a": [1, 3, 5], "b": [2, 4, 6]}.items()}
    assert matched(call_of("M.predict", {}, [[[1, 2], [3, 4], [5, 6]]]), ours) == {
        "a": [1, 3, 5],
        "b": [2, 4, 6],
    }


def test_inputs_of_token_ids_are_one_value_per_row() -> None:
    tokens = [[101, 7, 102], [101, 8, 102]]
    ours = {"input_ids": split("input_ids", tokens, 0), "mask": split("mask", [[1, 1, 1]] * 2, 0)}
    call = call_of("Bert.__call__", {"mask": [[1, 1, 1]] * 2, "input_ids": tokens}, [])
    assert matched(call, ours) == {"input_ids": tokens, "mask": [[1, 1, 1]] * 2}
    placed = call_of("Bert.__call__", {}, [tokens, [[1, 1, 1]] * 2])
    assert matched(placed, ours) == {"input_ids": tokens, "mask": [[1, 1, 1]] * 2}


def test_a_call_per_row_is_put_together() -> None:
    calls = [
        call_of("Scaler.transform", {}, [[[0.0]]]),
        *(call_of("M.predict", {}, [[row]]) for row in NUMBERS),
    ]
    found = joined(calls, 3)
    assert found is not None
    assert found.placed == (NUMBERS,)
    assert joined(calls, 2) is None
    assert joined([], 1) is None


def difference(theirs: list[Any], ours: list[Any]) -> tuple[str, int]:
    found = compare_columns({"a": theirs}, {"a": ours}, range(len(ours)))
    return found[0].change, found[0].differing_rows


def test_differences_are_described() -> None:
    assert difference([2.0, 3.0, 4.0], [1.0, 2.0, 3.0]) == ("x + 1", 3)
    assert difference([2.0, 6.0, 8.0], [1.0, 3.0, 4.0]) == ("x * 2", 3)
    assert difference([1.23, 2.35, 4.0], [1.234, 2.346, 4.001]) == ("x rounded to 2 decimals", 3)
    assert difference([0.0, 2.0, 3.0], [math.nan, 2.0, 3.0]) == ("0 where x is missing", 1)
    assert difference([None, None, None], [1.0, 5.0, 3.0]) == ("always missing", 3)
    assert difference(["x", "y", "z"], ["X", "y", "Z"]) == ("", 2)
    assert difference([1.0, 9.0, 2.0, 7.0], [4.0, 1.0, 8.0, 3.0]) == ("", 4)


def test_null_is_no_missing_value_to_an_estimator_of_texts() -> None:
    change, differing = difference([None, "y", "z"], [math.nan, "y", "z"])
    assert (change.startswith("None where x is NaN"), differing) == (True, 1)
    assert compare_columns({"a": [None, 2.0]}, {"a": [math.nan, 2.0]}, [1, 2]) == []
