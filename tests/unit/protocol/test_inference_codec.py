from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest

from tailcut.common.validation import InputSpec
from tailcut.errors import BadRequest, InferenceError, TooLarge
from tailcut.protocol.open_inference.codec import InferenceCodec

ONE = InferenceCodec("m", "7", [InputSpec("x", "FP32", (-1, 2))], ("y",), max_rows=1024)
TWO = InferenceCodec(
    "m", "7", [InputSpec("x", "FP32", (-1, 2)), InputSpec("n", "INT8", (-1,))], ("y", "z"), max_rows=1024
)


def tensor(name: str = "x", shape: Any = (1, 2), datatype: Any = "FP32", data: Any = (0.5, 1)) -> dict[str, Any]:
    return {"name": name, "shape": shape, "datatype": datatype, "data": data}


def body(*inputs: Any, **more: Any) -> bytes:
    return json.dumps({"inputs": list(inputs), **more}).encode()


def refused(codec: InferenceCodec, raw: bytes) -> str:
    with pytest.raises(BadRequest) as caught:
        codec.decode(raw)
    assert caught.value.hint
    return caught.value.message


def test_flat_and_nested_data_are_the_same() -> None:
    flat = ONE.decode(body(tensor(shape=[2, 2], data=[1, 2, 3, 4])))
    nested = ONE.decode(body(tensor(shape=[2, 2], data=[[1, 2], [3, 4]])))
    assert flat.rows == nested.rows == 2
    np.testing.assert_array_equal(flat.inputs["x"], nested.inputs["x"])
    np.testing.assert_array_equal(flat.inputs["x"], np.array([[1, 2], [3, 4]], np.float32))
    assert flat.inputs["x"].dtype == np.float32


def test_the_array_can_be_written_to() -> None:
    """Torch warns of arrays that cannot, and hooks may change theirs."""
    assert ONE.decode(body(tensor())).inputs["x"].flags.writeable


def test_inputs_come_in_the_models_order() -> None:
    parsed = TWO.decode(body(tensor("n", [1], "INT8", [-128]), tensor()))
    assert list(parsed.inputs) == ["x", "n"]
    assert parsed.inputs["n"].dtype == np.int8


