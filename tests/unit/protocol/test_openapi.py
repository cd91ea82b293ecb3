from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailcut.common.bounds import Bound
from tailcut.errors import BadRequest
from tailcut.manifest import Deployment, FeatureGroup, Features, Field, Manifest, Model, TensorSpec
from tailcut.models.value_limits import PathLimits
from tailcut.pipeline.row_transform import RowTransform, limited_inputs
from tailcut.protocol.app import Application
from tailcut.protocol.data_plane import DataPlane
from tailcut.protocol.openapi.document import data_schema, field_schemas, row_value
from tailcut.serving.host import Host

GROUP = FeatureGroup(name="g", key=("id",), columns=("a",), ttl="5s", sql="SELECT id, a FROM t")
MODEL = Model(
    source="m:m",
    inputs=(TensorSpec(name="x", shape=(-1, 2)), TensorSpec(name="t", datatype="BYTES")),
    outputs=(TensorSpec(name="y"), TensorSpec(name="z", datatype="INT64", shape=(-1, -1))),
)
PLAIN = Deployment(name="m", model=MODEL)
ONE_FIELD = Deployment(name="m", model=MODEL, features=Features(entity=("id",), groups=(GROUP,)))
TWO_FIELDS = Deployment(name="m", model=MODEL, features=Features(entity=("id", "at"), groups=(GROUP,)))


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if "$ref" in node else set()
        return own.union(*map(references, node.values()))
    return set().union(*map(references, node)) if isinstance(node, list) else set()


def openapi_of(deployment: Deployment) -> dict[str, Any]:
    return Application(DataPlane(Host.of(Manifest(deployment, Path("/"))))).document()


@pytest.mark.parametrize("deployment", [PLAIN, ONE_FIELD, TWO_FIELDS])
def test_the_document_has_the_form_of_openapi_3_1(deployment: Deployment) -> None:
    document = msgspec.json.decode(msgspec.json.encode(openapi_of(deployment)))
    assert re.fullmatch(r"3\.1\.\d+", document["openapi"])
    assert {"title", "version"} <= document["info"].keys()
    for path, operations in document["paths"].items():
        assert path.startswith("/")
        for method, operation in operations.items():
            assert method in {"get", "post"}
            assert operation["summary"]
            for status, response in operation["responses"].items():
                assert re.fullmatch(r"[1-5]\d\d", status)
                assert response["description"]
            for parameter in operation.get("parameters", []):
                assert {"name", "in", "schema"} <= parameter.keys()
    schemas = document["components"]["schemas"]
    used = references(document)
    assert used
    assert used <= {f"#/components/schemas/{name}" for name in schemas}


def test_a_model_without_features_takes_no_entities() -> None:
    plain = openapi_of(PLAIN)["components"]["schemas"]["PredictionRequest"]["properties"]
    assert list(plain) == ["rows"]
    fields = openapi_of(TWO_FIELDS)["components"]["schemas"]["PredictionRequest"]["properties"]["entities"]["items"]
    assert fields["required"] == ["id", "at"]


def test_inputs_and_outputs_are_described_as_the_manifest_has_them() -> None:
    schemas = openapi_of(PLAIN)["components"]["schemas"]
    inputs = schemas["InferenceRequest"]["properties"]["inputs"]
    assert (inputs["minItems"], inputs["maxItems"]) == (2, 2)
    x = inputs["items"]["oneOf"][0]["properties"]
    assert (x["name"], x["datatype"]) == ({"const": "x"}, {"const": "FP32"})
    assert x["shape"]["prefixItems"] == [{"type": "integer", "minimum": 1}, {"const": 2}]
    outputs = schemas["InferenceReply"]["properties"]["outputs"]["items"]["oneOf"]
    assert [one["properties"]["name"]["const"] for one in outputs] == ["y", "z"]


def test_null_is_a_value_where_nan_is() -> None:
    takes = Model(
        source="m:m", inputs=(TensorSpec(name="x", shape=(-1, 2), allow_nan=True),), outputs=(TensorSpec(name="y"),)
    )
    for model, kind in ((MODEL, "number"), (takes, ["number", "null"])):
        found = msgspec.json.encode(openapi_of(Deployment(name="m", model=model)))
        assert b'"items":' + msgspec.json.encode({"type": kind}) in found
        assert (b"null is NaN" in found) is (kind != "number")


LISTED = TensorSpec(name="x", allow_nan=True, values=(1.0, 2.0))
MISSING = TensorSpec(name="t", datatype="BYTES", allow_nan=True, max_length=5)
WHOLE = TensorSpec(name="n", datatype="INT64", allow_nan=True, min=1)
FINITE = TensorSpec(name="f", max=2.0)


def test_null_is_a_value_beside_limits_exactly_where_the_server_takes_it() -> None:
    model = Model(source="m:m", inputs=(LISTED, MISSING, WHOLE, FINITE), outputs=(TensorSpec(name="y"),))
    listed = {"type": ["number", "null"], "enum": [1.0, 2.0, None]}
    assert data_schema(LISTED, ())["items"] == row_value(LISTED, ()) == listed
    limits = PathLimits(Deployment(name="m", model=model), (), hook=False)
    transform = RowTransform(model, None, None)
    good = {"x": 1.0, "t": "a", "n": 1, "f": 1.0}
    fields = field_schemas(model, ())
    assert fields["x"] == listed
    for name in good:
        takes = "null" in fields[name]["type"]
        try:
            limited_inputs(transform, limits, [{**good, name: None}], from_client=True)
        except BadRequest:
            assert not takes, name
        else:
            assert takes, name


def test_a_declared_field_may_be_null_in_a_row_but_not_in_an_entity() -> None:
    field = Field(name="id", type="text", values=("a", "b"))
    model = Model(
        source="m:m", preprocess="m:p", inputs=(TensorSpec(name="x"),), outputs=(TensorSpec(name="y"),), fields=(field,)
    )
    features = Features(entity=("id",), groups=(GROUP,))
    found = openapi_of(Deployment(name="m", model=model, features=features))["components"]["schemas"]
    request = found["PredictionRequest"]["properties"]
    nullable = {"type": ["string", "null"], "enum": ["a", "b", None]}
    assert request["rows"]["items"]["properties"]["id"] == nullable
    assert request["entities"]["items"] == {"type": "string", "enum": ["a", "b"], "description": "id"}


def test_limits_of_single_positions_are_described() -> None:
    wide = TensorSpec(name="x", shape=(-1, 3))
    bounds = (Bound(input="x", columns=(0, 2), min=0, max=49, why="e has 50 rows"), Bound(input="x", max=60))
    said = "in the flattened row, position 0, 2: allowed are 0 to 49 (e has 50 rows)"
    assert data_schema(wide, bounds)["description"].endswith(f"; {said}")
    assert row_value(wide, bounds)["description"] == said
    assert "description" not in row_value(wide, bounds[1:])
