"""Tensors and models of any name answer by that name on every protocol, or are refused with what is wrong."""

from __future__ import annotations

import asyncio
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tests.app_kit import Client, running

from tailcut.errors import ManifestError
from tailcut.manifest import load
from tailcut.manifest.keys import dotted
from tailcut.manifest.overrides import from_flags
from tailcut.protocol.auth import Guard
from tailcut.protocol.data_plane import DataPlane
from tailcut.transport.grpc.open_inference_pb2 import ModelInferRequest, ModelInferResponse
from tailcut.transport.grpc.server import SERVICE, GRPCServer

pytestmark = pytest.mark.slow

AWKWARD = [
    *("self", "input", "args", "kwargs", "class", "None", "rows", "inputs", "outputs", "entities", "text_input"),
    *("a b", "a.b", 'a"b', "a'b", "a\\b", "a/b", "a,b", "a;b", "a:0", "{x}", "%s", "$x", "<a>&", "1st", "-1", " "),
    *("ü", "x\u0308", "\U0001f600", "\u202ea", "\u200b", "x" * 500, "__class__", "model.0", "X", "x", "data", "name"),
]
NAMES = st.one_of(
    st.sampled_from(AWKWARD),
    st.text(st.characters(blacklist_categories=("Cc", "Cs")), min_size=1, max_size=8),
)
MODELS = [
    *("m.v2", "1.0", "m-1", "m_", "m.", "a..b", "versions", "ready", "infer", "index", "load", "v2", "models", "M"),
    *("generate", "repository", "health", "config", "x" * 200),
]
GENERATE_HAS = ({"id", "parameters"}, {"id", "model_name", "model_version"})
"""Keys of its request and of its reply."""


