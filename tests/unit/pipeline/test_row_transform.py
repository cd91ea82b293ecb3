from __future__ import annotations

import json
import re
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from tailcut.errors import BadRequest, HookError, InferenceError
from tailcut.manifest import Field, Model, TensorSpec
from tailcut.pipeline.row_transform import RowTransform, encode_answer


@dataclass
class Answer:
    """A hook's own class of answers."""

    p: Any


def model(*inputs: TensorSpec) -> Model:
    return Model(source="m:m", inputs=inputs, outputs=(TensorSpec(name="y"),))


def transform(datatype: Any = "FP32", columns: tuple[str, ...] = ("a", "b"), allow_nan: bool = False) -> RowTransform:
    return RowTransform(
        model(TensorSpec(name="x", datatype=datatype, shape=(-1, len(columns)), columns=columns, allow_nan=allow_nan)),
        None,
        None,
    )


def with_hooks(pre: Callable[..., Any] | None = None, post: Callable[..., Any] | None = None) -> RowTransform:
    return RowTransform(model(TensorSpec(name="x", shape=(-1, 2))), pre, post)


def test_columns_fill_the_input_in_the_manifests_order() -> None:
    given = transform().inputs([{"b": 2, "a": 1}, {"a": 3, "b": Decimal("4.5")}], from_client=True)
    np.testing.assert_array_equal(given["x"], np.array([[1, 2], [3, 4.5]], np.float32))
    assert given["x"].dtype == np.float32


def test_an_input_without_columns_is_a_field_of_its_own_name() -> None:
    two = RowTransform(
        model(TensorSpec(name="ids", datatype="INT64", shape=(-1, -1)), TensorSpec(name="w")), None, None
    )
    given = two.inputs([{"ids": [1, 2, 3], "w": 0.5}, {"ids": [4, 5, 6], "w": 1}], from_client=True)
    assert given["ids"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert given["w"].tolist() == [0.5, 1.0]


@pytest.mark.parametrize(
    ("datatype", "value", "says"),
    [
        ("FP32", "1.5", "input 'x' holds '1.5', which is no FP32"),
        ("FP32", [1], "takes one value per row, got a list of shape \\[1\\]"),
        ("FP32", None, r"NaN \(in JSON null\) in row 0"),
        ("FP32", 1e300, r"holds 1e\+300, which is no FP32"),
        ("FP16", 65520, "input 'x' holds 65520, which is no FP16"),
        ("FP16", -(2**63), "input 'x' holds -9223372036854775808, which is no FP16"),
        ("FP64", -(10**400), "input 'x' holds -1000.*, which is no FP64"),
        ("INT64", 10**400, "input 'x' holds 1000.*, which is no INT64"),
        ("INT64", 1.5, "input 'x' holds 1.5, which is no INT64"),
        ("INT64", None, "which is no INT64"),
        ("INT64", 2**60 + 0.5, "which is no INT64"),
        ("INT64", 2**64, "which is no INT64"),
        ("INT8", 128, "input 'x' holds 128, which is no INT8"),
        ("UINT8", -1, "input 'x' holds -1, which is no UINT8"),
        ("BOOL", 1, "input 'x' holds 1, which is no BOOL"),
        ("BOOL", "no", "input 'x' holds 'no', which is no BOOL"),
        ("BYTES", 1, "input 'x' holds 1, which is no BYTES"),
        ("FP32", {"c": 1}, "which is no FP32"),
    ],
)
def test_values_that_would_not_survive_the_datatype_are_refused(datatype: str, value: object, says: str) -> None:
    good = {"BYTES": "t", "BOOL": True}.get(datatype, 1)
    for row in ({"a": value, "b": good}, {"a": good, "b": value}):
        with pytest.raises(BadRequest) as caught:
            transform(datatype).inputs([row], from_client=True)
        assert re.search(says, caught.value.message)
        assert caught.value.hint == "a row is an object with a, b"


@pytest.mark.parametrize(
    ("datatype", "value", "becomes"),
    [
        ("INT64", 2.0, 2),
        ("INT64", Decimal("9007199254740993"), 2**53 + 1),
        ("INT64", np.int64(2**53 + 1), 2**53 + 1),
        ("FP64", 2**53 + 1, 2.0**53),
        ("FP32", 2**54 + 2**30 + 1, 2.0**54),  # by way of the nearest double, as in a tensor of JSON
        ("BYTES", "é".encode(), "é"),
        ("INT64", -(2**63), -(2**63)),
        ("UINT64", 2**64 - 1, 2**64 - 1),
        ("INT8", True, 1),
        ("FP32", True, 1.0),
        ("FP16", 0.5, 0.5),
        ("BYTES", "t", "t"),
        ("BOOL", False, False),
    ],
)
def test_values_that_survive_pass(datatype: str, value: object, becomes: object) -> None:
    assert transform(datatype, ("a",)).inputs([{"a": value}], from_client=True)["x"].tolist() == [[becomes]]


def test_of_two_values_the_one_that_does_not_survive_is_named() -> None:
    with pytest.raises(BadRequest, match=r"holds 70000\.0, which is no FP16"):
        transform("FP16").inputs([{"a": 65510.0, "b": 70000.0}], from_client=True)


@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        ("INT64", [2**53 + 1, 2.0]),
        ("INT64", [2**53 + 1, Decimal(2)]),
        ("INT64", [-(2**63), 2**63 - 1]),
        ("UINT64", [2**63 + 5, 3]),
        ("UINT64", [2**64 - 1, 1.0]),
        ("UINT64", [2**64 - 1, True]),
    ],
)
def test_a_whole_number_is_exact_whatever_is_beside_it(datatype: str, values: list[Any]) -> None:
    a, b = values
    given = transform(datatype).inputs([{"a": a, "b": b}, {"a": b, "b": a}], from_client=True)["x"]
    assert given.tolist() == [[int(a), int(b)], [int(b), int(a)]]
    assert given.dtype == datatype.lower()