def test_id_timeout_and_outputs_are_taken_over() -> None:
    parsed = TWO.decode(
        body(
            tensor(),
            tensor("n", [1], "INT8", [1]),
            id="a",
            parameters={"timeout": 5, "x": [1]},
            outputs=[{"name": "z"}],
        )
    )
    assert (parsed.id, parsed.timeout_ns, parsed.outputs) == ("a", 5000, ("z",))
    all_of_them = TWO.decode(body(tensor(), tensor("n", [1], "INT8", [1]), outputs=[{"name": "y"}, {"name": "z"}]))
    assert all_of_them.outputs is TWO.decode(body(tensor(), tensor("n", [1], "INT8", [1]))).outputs
    swapped = TWO.decode(body(tensor(), tensor("n", [1], "INT8", [1]), outputs=[{"name": "z"}, {"name": "y"}]))
    assert swapped.outputs == ("z", "y")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (tensor(datatype="FP64"), "input 'x' has datatype 'FP64', expected FP32"),
        (tensor(datatype="STRING"), "input 'x' has datatype 'STRING', expected FP32"),
        (tensor(shape=[2]), r"input 'x' has shape \[2\], expected \[-1, 2\]"),
        (tensor(shape=[0, 2], data=[]), r"input 'x' has shape \[0, 2\]"),
        (tensor(shape=[-1, 2]), r"input 'x' has shape \[-1, 2\]"),
        (tensor(shape=[1, 2], data=[1]), r"input 'x' has 1 values for shape \[1, 2\], expected 2"),
        (tensor(shape=[1, 2], data=[1, 2, 3]), "has 3 values"),
        (tensor(data=[1, None]), r"input 'x' holds NaN \(in JSON null\) in row 0, which this model does not accept"),
        (tensor(data=[1, "2"]), "input 'x' holds '2'"),
        (tensor(data=[1, True]), "input 'x' holds True"),
        (tensor(data=[1, [2]]), r"input 'x' holds \[2\]"),
        (tensor(data=[[1], 2]), "input 'x'"),
        (tensor(shape=[2, 2], data=[[1, 2], [3]]), "input 'x': data is ragged"),
        (tensor(shape=[2, 2], data=[[1], [2], [3], [4]]), "nested data does not have shape"),
        (tensor(shape=[1, 2], data=[[[1], [2]]]), "input 'x' holds"),
        (tensor(shape=[1, 2], data=[[]]), "has 0 values"),
        (tensor(data=[1, 1e300]), r"input 'x' holds a value that FP32 cannot hold: 1e\+300$"),
        (tensor(data=[1, 10**400]), r"input 'x' holds a value that FP32 cannot hold: 10+\.\.\.0+$"),
        ({"name": "x", "shape": [1, 2], "datatype": "FP32"}, "input 'x' has no data"),
        (tensor("y"), "input 'x' is missing; input 'y' is unknown"),
        (tensor(shape=[1.5, 2]), "inputs"),
        (tensor(shape="12"), "shape"),
        (tensor(data={"a": 1}), "data"),
        ({"name": "x"}, "missing required field"),
    ],
)
def test_a_wrong_input_is_refused(wrong: Any, says: str) -> None:
    assert re.search(says, refused(ONE, body(wrong)))


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ([], "input 'x' is missing"),
        ([tensor()], "input 'n' is missing"),
        ([tensor(), tensor()], "input 'x' is given twice"),
        ([tensor(), tensor("n", [1], "INT8", [1]), tensor("q")], "input 'q' is unknown"),
        ([tensor(shape=[2, 2], data=[1, 2, 3, 4]), tensor("n", [1], "INT8", [1])], "x: 2, n: 1"),
        ([tensor(), tensor("n", [1], "INT8", [128])], "input 'n' holds a value that INT8 cannot hold"),
        ([tensor(), tensor("n", [1], "INT8", [-129])], "input 'n' holds a value that INT8 cannot hold"),
        ([tensor(), tensor("n", [1], "INT8", [10**30])], f"input 'n' holds a value that INT8 cannot hold: {10**30}"),
        ([tensor(), tensor("n", [1], "INT8", [1.0])], "input 'n' holds 1.0 (float), which is no INT8"),
        ([tensor(), tensor("n", [1], "INT8", [True])], "input 'n' holds True (bool)"),
    ],
)
def test_wrong_sets_of_inputs_are_refused(inputs: list[Any], says: str) -> None:
    assert says in refused(TWO, body(*inputs))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"outputs": [{"name": "q"}]}, "output 'q' is unknown"),
        ({"outputs": [{"name": "y"}, {"name": "y"}]}, "requested twice"),
        ({"parameters": {"timeout": -1}}, "parameter timeout is -1"),
        ({"parameters": {"timeout": 1.5}}, "parameter timeout is 1.5"),
        ({"parameters": {"timeout": True}}, "parameter timeout is True"),
        ({"parameters": {"timeout": "1"}}, "parameter timeout is '1'"),
    ],
)
def test_wrong_options_are_refused(more: dict[str, Any], says: str) -> None:
    assert says in refused(ONE, body(tensor(), **more))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b'{"inputs": [{"name": "\xff"}]}',
        b'{"id": "\xff", "inputs": []}',
        b'{"inputs": [{"name": "\\ud800"}]}',
        b'{"inputs": {}}',
        b'{"inputs": [1]}',
        b'{"inputs": [], "parameters": {"a": ' + b"[" * 100_000,
        b'{"inputs": [{"name":"x","shape":[1,2],"datatype":"FP32","data":' + b"[" * 100_000,
        b'{"inputs": [{"name":"x","shape":[1,2],"datatype":"FP32","data":[NaN, 1]}]}',
        b'{"inputs": [{"name":"x","shape":[1,2],"datatype":"FP32","data":[Infinity, 1]}]}',
        b'{"inputs": [{"name":"x","shape":[1,2],"datatype":"FP32","data":[1e400, 1]}]}',
        b'{"inputs": [{"name":"x","shape":[1' + b"0" * 5000 + b',2],"datatype":"FP32","data":[1, 1]}]}',
        b'{"inputs": [{"name":"x","shape":[1' + b"0" * 4000 + b',2],"datatype":"FP32","data":[1, 1]}]}',
    ],
)
def test_what_is_no_request_is_refused(raw: bytes) -> None:
    assert refused(ONE, raw)
    assert refused(TWO, raw)


def test_shapes_whose_product_has_thousands_of_digits_are_refused() -> None:
    codec = InferenceCodec("m", "7", [InputSpec("x", "FP32", (-1, -1))], ("y",), max_rows=1024)
    assert "limit per dimension" in refused(codec, body(tensor(shape=[10**4000, 10**4000])))


def test_long_values_are_not_sent_back_whole() -> None:
    assert len(refused(ONE, body(tensor(data=["a" * 1_000_000, 1])))) < 300
    assert len(refused(ONE, body(tensor(datatype="a" * 1_000_000)))) < 300
    assert len(refused(ONE, body(tensor(), outputs=[{"name": "a" * 1_000_000}]))) < 300