def write(folder: Path, inputs: Sequence[str], outputs: Sequence[str], name: str = "m", more: str = "") -> Path:
    """A deployment whose outputs are its inputs, one of each."""
    nodes = [helper.make_node("Identity", [one], [other]) for one, other in zip(inputs, outputs, strict=True)]
    infos = [[helper.make_tensor_value_info(each, TensorProto.FLOAT, ["n", 1]) for each in inputs]]
    infos += [[helper.make_tensor_value_info(each, TensorProto.FLOAT, ["n", 1]) for each in outputs]]
    model = helper.make_model(
        helper.make_graph(nodes, "g", *infos), opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    lines = [f"name = {toml(name)}", "[model]", 'source = "model.onnx"']
    for section, names in (("inputs", inputs), ("outputs", outputs)):
        for each in names:
            lines += [f"[[model.{section}]]", f"name = {toml(each)}", "shape = [-1, 1]"]
    (folder / "tailcut.toml").write_text("\n".join([*lines, '[serve]\nvariant = "source"', more]), encoding="utf-8")
    return folder


def toml(text: str) -> str:
    """Text as TOML writes it, every character outside ASCII by its number."""
    return (
        '"'
        + "".join(c if c.isascii() and c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text)
        + '"'
    )


async def over_http(client: Client, name: str, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    values = {each: float(place + 1) for place, each in enumerate(inputs)}
    wanted = dict(zip(outputs, values.values(), strict=True))
    tensors = [{"name": each, "shape": [1, 1], "datatype": "FP32", "data": [value]} for each, value in values.items()]
    for path in (f"/v2/models/{name}/infer", f"/v2/models/{name}/versions/source/infer"):
        reply = await client.post(path, {"inputs": tensors})
        assert {each["name"]: each["data"] for each in reply.json["outputs"]} == {
            each: [value] for each, value in wanted.items()
        }
    asked = await client.post(f"/v2/models/{name}/infer", {"inputs": tensors, "outputs": [{"name": outputs[-1]}]})
    assert [each["name"] for each in asked.json["outputs"]] == [outputs[-1]]
    predicted = await client.post(f"/predict/{name}", {"rows": [values]})
    assert predicted.json["predictions"] == [{each: [value] for each, value in wanted.items()}]
    generated = await client.post(f"/v2/models/{name}/generate", values)
    if GENERATE_HAS[0] & set(inputs) or GENERATE_HAS[1] & set(outputs):
        assert generated.status == 400
        assert "post tensors to infer" in generated.json["hint"]
    else:
        assert generated.json == {"model_name": name, "model_version": "source", **wanted}
    described = (await client.get(f"/v2/models/{name}")).json
    assert [each["name"] for each in described["inputs"]] == list(inputs)
    assert (await client.get("/openapi.json")).status == 200
    assert f'model="{name}"' in (await client.get("/metrics")).body.decode()


async def over_grpc(client: Client, name: str, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    host = client.app.host
    server = GRPCServer(DataPlane(host, Guard.of(host.manifest, address="127.0.0.1")), "127.0.0.1", 0)
    await server.start()
    try:
        request = ModelInferRequest(
            model_name=name,
            inputs=[{"name": each, "datatype": "FP32", "shape": [1, 1]} for each in inputs],
            raw_input_contents=[np.float32(place + 1).tobytes() for place in range(len(inputs))],
        )
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            raw = await channel.unary_unary(f"/{SERVICE}/ModelInfer")(request.SerializeToString(), timeout=20)
    finally:
        await server.stop(0.0)
    reply = ModelInferResponse.FromString(raw)
    found = [np.frombuffer(each, np.float32).tolist() for each in reply.raw_output_contents]
    assert [each.name for each in reply.outputs] == list(outputs)
    assert found == [[float(place + 1)] for place in range(len(outputs))]


def round_trip(inputs: Sequence[str], outputs: Sequence[str], name: str = "m") -> None:
    async def main(folder: Path) -> None:
        async with running(load(write(folder, inputs, outputs, name), environment={})) as client:
            await over_http(client, name, inputs, outputs)
            await over_grpc(client, name, inputs, outputs)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))


@given(names=st.lists(NAMES, min_size=2, max_size=6, unique=True))
@settings(max_examples=60)
def test_every_tensor_answers_by_its_name(names: list[str]) -> None:
    half = len(names) // 2
    round_trip(names[:half], names[half : 2 * half])


@pytest.mark.parametrize("name", ["parameters", "id", "model_name", "model_version"])
def test_what_generate_has_keys_of_is_answered_by_infer_and_refused_by_generate(name: str) -> None:
    round_trip([name], ["y"])
    round_trip(["x"], [name])


def test_names_that_differ_by_case_or_punctuation_only() -> None:
    round_trip(["a.b", "a_b", "A.b", "a b"], ["y", "Y", "y ", "y\u0301"])


@pytest.mark.parametrize("name", MODELS)
def test_every_model_answers_by_its_name(name: str) -> None:
    round_trip(["x"], ["y"], name)


@pytest.mark.parametrize(
    ("inputs", "outputs", "name", "message"),
    [
        (["x"], ["y"], "stats", 'name: "stats" is reserved: /v2/models/stats is a path of the protocol'),
        (["x"], ["y"], "m\n", r'name: "m\\n" is not a name'),
        (["x"], ["y"], "m/2", 'name: "m/2" is not a name'),
        (["x"], ["y"], "x" * 201, "name: 201 characters, the limit is 200"),
        (["x"], ["x"], "m", "model.outputs.x: an input has the same name"),
        (["a b"], ["a b"], "m", 'model.outputs."a b": an input has the same name'),
        ([""], ["y"], "m", "model.inputs: a name is empty"),
        (["a\nb"], ["y"], "m", r"model.inputs: the name 'a\\nb' holds the control character '\\n'"),
        (["x"], ["\x00"], "m", r"model.outputs: the name '\\x00' holds the control character '\\x00'"),
        (["x"], ["\x85"], "m", r"model.outputs: the name '\\x85' holds the control character"),
    ],
)
def test_names_that_cannot_be_served_are_refused(
    tmp_path: Path, inputs: list[str], outputs: list[str], name: str, message: str
) -> None:
    with pytest.raises(ManifestError, match=message) as caught:
        load(write(tmp_path, inputs, outputs, name), environment={})
    assert caught.value.hint


FEATURES = """
[features]
entity = [{field}]
refresh_ahead = false
[[features.groups]]
name = {group}
key = [{field}]
columns = [{column}]
ttl = "1h"
function = "ns_served:values"
[cache.entity]
enabled = true
"""


@pytest.mark.parametrize("group", ["rows", "select"])
@pytest.mark.parametrize("field", ["rows", "inputs", "parameters", "id", "entities", "self", "class", "a b", 'ü"'])
def test_entities_are_found_by_fields_of_any_name(tmp_path: Path, field: str, group: str) -> None:
    """The model's inputs are the entity's field and the group's column, which has the name of the group."""
    more = FEATURES.format(field=toml(field), group=toml(group), column=toml(f"{group} 1"))
    write(tmp_path, [field, f"{group} 1"], ["y", "z"], more=more)
    text = (tmp_path / "tailcut.toml").read_text(encoding="utf-8")
    for name in (field, f"{group} 1"):
        shape = f"[[model.inputs]]\nname = {toml(name)}\nshape = [-1, 1]\n"
        text = text.replace(shape, f"{shape}columns = [{toml(name)}]\n")
    (tmp_path / "tailcut.toml").write_text(text, encoding="utf-8")
    column = f"{group} 1"
    (tmp_path / "ns_served.py").write_text(
        f"def values(keys, context):\n    return [{{{column!r}: key[0] * 10}} for key in keys]\n", encoding="utf-8"
    )

    async def main() -> None:
        async with running(load(tmp_path, environment={})) as client:
            for entity in (3, {field: 3}, 3):  # from the source, and from the cache
                answer = await client.post("/predict/m", {"entities": [entity]})
                assert answer.json["predictions"] == [{"y": [3.0], "z": [30.0]}]

    asyncio.run(main())


@pytest.mark.parametrize("column", ["", "a\tb"])
@pytest.mark.parametrize("key", ["entity", "key", "columns", "field"])
def test_columns_that_have_no_name_are_refused(tmp_path: Path, key: str, column: str) -> None:
    names = {"entity": "id", "key": "id", "columns": "value", key: column}
    more = (
        f'[features]\nentity = [{toml(names["entity"])}]\n[[features.groups]]\nname = "g"\nttl = "1h"\n'
        f'function = "hooks:g"\nkey = [{toml(names["key"])}]\ncolumns = [{toml(names["columns"])}]\n'
    )
    if key == "field":
        more = f"[[model.fields]]\nname = {toml(column)}\nmin = 0\n"
    with pytest.raises(ManifestError, match=r"a name is empty|holds the control character"):
        load(write(tmp_path, ["x"], ["y"], more=more), environment={})


def test_a_variable_that_two_tensors_have_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, ["a.b", "a_b", "c"], ["x", "y", "z"])
    with pytest.raises(ManifestError) as caught:
        load(folder, environment={"TAILCUT_MODEL__INPUTS__A_B__MIN": "1"})
    assert caught.value.message == "TAILCUT_MODEL__INPUTS__A_B__MIN: a.b and a_b of model.inputs have this variable"
    assert """--set 'model.inputs."a.b".KEY=value'""" in caught.value.hint
    found = load(folder, environment={"TAILCUT_MODEL__INPUTS__C__MIN": "1"}, overrides=['model.inputs."a.b".min=2'])
    assert [tensor.min for tensor in found.deployment.model.inputs] == [2, None, 1]


@given(name=st.text(st.sampled_from('ab.= "\\ü'), min_size=1, max_size=6), value=st.sampled_from(["1", "a=b", '"']))
def test_a_flag_reaches_every_name(name: str, value: str) -> None:
    found = from_flags([f"{dotted(('model', 'inputs', name, 'min'))}={value}"])
    assert [(each.parts, each.text) for each in found] == [(("model", "inputs", name, "min"), value)]


def test_the_file_that_a_test_writes_is_toml() -> None:
    text = "".join(AWKWARD)
    assert tomllib.loads(f"x = {toml(text)}")["x"] == text