@pytest.mark.parametrize(
    ("datatype", "value"),
    [
        ("INT64", None),
        ("INT64", np.nan),
        ("INT64", np.inf),
        ("INT64", 2.0**53),
        ("INT64", 0.5),
        ("INT64", 2**63),
        ("UINT64", -1),
        ("UINT64", 2**64),
        ("INT64", Decimal("NaN")),
        ("INT64", Decimal("1.5")),
    ],
)
@pytest.mark.parametrize("beside", [1, 2**53 + 1, 1.0])
def test_what_is_no_whole_number_is_named_whatever_is_beside_it(datatype: str, value: Any, beside: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        transform(datatype).inputs([{"a": beside, "b": value}], from_client=True)
    assert caught.value.message.endswith(f"input 'x' holds {value!r}, which is no {datatype}")


def test_bytes_of_a_hook_reach_the_model_as_text() -> None:
    model = Model(source="m:m", inputs=(TensorSpec(name="x", datatype="BYTES"),), outputs=(TensorSpec(name="y"),))
    transform = RowTransform(model, lambda rows: {"x": np.array([row["x"] for row in rows], object)}, None)
    assert transform.inputs([{"x": b"a"}, {"x": "é"}], from_client=True)["x"].tolist() == ["a", "é"]
    with pytest.raises(BadRequest, match="is no UTF-8 text"):
        transform.inputs([{"x": b"\xff"}], from_client=True)


def test_none_is_nan_where_the_model_takes_nan_but_overflow_is_still_refused() -> None:
    given = transform(allow_nan=True).inputs([{"a": None, "b": 1}], from_client=True)["x"]
    assert np.isnan(given[0, 0])
    with pytest.raises(BadRequest, match=r"holds 1e\+300, which is no FP32"):
        transform(allow_nan=True).inputs([{"a": 1e300, "b": 1}], from_client=True)


def test_one_long_text_does_not_make_every_value_as_large() -> None:
    """As an array of text, 10,000 values beside one of a million characters would take 40 GB."""
    rows: list[dict[str, Any]] = [{"a": 1, "b": 2} for _ in range(5_000)]
    rows[2_500] = {"a": "x" * 1_000_000, "b": 2}
    tracemalloc.start()
    try:
        with pytest.raises(BadRequest, match=r"input 'x' holds 'xxx.*', which is no FP32"):
            transform().inputs(rows, from_client=True)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("value", [["y"], [["y"]], [1, "y"], b"y"])
def test_text_is_found_at_every_depth(value: object) -> None:
    with pytest.raises(BadRequest, match="which is no FP32"):
        RowTransform(model(TensorSpec(name="x", shape=(-1, -1))), None, None).inputs(
            [{"x": value}] * 2, from_client=True
        )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_output_that_is_not_finite_is_an_error(value: float) -> None:
    with pytest.raises(InferenceError, match="NaN or infinity in output 'y'"):
        transform().answers({"y": np.array([0, value], np.float32)}, 2)


def test_a_missing_column_is_named() -> None:
    with pytest.raises(BadRequest, match="row 0: the field 'b' is missing"):
        transform().inputs([{"a": 1}], from_client=True)


@pytest.mark.parametrize("columns", [("x",), ()])
@pytest.mark.parametrize(("value", "seen"), [([1.0], [1]), ([1.0, 2.0], [2]), ([[1.0]], [1, 1])])
def test_a_list_where_one_value_belongs_is_refused(columns: tuple[str, ...], value: object, seen: list[int]) -> None:
    tensor = TensorSpec(name="x", shape=(-1, 1) if columns else (-1,), columns=columns)
    with pytest.raises(BadRequest) as caught:
        RowTransform(model(tensor), None, None).inputs([{"x": value}] * 3, from_client=True)
    said = f"row 0: the field 'x': input 'x' takes one value per row, got a list of shape {seen}"
    assert said in caught.value.message


@pytest.mark.parametrize("shape", [(-1, 2), (-1, 2, 1), (-1, -1)])
def test_a_vector_of_one_value_that_a_feature_group_has_is_its_value(shape: tuple[int, ...]) -> None:
    """A model that answers in shape [-1, 1] gives vectors, beside the numbers of a table."""
    two = RowTransform(model(TensorSpec(name="x", shape=shape, columns=("a", "b"))), None, None)
    for a, b in (((1.0,), 2.0), (((1.0,),), (2.0,)), (1.0, [2.0])):
        given = two.inputs([{"a": a, "b": b}] * 3, from_client=False)
        assert given["x"].ravel().tolist() == [1, 2] * 3


@pytest.mark.parametrize(("a", "b"), [((1.0, 2.0), ()), ((), 2.0), ((1.0,), "text")])
def test_feature_rows_of_other_widths_are_refused(a: object, b: object) -> None:
    two = RowTransform(model(TensorSpec(name="x", shape=(-1, 2), columns=("a", "b"))), None, None)
    with pytest.raises(HookError) as caught:
        two.inputs([{"a": a, "b": b}], from_client=False)
    assert f"row 0: the field {'b' if b == 'text' else 'a'!r}" in caught.value.detail


def test_lists_of_the_inputs_shape_flat_ones_and_bare_numbers_pass() -> None:
    square = RowTransform(model(TensorSpec(name="x", shape=(-1, 2, 2))), None, None)
    for value in ([[1, 2], [3, 4]], [1, 2, 3, 4]):
        assert square.inputs([{"x": value}], from_client=True)["x"].tolist() == [[[1, 2], [3, 4]]]
    deep = RowTransform(model(TensorSpec(name="x", shape=(-1, 1, 1))), None, None)
    assert deep.inputs([{"x": 5}], from_client=True)["x"].tolist() == [[[5]]]
    column = TensorSpec(name="x", shape=(-1,), columns=("a",))
    assert RowTransform(model(column), None, None).inputs([{"a": 5}] * 2, from_client=True)["x"].tolist() == [5, 5]
    assert RowTransform(model(TensorSpec(name="x", shape=(-1, 1))), None, None).inputs([{"x": 5}], from_client=True)[
        "x"
    ].tolist() == [[5]]


def test_the_wrong_row_is_looked_for_among_the_first_only() -> None:
    """To try each field alone takes far longer than to read the request, and holds other requests up."""
    rows: list[dict[str, object]] = [{"a": 1.0, "b": 2.0} for _ in range(1_000)]
    rows[-1]["b"] = "a"
    with pytest.raises(BadRequest, match="holds 'a', which is no FP32") as caught:
        transform().inputs(rows, from_client=True)
    assert "row 999" not in caught.value.message


@pytest.mark.parametrize(("bad", "says"), [("a", "holds 'a', which is no FP32"), (None, "missing")])
def test_the_row_that_is_wrong_is_named(bad: object, says: str) -> None:
    rows: list[dict[str, object]] = [{"a": 1.0, "b": 2.0} for _ in range(5)]
    if bad is None:
        del rows[3]["b"]
    else:
        rows[3]["b"] = bad
    with pytest.raises(BadRequest, match=f"row 3: the field 'b'.*{says}"):
        transform().inputs(rows, from_client=True)


def test_the_same_fault_in_feature_rows_is_not_the_clients() -> None:
    with pytest.raises(HookError, match="row 0: the field 'b' is missing") as caught:
        transform().inputs([{"a": 1}], from_client=False)
    assert "tailcut check" in caught.value.hint


@pytest.mark.parametrize(
    ("hook", "says"),
    [
        (lambda rows: {}, "preprocess returned no input 'x'"),
        (lambda rows: {"x": np.zeros((2, 2), np.float32)}, "preprocess turned 1 rows into 2"),
        (lambda rows: None, "NoneType"),
        (lambda rows: {"x": [[1, 2]]}, "list"),
        (lambda rows: {"x": np.zeros((1, 3), np.float32)}, r"shape \[1, 3\]"),
        (lambda rows: {"x": np.array([["1", "2"]])}, "'1'"),
        (lambda rows: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
)
def test_a_preprocess_that_fails_on_feature_rows_is_the_servers_fault(hook: Callable[..., Any], says: str) -> None:
    with pytest.raises(HookError, match=says):
        with_hooks(hook).inputs([{}], from_client=False)


def test_a_preprocess_may_answer_in_a_wider_datatype() -> None:
    given = with_hooks(lambda rows: {"x": np.ones((len(rows), 2))}).inputs([{}], from_client=True)
    assert given["x"].dtype == np.float32


def test_without_a_hook_an_answer_is_an_object_of_outputs() -> None:
    outputs = {"y": np.array([0.5, 1], np.float32), "z": np.array([[1, 2], [3, 4]])}
    assert transform().answers(outputs, 2) == [{"y": 0.5, "z": [1, 2]}, {"y": 1.0, "z": [3, 4]}]


@pytest.mark.parametrize(
    ("hook", "says"),
    [
        (lambda outputs: [1], "postprocess returned 1 values for 2 rows"),
        (lambda outputs: None, "postprocess returned NoneType"),
        (lambda outputs: {"a": 1, "b": 2}, "postprocess returned dict"),
        (lambda outputs: "ab", "postprocess returned str"),
        (lambda outputs: outputs["q"], "'q'"),
    ],
)
def test_a_postprocess_that_fails_is_the_servers_fault(hook: Callable[..., Any], says: str) -> None:
    with pytest.raises(HookError, match=says) as caught:
        with_hooks(post=hook).answers({"y": np.zeros(2)}, 2)
    assert caught.value.hint


def test_a_postprocess_may_answer_with_an_array() -> None:
    answers = with_hooks(post=lambda outputs: outputs["y"]).answers({"y": np.array([1, 2], np.float32)}, 2)
    assert json.loads(encode_answer(answers)) == [1.0, 2.0]


@pytest.mark.parametrize("value", [np.float32(0.5), np.array([0.5])[0], 0.5])
def test_numpy_scalars_are_written_as_numbers(value: object) -> None:
    assert json.loads(encode_answer({"p": value})) == {"p": 0.5}


@pytest.mark.parametrize("value", [object(), {1.5j: 1}, [1j], {(1, 2): 3}])
def test_what_json_does_not_have_is_the_hooks_fault(value: object) -> None:
    with pytest.raises(HookError, match="that JSON cannot hold"):
        encode_answer([value])


def test_an_answer_that_holds_itself_is_the_hooks_fault() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(HookError, match="recursion"):
        encode_answer(loop)


def raising(error: BaseException) -> Callable[..., Any]:
    def hook(_: Any) -> Any:
        raise error

    return hook


SECRET = "the password is hunter2"


@pytest.mark.parametrize(
    "hook",
    [
        raising(RuntimeError(SECRET)),
        raising(AttributeError(SECRET)),
        raising(TypeError(SECRET)),
        raising(SystemExit(SECRET)),
        lambda rows: None,
        lambda rows: {},
        lambda rows: {"x": [[1, 2]]},
        lambda rows: {"x": np.zeros((1, 3), np.float32)},
        lambda rows: {"x": np.zeros((2, 2), np.float32)},
    ],
)
def test_a_bug_in_preprocess_is_not_the_clients_fault(hook: Callable[..., Any]) -> None:
    with pytest.raises(HookError) as caught:
        with_hooks(hook).inputs([{"a": 1}], from_client=True)
    assert caught.value.hint
    assert SECRET not in caught.value.message + caught.value.hint


def test_where_a_hook_raised_is_told_to_the_operator() -> None:
    with pytest.raises(HookError) as caught:
        with_hooks(raising(RuntimeError(SECRET))).inputs([{"a": 1}], from_client=True)
    assert re.fullmatch(rf"RuntimeError: {SECRET} \(.*test_row_transform\.py:\d+\)", caught.value.detail)
    with pytest.raises(HookError, match="postprocess failed") as caught:
        with_hooks(post=lambda outputs: outputs["prob"]).answers({"y": np.zeros(1)}, 1)
    assert re.fullmatch(r"KeyError: 'prob' \(.*test_row_transform\.py:\d+\)", caught.value.detail)


def test_a_preprocess_says_to_clients_what_it_raises_as_a_bad_request() -> None:
    hook = raising(BadRequest("age is 200", hint="send 0 to 130"))
    with pytest.raises(BadRequest) as caught:
        with_hooks(hook).inputs([{"age": 200}], from_client=True)
    assert (caught.value.message, caught.value.hint) == ("age is 200", "send 0 to 130")
    with pytest.raises(HookError, match="age is 200"):
        with_hooks(hook).inputs([{"age": 200}], from_client=False)


def test_a_field_that_a_row_lacks_is_named() -> None:
    with pytest.raises(BadRequest, match="row 1 has no field 'age'"):
        with_hooks(lambda rows: [row["age"] for row in rows]).inputs([{"age": 1}, {"Age": 2}], from_client=True)


def test_a_value_that_preprocess_does_not_know_is_no_missing_field() -> None:
    with pytest.raises(BadRequest) as caught:
        with_hooks(lambda rows: [{"UA": 1}[row["carrier"]] for row in rows]).inputs(
            [{"carrier": "XX"}], from_client=True
        )
    assert caught.value.message == "preprocess refuses the rows (KeyError)"
    assert "'XX'" in caught.value.detail


def test_a_value_error_of_preprocess_refuses_the_rows_and_keeps_its_text_to_the_log() -> None:
    with pytest.raises(BadRequest) as caught:
        with_hooks(lambda rows: [float(row["age"]) for row in rows]).inputs([{"age": SECRET}], from_client=True)
    assert caught.value.message == "preprocess refuses the rows (ValueError)"
    assert SECRET in caught.value.detail
    assert SECRET not in caught.value.hint


@pytest.mark.parametrize(
    "value",
    [
        *[
            np.nan,
            [1.0, np.inf],
            {"p": [np.nan]},
            np.array([np.nan]),
            np.float32("nan"),
            {1, 2},
            b"a",
            [np.bytes_(b"a")],
        ],
        *[Answer(np.nan), {"p": (Answer([np.inf]),)}, OrderedDict(p=np.nan), np.array([0.5, np.nan], object)],
        *[np.array([b"a"]), {"p": bytearray(b"a")}],
    ],
)
def test_a_postprocess_may_not_answer_what_json_does_not_have(value: Any) -> None:
    with pytest.raises(HookError, match=r"postprocess returned (NaN or infinity|a set|bytes) in the answer for row 1"):
        with_hooks(post=lambda outputs: [0.5, value]).answers({"y": np.zeros(2)}, 2)


def test_a_postprocess_may_answer_nan_where_an_output_may_hold_it() -> None:
    model = Model(source="m:m", inputs=(TensorSpec(name="x"),), outputs=(TensorSpec(name="y", allow_nan=True),))
    answers = RowTransform(model, None, lambda outputs: outputs["y"].tolist()).answers({"y": np.array([np.nan])}, 1)
    assert json.loads(encode_answer(answers)) == [None]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.inf, b"1e999"),
        (-np.inf, b"-1e999"),
        ([None, np.nan, np.inf], b"[null,null,1e999]"),
        (np.array([[np.nan, -np.inf]], np.float32), b"[[null,-1e999]]"),
        (np.float32("inf"), b"1e999"),
        (Answer([np.inf]), b'{"p":[1e999]}'),
        ({"p": "null"}, b'{"p":"null"}'),
    ],
)
def test_infinity_is_never_answered_as_null(value: Any, text: bytes) -> None:
    model = Model(source="m:m", inputs=(TensorSpec(name="x"),), outputs=(TensorSpec(name="y", allow_nan=True),))
    answers = RowTransform(model, None, lambda outputs: [value]).answers({"y": np.array([np.nan])}, 1)
    assert encode_answer(answers) == b"[" + text + b"]"


