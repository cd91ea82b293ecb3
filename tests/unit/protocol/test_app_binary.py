"""The binary tensor extension without a socket: raw inputs and outputs, in every mixture with JSON."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.app_kit import GOOD, INFER, Answer, Client, deployment, running

from tailcut.common.validation import InputSpec
from tailcut.errors import BadRequest, InferenceError, TooLarge
from tailcut.manifest import load
from tailcut.models.runtimes import open_runtime
from tailcut.models.runtimes.base import OpenSpec
from tailcut.protocol.open_inference.binary import BINARY_HEADER, BinaryReply
from tailcut.protocol.open_inference.codec import InferenceCodec

X = np.array([[1, 2], [3, 4]], np.float32)


def packed(request: dict[str, Any], *raw: bytes) -> tuple[bytes, str]:
    """A body, and its header."""
    head = json.dumps(request).encode()
    return b"".join((head, *raw)), str(len(head))


def tensor(size: Any = 16, name: str = "x", datatype: str = "FP32", shape: Any = (2, 2)) -> dict[str, Any]:
    return {"name": name, "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": size}}


def outputs_of(answer: Answer) -> dict[str, Any]:
    """Outputs by name, raw ones read."""
    length = answer.headers.get(BINARY_HEADER)
    at = int(length) if length is not None else len(answer.body)
    head = json.loads(answer.body[:at])
    found = {}
    for output in head["outputs"]:
        if "data" in output:
            found[output["name"]] = output["data"]
            continue
        size = output["parameters"]["binary_data_size"]
        found[output["name"]] = np.frombuffer(answer.body[at : at + size], "<f4").reshape(output["shape"])
        at += size
    assert at == len(answer.body)
    return found


def test_raw_inputs_and_outputs_in_every_mixture(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(deployment(tmp_path)) as client:
            await test(client)

    async def test(client: Client) -> None:
        everything: dict[str, Any] = {"parameters": {"binary_data_output": True}}
        y_raw = {"outputs": [{"name": "z"}, {"name": "y", "parameters": {"binary_data": True}}]}
        not_y = {"outputs": [{"name": "y", "parameters": {"binary_data": False}}, {"name": "z"}]}
        for more, raw in (
            ({}, set()),
            (everything, {"y", "z"}),
            (y_raw, {"y"}),
            ({**everything, **not_y}, {"z"}),
        ):
            body, length = packed({"inputs": [tensor()], **more}, X.tobytes())
            for answer in (
                await client.post(INFER, body, {BINARY_HEADER: length}),
                await client.post(INFER, {**GOOD, **more}),
            ):
                assert answer.status == 200, answer.body
                assert answer.headers["content-type"] == f"application/{'octet-stream' if raw else 'json'}"
                found = outputs_of(answer)
                assert {name for name, values in found.items() if isinstance(values, np.ndarray)} == raw
                np.testing.assert_array_equal(np.ravel(found["y"]), [3, 7])
                np.testing.assert_array_equal(np.ravel(found["z"]), [2, 4, 6, 8])
                assert answer.stages_ms["total"] > 0

    asyncio.run(main())


CODEC = InferenceCodec(
    "m",
    "7",
    [InputSpec("x", "FP32", (-1, 2)), InputSpec("t", "BYTES", (-1,)), InputSpec("n", "FP16", (-1,), allow_nan=True)],
    ("y", "z"),
    max_rows=2,
    nan_outputs=["z"],
)
T, N = b"\x02\x00\x00\x00\xc3\xa9\x00\x00\x00\x00", np.array([np.nan, 2], np.float16).tobytes()
INPUTS = [tensor(), tensor(len(T), "t", "BYTES", [2]), tensor(len(N), "n", "FP16", [2])]


def test_several_inputs_follow_in_the_order_of_the_json() -> None:
    body, length = packed({"inputs": [INPUTS[2], INPUTS[0], INPUTS[1]], "id": "i"}, N, X.tobytes(), T)
    found = CODEC.decode(body, length)
    assert list(found.inputs) == ["x", "t", "n"]
    assert (found.id, found.rows) == ("i", 2)
    assert found.inputs["t"].tolist() == ["é", ""]
    assert np.isnan(found.inputs["n"][0])
    np.testing.assert_array_equal(found.inputs["x"], X)


def test_json_and_raw_inputs_mix() -> None:
    t = {"name": "t", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]}
    body, length = packed({"inputs": [INPUTS[0], t, INPUTS[2]]}, X.tobytes(), N)
    assert CODEC.decode(body, length).inputs["t"].tolist() == ["a", "b"]


@pytest.mark.parametrize(
    ("inputs", "raw", "says"),
    [
        (INPUTS, (X.tobytes(), T), "has binary_data_size 4, but 0 bytes of the body remain"),
        (INPUTS, (X.tobytes(), T, N, b"x"), "its raw tensors end at byte"),
        ([tensor(-1), *INPUTS[1:]], (), "parameter binary_data_size of input 'x' is -1"),
        ([tensor(True), *INPUTS[1:]], (), "parameter binary_data_size of input 'x' is True"),
        ([tensor("16"), *INPUTS[1:]], (), "parameter binary_data_size of input 'x' is '16'"),
        ([tensor(10**30), *INPUTS[1:]], (), "has binary_data_size 1000000"),
        ([tensor(8), *INPUTS[1:]], (X.tobytes(),), "has 8 bytes for shape [2, 2] of FP32, expected 16"),
        ([tensor(datatype="FP64"), *INPUTS[1:]], (X.tobytes(), T, N), "has datatype 'FP64', expected FP32"),
        ([{**tensor(), "data": [1]}, *INPUTS[1:]], (X.tobytes(), T, N), "has both data and binary_data_size"),
        ([{"name": "x", "shape": [2, 2], "datatype": "FP32"}, *INPUTS[1:]], (T, N), "input 'x' has no data"),
        (INPUTS[1:], (T, N), "input 'x' is missing"),
        ([*INPUTS, INPUTS[0]], (X.tobytes(), T, N, X.tobytes()), "input 'x' is given twice"),
        (INPUTS, (np.full((2, 2), np.inf, "<f4").tobytes(), T, N), "input 'x' holds infinity"),
    ],
)
def test_raw_inputs_that_are_wrong_are_refused(inputs: Any, raw: Any, says: str) -> None:
    body, length = packed({"inputs": inputs}, *raw)
    with pytest.raises(BadRequest) as caught:
        CODEC.decode(body, length)
    assert says in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("length", ["-1", "", "1e3", "x", "9999", "9" * 5000, "\u0661"])
def test_a_header_that_is_no_length_is_refused(length: str) -> None:
    with pytest.raises(BadRequest, match="inference-header-content-length is"):
        CODEC.decode(packed({"inputs": INPUTS}, X.tobytes(), T, N)[0], length)


def test_too_many_rows_are_refused_whatever_is_sent() -> None:
    body, length = packed({"inputs": [tensor(16, shape=[2**31 - 2, 2]), *INPUTS[1:]]}, X.tobytes(), T, N)
    with pytest.raises(TooLarge, match="2147483646 rows, the limit is 2"):
        CODEC.decode(body, length)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"parameters": {"binary_data_output": 1}}, "parameter binary_data_output is 1"),
        ({"parameters": {"sequence_id": 5}}, "sequence_id"),
        ({"outputs": [{"name": "y", "parameters": {"classification": 3}}]}, "classification"),
        ({"outputs": [{"name": "y", "parameters": {"binary_data": "yes"}}]}, "parameter binary_data is 'yes'"),
    ],
)
def test_parameters_that_cannot_be_obeyed_are_refused(more: Any, says: str) -> None:
    body, length = packed({"inputs": INPUTS, **more}, X.tobytes(), T, N)
    with pytest.raises(BadRequest, match=says):
        CODEC.decode(body, length)


def test_raw_outputs_hold_nan_only_where_it_is_an_answer() -> None:
    more = {"parameters": {"binary_data_output": True}}
    body, length = packed({"inputs": INPUTS, **more}, X.tobytes(), T, N)
    asked = CODEC.decode(body, length)
    nan = np.array([np.nan], np.float32)
    reply = CODEC.encode(asked, {"y": np.array([b"\xff\x00", "é"], object), "z": nan})
    assert isinstance(reply, BinaryReply)
    assert reply.body.endswith(b"\x02\x00\x00\x00\xff\x00\x02\x00\x00\x00\xc3\xa9" + nan.tobytes())
    with pytest.raises(InferenceError, match="NaN or infinity in output 'y'"):
        CODEC.encode(asked, {"y": nan, "z": nan})


def test_what_is_remembered_of_one_request_never_answers_another() -> None:
    """The JSON of the last request and of the last reply are remembered; whatever comes next is read as it is."""
    codec = InferenceCodec("m", "7", [InputSpec("x", "FP32", (-1, -1))], ("y", "z"), max_rows=4)
    everything: dict[str, Any] = {"parameters": {"binary_data_output": True}}
    one, two = np.ones((1, 2), np.float32), np.full((2, 2), 2, np.float32)
    y_only = {"outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    both = {"outputs": [{"name": name, "parameters": {"binary_data": True}} for name in ("z", "y")]}
    asked = [
        (one, everything),
        (one, everything),
        (2 * one, everything),
        (two, everything),
        (one, {**everything, "id": "a"}),
        (one, {**everything, "id": "b"}),
        (one, {"parameters": {"timeout": 7, "binary_data_output": True}}),
        (one, y_only),
        (two, y_only),
        (two, both),
        (one.reshape(2, 1), both),
        (one, {}),
        (one, everything),
    ]
    for x, more in asked * 2:
        request = {"inputs": [tensor(x.nbytes, shape=list(x.shape))], **more}
        fresh = InferenceCodec("m", "7", [InputSpec("x", "FP32", (-1, -1))], ("y", "z"), max_rows=4)
        body, length = packed(request, x.tobytes())
        found, wanted = codec.decode(body, length), fresh.decode(body, length)
        np.testing.assert_array_equal(found.inputs["x"], x)
        assert (found.rows, found.outputs, found.id, found.timeout_ns, list(found.binary)) == (
            wanted.rows,
            wanted.outputs,
            wanted.id,
            wanted.timeout_ns,
            list(wanted.binary),
        )
        outputs = {"y": x.sum(axis=1), "z": 2 * x}
        reply, alike = codec.encode(found, outputs), fresh.encode(wanted, outputs)
        if isinstance(reply, BinaryReply):
            assert isinstance(alike, BinaryReply)
            assert (reply.body, reply.headers) == (alike.body, alike.headers)
        else:
            assert reply == alike
        with pytest.raises(BadRequest):
            codec.decode(body + b"x", length)
        with pytest.raises(BadRequest, match=r"holds (NaN|infinity)"):
            codec.decode(packed(request, np.full_like(x, np.nan).tobytes())[0], length)
    with pytest.raises(TooLarge):
        codec.decode(*packed({"inputs": [tensor(40, shape=[5, 2])], **everything}, bytes(40)))


TEXTS = """
name = "m"