def test_bytes_inputs_take_text() -> None:
    codec = InferenceCodec("m", "7", [InputSpec("t", "BYTES", (-1,))], ("y",), max_rows=1024)
    assert codec.decode(body(tensor("t", [2], "BYTES", ["a", "é"]))).inputs["t"].tolist() == ["a", "é"]
    assert "holds 1" in refused(codec, body(tensor("t", [1], "BYTES", [1])))


def test_the_reply_names_model_version_id_and_the_outputs_asked_for() -> None:
    parsed = TWO.decode(body(tensor(), tensor("n", [1], "INT8", [1]), id="a", outputs=[{"name": "z"}, {"name": "y"}]))
    outputs = {"y": np.array([[1.5, 2]], np.float32), "z": np.array(["a", b"b"], object)}
    assert json.loads(TWO.encode(parsed, outputs)) == {
        "model_name": "m",
        "model_version": "7",
        "id": "a",
        "outputs": [
            {"name": "z", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]},
            {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.5, 2.0]},
        ],
    }


def test_more_rows_than_the_queue_takes_are_refused_before_their_data_is_looked_at() -> None:
    """Also where the data is no such tensor at all: nothing is flattened or packed for a request that cannot run."""
    codec = InferenceCodec("m", "7", [InputSpec("x", "FP32", (-1, 2))], ("y",), max_rows=4)
    assert codec.decode(body(tensor(shape=[4, 2], data=[1] * 8))).rows == 4
    for data in ([1] * 10, [[1, 2]] * 5, ["a"]):
        with pytest.raises(TooLarge, match="5 rows, the limit is 4"):
            codec.decode(body(tensor(shape=[5, 2], data=data)))


def test_what_is_remembered_of_one_reply_never_describes_another() -> None:
    """Of a reply with one output all but the values is remembered; another output, type or shape is described anew."""
    codec = InferenceCodec("m", "7", [InputSpec("x", "FP32", (-1, 2))], ("y", "z"), max_rows=8)
    one = np.array([[1.5, 2]], np.float32)
    arrays = [one, one, 2 * one, np.vstack([one, one]), one.reshape(2, 1), one.astype(np.float64), one.astype(np.int64)]
    for name, array in [(name, array) for array in arrays * 2 for name in ("y", "y", "z")]:
        parsed = codec.decode(body(tensor(), outputs=[{"name": name}]))
        assert json.loads(codec.encode(parsed, {name: array})) == {
            "model_name": "m",
            "model_version": "7",
            "outputs": [
                {
                    "name": name,
                    "datatype": {"float32": "FP32", "float64": "FP64", "int64": "INT64"}[array.dtype.name],
                    "shape": list(array.shape),
                    "data": array.ravel().tolist(),
                }
            ],
        }


def test_nan_in_an_output_is_refused_where_it_is_no_answer() -> None:
    parsed = TWO.decode(body(tensor(), tensor("n", [1], "INT8", [1])))
    for wrong in (np.nan, np.inf, -np.inf):
        with pytest.raises(InferenceError, match="output 'z'"):
            TWO.encode(parsed, {"y": np.zeros(1, np.float32), "z": np.array([0, wrong])})
    large = {"y": np.full(2, 1.7e308), "z": np.zeros(1, np.int64)}
    assert json.loads(TWO.encode(parsed, large))["outputs"][0]["data"] == [1.7e308, 1.7e308]


@pytest.mark.parametrize("count", [1, 100])
def test_nan_is_null_and_infinity_1e999_where_they_are_answers(count: int) -> None:
    codec = InferenceCodec("m", "7", [InputSpec("x", "FP32", (-1, 2))], ("y", "z"), max_rows=8, nan_outputs=["y"])
    parsed = codec.decode(body(tensor()))
    wrong = np.array([np.nan, np.inf, -np.inf] * count, np.float32)
    right = np.zeros(1, np.float64)
    text = codec.encode(parsed, {"y": wrong, "z": right})
    assert json.loads(text)["outputs"][0]["data"] == [None, math.inf, -math.inf] * count
    assert b"null,1e999,-1e999" in text
    with pytest.raises(InferenceError, match="output 'z'"):
        codec.encode(parsed, {"y": right, "z": wrong})
    with pytest.raises(InferenceError, match="output 'z'"):
        codec.encode(parsed, {"y": right, "z": wrong.astype(np.float64)})