def test_bytes_of_a_model_are_text_in_answers_or_an_error() -> None:
    model = Model(source="m:m", inputs=(TensorSpec(name="x"),), outputs=(TensorSpec(name="y", datatype="BYTES"),))
    found = RowTransform(model, None, None).answers({"y": np.array([["é".encode(), "a"]], object)}, 1)
    assert found == [{"y": ["é", "a"]}]
    with pytest.raises(InferenceError, match="no UTF-8") as caught:
        RowTransform(model, None, None).answers({"y": np.array([b"\xff"], object)}, 1)
    assert "binary_data_output" in caught.value.hint


@pytest.mark.parametrize("value", [[1e308, 1e308], [], {"p": [0.5, None, "a"]}, [[0.5], [1]], np.array([1])])
def test_what_json_has_passes(value: Any) -> None:
    assert with_hooks(post=lambda outputs: [value]).answers({"y": np.zeros(1)}, 1) == [value]


@pytest.mark.parametrize("fields", [(), ("text", "text_pair")])
def test_a_field_of_a_clients_row_that_nothing_reads_is_refused(fields: tuple[str, ...]) -> None:
    if fields:
        implied = lambda rows: {"x": np.ones((len(rows), 2), np.float32)}  # noqa: E731
        held = RowTransform(model(TensorSpec(name="x", shape=(-1, 2))), implied, None, fields=fields)
    else:
        held = transform()
    good: dict[str, Any] = dict.fromkeys(fields or ("a", "b"), 1)
    assert held.inputs([good], from_client=True)["x"].shape == (1, 2)
    with pytest.raises(BadRequest, match="row 1 has the unknown field 'agee'") as caught:
        held.inputs([good, {**good, "agee": 3}], from_client=True)
    assert caught.value.hint == f"its fields are {', '.join(good)}"
    # Feature groups may yield more columns than the model takes.
    assert held.inputs([{**good, "agee": 3}], from_client=False)["x"].shape == (1, 2)


def test_fields_that_the_manifest_declares_are_known() -> None:
    tensor = TensorSpec(name="x", shape=(-1, 1), columns=("a",))
    declared = Model(source="m:m", inputs=(tensor,), outputs=(TensorSpec(name="y"),), fields=(Field(name="session"),))
    held = RowTransform(declared, None, None)
    assert held.inputs([{"a": 1, "session": "s"}], from_client=True)["x"].tolist() == [[1]]
    with pytest.raises(BadRequest, match="unknown field 'b'"):
        held.inputs([{"a": 1, "b": 2}], from_client=True)


def test_any_field_goes_to_a_hook_of_the_users() -> None:
    hook = lambda rows: {"x": np.array([[row["a"], row.get("b", 0)] for row in rows], np.float32)}  # noqa: E731
    assert with_hooks(hook).inputs([{"a": 1, "b": 2, "c": 3}], from_client=True)["x"].tolist() == [[1, 2]]