[model]
source = "texts.onnx"
inputs = [{ name = "t", shape = [-1], datatype = "BYTES" }]
outputs = [{ name = "o", shape = [-1], datatype = "BYTES" }]

[serve]
variant = "source"
"""


def save_texts(path: Path) -> None:
    """Save t (n) -> o (n): the same text."""
    ends = [helper.make_tensor_value_info(name, TensorProto.STRING, ["n"]) for name in ("t", "o")]
    graph = helper.make_graph([helper.make_node("Identity", ["t"], ["o"])], "texts", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def test_texts_are_the_same_in_json_and_raw(tmp_path: Path) -> None:
    save_texts(tmp_path / "texts.onnx")
    (tmp_path / "tailcut.toml").write_text(TEXTS)

    async def test(client: Client) -> None:
        for values in (["é", ""], ["a\0b", "x" * 1000]):
            t = {"name": "t", "shape": [2], "datatype": "BYTES", "data": values}
            assert (await client.post(INFER, {"inputs": [t]})).json["outputs"][0]["data"] == values
            raw = b"".join(len(each.encode()).to_bytes(4, "little") + each.encode() for each in values)
            everything = {"parameters": {"binary_data_output": True}}
            body, length = packed({"inputs": [tensor(len(raw), "t", "BYTES", [2])], **everything}, raw)
            answer = await client.post(INFER, body, {BINARY_HEADER: length})
            assert answer.status == 200, answer.body
            assert answer.body.endswith(raw)
        body, length = packed({"inputs": [tensor(5, "t", "BYTES", [1])]}, b"\x01\0\0\0\xff")
        refused = await client.post(INFER, body, {BINARY_HEADER: length})
        assert (refused.status, refused.json["code"]) == (400, "bad_request")
        assert (await client.post("/v2/models/m/generate", {"t": "é"})).json["o"] == "é"

    async def main() -> None:
        async with running(load(tmp_path, environment={})) as client:
            await test(client)

    asyncio.run(main())


def test_bytes_of_a_hook_reach_onnxruntime_as_text(tmp_path: Path) -> None:
    save_texts(tmp_path / "texts.onnx")
    (tmp_path / "tailcut.toml").write_text(TEXTS)
    model = load(tmp_path, environment={}).deployment.model
    variant = OpenSpec("source", "onnxruntime", tmp_path / "texts.onnx", model.inputs, model.outputs, {})
    runtime = open_runtime(variant, threads=1)
    found = runtime.run({"t": np.array(["é".encode(), "b"], object)}, ["o"])
    assert found["o"].tolist() == ["é", "b"]
    runtime.close()
