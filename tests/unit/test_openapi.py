from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from tailcut.manifest import Deployment, FeatureGroup, Features, Model, Tensor
from tailcut.server.openapi import openapi

GROUP = FeatureGroup(name="g", key=("id",), columns=("a",), ttl="5s", sql="SELECT id, a FROM t")
MODEL = Model(
    source="m:m",
    inputs=(Tensor(name="x", shape=(-1, 2)), Tensor(name="t", datatype="BYTES")),
    outputs=(Tensor(name="y"), Tensor(name="z", datatype="INT64", shape=(-1, -1))),
)
PLAIN = Deployment(name="m", model=MODEL)
ONE_FIELD = Deployment(name="m", model=MODEL, features=Features(entity=("id",), groups=(GROUP,)))
TWO_FIELDS = Deployment(name="m", model=MODEL, features=Features(entity=("id", "at"), groups=(GROUP,)))


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if "$ref" in node else set()
        return own.union(*map(references, node.values()))
    return set().union(*map(references, node)) if isinstance(node, list) else set()


@pytest.mark.parametrize("deployment", [PLAIN, ONE_FIELD, TWO_FIELDS])
def test_the_document_has_the_form_of_openapi_3_1(deployment: Deployment) -> None:
    document = msgspec.json.decode(msgspec.json.encode(openapi(deployment)))
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
    plain = openapi(PLAIN)["components"]["schemas"]["PredictionRequest"]["properties"]
    assert list(plain) == ["rows"]
    fields = openapi(TWO_FIELDS)["components"]["schemas"]["PredictionRequest"]["properties"]["entities"]["items"]
    assert fields["required"] == ["id", "at"]


def test_inputs_and_outputs_are_described_as_the_manifest_has_them() -> None:
    schemas = openapi(PLAIN)["components"]["schemas"]
    inputs = schemas["InferenceRequest"]["properties"]["inputs"]
    assert (inputs["minItems"], inputs["maxItems"]) == (2, 2)
    x = inputs["items"]["oneOf"][0]["properties"]
    assert (x["name"], x["datatype"]) == ({"const": "x"}, {"const": "FP32"})
    assert x["shape"]["prefixItems"] == [{"type": "integer", "minimum": 1}, {"const": 2}]
    outputs = schemas["InferenceReply"]["properties"]["outputs"]["items"]["oneOf"]
    assert [one["properties"]["name"]["const"] for one in outputs] == ["y", "z"]


def test_null_is_a_value_where_nan_is() -> None:
    takes = Model(source="m:m", inputs=(Tensor(name="x", shape=(-1, 2), allow_nan=True),), outputs=(Tensor(name="y"),))
    for model, kind in ((MODEL, "number"), (takes, ["number", "null"])):
        found = msgspec.json.encode(openapi(Deployment(name="m", model=model)))
        assert b'"items":' + msgspec.json.encode({"type": kind}) in found
        assert (b"null is NaN" in found) is (kind != "number")