def test_a_datatype_that_the_protocol_has_not_is_said() -> None:
    parsed = ONE.decode(body(tensor()))
    for dtype in (np.complex128, np.longdouble, "U1", ">f4"):
        with pytest.raises(InferenceError, match="for which the protocol has no datatype"):
            ONE.encode(parsed, {"y": np.ones(1, dtype)})


def test_fp32_is_written_alike_in_small_replies_and_large() -> None:
    for count in (1, 100):
        outputs = {"y": np.full(count, 0.1, np.float32)}
        assert b'"data":[0.1' in ONE.encode(ONE.decode(body(tensor())), outputs)
        assert b'"id":"a","outputs"' in ONE.encode(ONE.decode(body(tensor(), id="a")), outputs)


@pytest.mark.parametrize("count", [2, 100])
@pytest.mark.parametrize("datatype", ["INT8", "UINT16", "INT32", "INT64", "UINT64"])
def test_whole_numbers_are_read_flat_nested_and_in_their_limits(datatype: str, count: int) -> None:
    """However many: few and many are read in two ways."""
    limits = np.iinfo(datatype.lower())
    codec = InferenceCodec("m", "7", [InputSpec("n", datatype, (-1, -1))], ("y",), max_rows=8)
    row = [limits.min, limits.max] * (count // 2)
    wanted = np.array([row, row], datatype.lower())
    for data in (row * 2, [row, row]):
        array = codec.decode(body(tensor("n", [2, count], datatype, data))).inputs["n"]
        assert array.dtype == wanted.dtype
        assert array.flags.writeable
        np.testing.assert_array_equal(array, wanted)
    for wrong in (limits.max + 1, limits.min - 1, 10**30):
        for data in ([*row[1:], wrong], [[*row[1:], wrong]]):
            said = refused(codec, body(tensor("n", [1, count], datatype, data)))
            assert said == f"input 'n' holds a value that {datatype} cannot hold: {wrong}"
    for other, shown in ((1.0, "1.0 (float)"), (True, "True (bool)"), (None, "null")):
        for data in ([*row[1:], other], [[*row[1:], other]]):
            said = refused(codec, body(tensor("n", [1, count], datatype, data)))
            assert said == f"input 'n' holds {shown}, which is no {datatype}"


@pytest.mark.parametrize(("datatype", "value"), [("FP32", 0.5), ("INT64", 3)])
def test_data_nested_in_another_way_than_its_shape_is_refused(datatype: str, value: float) -> None:
    flat_only = InferenceCodec("m", "7", [InputSpec("x", datatype, (-1,))], ("y",), max_rows=8)
    assert "(list)" in refused(flat_only, body(tensor("x", [1], datatype, [[value]])))
    square = InferenceCodec("m", "7", [InputSpec("x", datatype, (-1, -1))], ("y",), max_rows=8)
    assert "ragged" in refused(square, body(tensor("x", [2, 2], datatype, [[value] * 3, [value]])))
    assert "does not have shape" in refused(square, body(tensor("x", [2, 2], datatype, [[value] * 4])))
    assert "expected 4" in refused(square, body(tensor("x", [2, 2], datatype, [[], []])))
    cube = InferenceCodec("m", "7", [InputSpec("x", datatype, (-1, 1, 2))], ("y",), max_rows=8)
    assert cube.decode(body(tensor("x", [1, 1, 2], datatype, [[[value, value]]]))).rows == 1
    assert "unevenly" in refused(cube, body(tensor("x", [2, 1, 2], datatype, [[value], [value]])))


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize(
    ("value", "says"), [("\ud800", "no Unicode"), (1, "a int in an output of BYTES"), (b"\xff", "")]
)
def test_an_output_that_is_no_text_is_an_error(raw: bool, value: object, says: str) -> None:
    """Bytes that are no text pass where they are asked for raw."""
    parsed = ONE.decode(body(tensor(), parameters={"binary_data_output": raw}))
    outputs = {"y": np.array([value, "a"], object)}
    if raw and not says:
        assert ONE.encode(parsed, outputs).body.endswith(b"\x01\0\0\0\xff\x01\0\0\0a")
        return
    with pytest.raises(InferenceError, match=says or "no UTF-8") as caught:
        ONE.encode(parsed, outputs)
    assert ("binary_data_output" in caught.value.hint) is not bool(says)


def test_bytes_of_an_output_are_the_same_text_in_json() -> None:
    parsed = ONE.decode(body(tensor()))
    for value in ("é", "é".encode(), np.str_("é"), np.bytes_("é".encode())):
        assert json.loads(ONE.encode(parsed, {"y": np.array([value], object)}))["outputs"][0]["data"] == ["é"]
