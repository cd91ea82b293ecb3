"""Limits of rows, entities, features and hooks, without a socket: each error's status, text and counter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.app_kit import INFER, Answer, Client, counters, running
from tests.bounds_kit import CITY, DECLARED, SHOP, TOKENS, deployed

from tailcut.cli.app import run
from tailcut.common.tensors import Arrays
from tailcut.errors import BadRequest, FeatureUnavailable
from tailcut.manifest import Deployment, FeatureGroup, Features, Manifest, Model, TensorSpec
from tailcut.models import variant_loader
from tailcut.models.value_limits import PathLimits
from tailcut.pipeline.row_transform import RowTransform, limited_inputs
from tailcut.testing.runtimes import CallableRuntime

PREDICT = "/predict/m"

HOOKS = """
import numpy as np
from tailcut.errors import BadRequest

SHOPS = {1: 7, 2: 50, 3: None, 4: 20}

def preprocess(rows):
    return {
        "shop": np.array([row["shop"] + row.get("off", 0) for row in rows], np.int64),
        "x": np.zeros((len(rows), 2), np.float32),
    }

def places(keys, context):
    return [{"shop": SHOPS[key[0]], "a": 0.0, "b": -100.0 if key[0] == 4 else 0.0} for key in keys]
"""

FEATURES = """
[features]
entity = ["customer"]
refresh_ahead = false

[[features.groups]]
name = "places"
key = ["customer"]
columns = ["shop", "a", "b"]
ttl = "1h"
function = "bounds_hooks:places"

[cache.entity]
enabled = true

[[model.fields]]
name = "customer"
type = "integer"
min = 1
values = [1, 2, 3, 4, 5]
"""


def serve(manifest: Manifest, test: Callable[[Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with running(manifest) as client:
            await test(client)
            assert client.app.engine.in_flight == {}

    asyncio.run(main())


def shop(directory: Path, more: str = "", limits: str = DECLARED, overrides: Sequence[str] = ()) -> Manifest:
    toml = SHOP.format(limits=f'columns = ["shop"]\n{limits}')
    return deployed(directory, toml + more, HOOKS, overrides)


def error(answer: Answer, status: int) -> str:
    assert answer.status == status, answer.json
    assert answer.json["hint"]
    message: str = answer.json["error"]
    return message


def row(**values: Any) -> dict[str, Any]:
    return {"rows": [{"shop": 0, "a": 0, "b": 0}, {"shop": 1, "a": 0, "b": 0, **values}]}


def test_rows_are_held_to_the_limits_of_the_inputs_that_they_fill(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        answer = await client.post(PREDICT, row(shop=49, a=0.1, b=-10))
        assert [one["y"] for one in answer.json["predictions"]] == pytest.approx([0, 39.1])
        assert error(await client.post(PREDICT, row(shop=50)), 400) == (
            "row 1: field 'shop' is 50, allowed are 0 to 49"
        )
        assert "row 1: field 'shop' is -1," in error(await client.post(PREDICT, row(shop=-1)), 400)
        assert "field 'shop' is '3', which is no number" in error(await client.post(PREDICT, row(shop="3")), 400)
        assert "field 'b' is -10.5, allowed are -10 to 0.1" in error(await client.post(PREDICT, row(b=-10.5)), 400)
        assert (await counters(client, "tailcut_requests_total"))["predict", "source", "bad_request", "off"] == 4

    serve(shop(tmp_path), test)


def test_rows_are_held_to_the_limits_of_their_fields(tmp_path: Path) -> None:
    fields = (
        '[[model.fields]]\nname = "shop"\ntype = "integer"\nvalues = [0, 1, 2]\n[[model.fields]]\nname = "a"\nmax = 0\n'
    )

    async def test(client: Client) -> None:
        assert (await client.post(PREDICT, row(shop=2.0))).status == 200
        assert "field 'shop' is True, which is no integer" in error(await client.post(PREDICT, row(shop=True)), 400)
        assert "field 'shop' is 1.5, which is no integer" in error(await client.post(PREDICT, row(shop=1.5)), 400)
        assert "field 'shop' is 3, allowed are 0, 1, 2" in error(await client.post(PREDICT, row(shop=3)), 400)
        assert "field 'a' is 0.05, allowed are values of at most 0" in error(
            await client.post(PREDICT, row(a=0.05)), 400
        )

    serve(shop(tmp_path, fields), test)


def test_a_list_is_refused_where_an_input_takes_one_value_of_each_field(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        for value in ("[0,0]", "[" * 500 + "0" + "]" * 500, "[" + "0," * 300_000 + "0]"):
            body = f'{{"rows": [{{"shop": 0, "a": 0, "b": {value}}}]}}'.encode()
            assert error(await client.post(PREDICT, body), 400) == (
                "row 0: field 'b' is a list, but the input takes one value"
            )

    serve(shop(tmp_path), test)


def test_lists_of_declared_fields_may_be_deep_but_not_endless(tmp_path: Path) -> None:
    fields = '[[model.fields]]\nname = "far"\nmax = 0\n'

    async def test(client: Client) -> None:
        for value, status in (
            ("[" * 500 + "0" + "]" * 500, 200),
            ("[" * 500 + "1" + "]" * 500, 400),
            ("[" + "0," * 2**18 + "0]", 400),
        ):
            body = f'{{"rows": [{{"shop": 0, "a": 0, "b": 0, "far": {value}}}]}}'.encode()
            answer = await client.post(PREDICT, body)
            assert answer.status == status, answer.json
        assert error(answer, 400) == "row 0: field 'far' is a list of 262145 elements, the limit is 262144"

    serve(shop(tmp_path, fields, overrides=('model.preprocess="bounds_hooks:preprocess"',)), test)


def test_a_row_is_refused_before_there_must_be_room_for_it(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        expired = {"x-tailcut-timeout-ms": "0.000001"}
        assert (await client.post(PREDICT, row(), expired)).status == 504
        assert "field 'shop' is 50" in error(await client.post(PREDICT, row(shop=50), expired), 400)
        many = {"rows": [{"shop": 50, "a": 0, "b": 0}] * 17}
        assert (await client.post(PREDICT, many)).status == 413

    serve(shop(tmp_path, overrides=("batching.max_rows=8", "batching.max_queue_rows=16")), test)


def test_entities_and_fetched_features(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        good = await client.post(PREDICT, {"entities": [1]})
        assert good.json["predictions"] == [{"y": 7.0}]
        # A field of an entity is a key: its digits are the same number.
        assert (await client.post(PREDICT, {"entities": ["1"]})).json == good.json
        for entity, said in (
            (0, "entity 1: field 'customer' is 0, allowed are 1, 2, 3, 4, 5"),
            ("6", "entity 1: field 'customer' is 6, allowed are 1, 2, 3, 4, 5"),
            ("1.0", "entity field \"customer\" is '1.0', which is no bigint"),
            (True, 'entity field "customer" is true, which is no bigint'),
        ):
            message = error(await client.post(PREDICT, {"entities": [1, entity]}), 400)
            assert message == said
        for entity, column, said in ((2, "shop", "allowed are 0 to 49"), (4, "b", "allowed are -10 to 0.1")):
            answer = await client.post(PREDICT, {"entities": [entity]})
            assert error(answer, 503) == (
                f'feature group "places" has a value in column "{column}" that the model cannot take: {said}'
            )
            assert answer.json["code"] == "feature_unavailable"
            assert answer.json["incident"]
        found = await counters(client, "tailcut_requests_total")
        assert sum(count for labels, count in found.items() if "bad_request" in labels) == 4
        assert sum(count for labels, count in found.items() if "feature_unavailable" in labels) == 2

    serve(shop(tmp_path, FEATURES), test)


@pytest.mark.parametrize(
    "limits", ["max = 0.1", "values = [0.1, 0.0]", "max = 0.10000000149011612", "values = [0.10000000149011612, 0]"]
)
def test_rows_features_and_tensors_agree_where_float32_rounds(tmp_path: Path, limits: str) -> None:
    """0.1 is the FP32 value 0.10000000149011612, which is what a build finds in a model of float32."""
    hooks = HOOKS.replace('"b": -100.0 if key[0] == 4 else 0.0', '"b": 0.11 if key[0] == 4 else 0.1')
    toml = SHOP.format(limits=f'columns = ["shop"]\n{DECLARED}').replace("min = -10\nmax = 0.1", limits)

    async def test(client: Client) -> None:
        for value, status in ((0.1, 200), (0.10000000149011612, 200), (0.11, 400), (1e39, 400)):
            inputs = [
                {"name": "shop", "shape": [1], "datatype": "INT64", "data": [0]},
                {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [0, value]},
            ]
            assert (await client.post(INFER, {"inputs": inputs})).status == status, value
            answer = await client.post(PREDICT, row(b=value))
            assert answer.status == status, (value, answer.json)
        assert (await client.post(PREDICT, {"entities": [1]})).status == 200
        assert (await client.post(PREDICT, {"entities": [4]})).status == 503

    features = FEATURES.replace("bounds_hooks", "bounds_rounding")
    serve(deployed(tmp_path, toml + features, hooks, module="bounds_rounding"), test)


def test_a_list_that_was_fetched_is_the_groups_fault() -> None:
    tokens = TensorSpec(name="tokens", datatype="INT64", shape=(-1, -1), min=0, max=49, max_length=6)
    model = Model(source="m:m", inputs=(tokens,), outputs=(TensorSpec(name="y"),))
    group = FeatureGroup(name="texts", key=("id",), columns=("tokens",), ttl="5s", sql="SELECT id, tokens FROM t")
    features = Features(entity=("id",), groups=(group,))
    limits = PathLimits(Deployment(name="m", model=model, features=features), (), hook=False)
    transform = RowTransform(model, None, None)
    good, unknown, long = ([{"tokens": values}] for values in ((1, 49), (1, 50), (1,) * 7))
    limited_inputs(transform, limits, good, from_client=False)
    for rows, said in ((unknown, "holds 50 in row 0, position 1"), (long, "is 7, the limit is 6")):
        with pytest.raises(FeatureUnavailable) as caught:
            limited_inputs(transform, limits, rows, from_client=False)
        assert caught.value.message == (
            'feature group "texts" has a value in column "tokens" that the model cannot take: '
            "allowed are 0 to 49; its length is at most 6"
        )
        assert caught.value.group == "texts"
        assert said in caught.value.detail
        with pytest.raises(BadRequest):
            limited_inputs(transform, limits, rows, from_client=True)


def test_what_a_hook_makes_beyond_a_limit_is_the_servers_fault(tmp_path: Path) -> None:
    fields = '[[model.fields]]\nname = "off"\nmin = 0\n'
    hooked = ('model.preprocess="bounds_hooks:preprocess"',)

    async def test(client: Client) -> None:
        assert (await client.post(PREDICT, {"rows": [{"shop": 40, "off": 9}]})).json["predictions"] == [{"y": 49.0}]
        answer = await client.post(PREDICT, {"rows": [{"shop": 40}, {"shop": 40, "off": 10}]})
        assert error(answer, 500) == "preprocess: input 'shop' holds 50 in row 1, allowed are 0 to 49"
        assert answer.json["code"] == "hook_failed"
        answer = await client.post(PREDICT, {"rows": [{"shop": 40, "off": -1}]})
        assert error(answer, 400) == "row 0: field 'off' is -1, allowed are values of at least 0"

    serve(shop(tmp_path, fields, overrides=hooked), test)


def test_generate_and_rows_of_lists_take_what_infer_takes(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        said = error(await client.post("/v2/models/m/generate", {"tokens": [1, 50]}), 400)
        assert said == "input 'tokens' holds 50 in row 0, position 1, allowed are 0 to 49"
        assert "is 7, the limit is 6" in error(await client.post("/v2/models/m/generate", {"tokens": [1] * 7}), 400)
        assert (await client.post("/v2/models/m/generate", {"tokens": [1] * 6})).json["y"] == 6.0
        assert (await client.post(PREDICT, {"rows": [{"tokens": [1, 2]}]})).json["predictions"] == [{"y": 3.0}]
        answer = await client.post(PREDICT, {"rows": [{"tokens": [1, 2]}, {"tokens": [1, 50]}]})
        assert error(answer, 400) == "input 'tokens' holds 50 in row 1, position 1, allowed are 0 to 49"
        assert "the limit is 6" in error(await client.post(PREDICT, {"rows": [{"tokens": [1] * 7}]}), 400)

    serve(deployed(tmp_path, TOKENS), test)


def test_a_stream_takes_what_infer_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    streamed: list[Arrays] = []

    def stream(inputs: Arrays) -> Iterator[Arrays]:
        streamed.append(inputs)
        yield {"y": inputs["tokens"][:, 0].astype(np.float32)}

    def whole(inputs: Arrays) -> Arrays:
        return {"y": inputs["tokens"].sum(axis=1).astype(np.float32)}

    monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: CallableRuntime(stream, whole))

    async def test(client: Client) -> None:
        for body, said in (({"tokens": [50]}, "input 'tokens' holds 50"), ({"tokens": [1] * 7}, "the limit is 6")):
            assert said in error(await client.post("/v2/models/m/generate_stream", body), 400)
        assert not streamed

    serve(deployed(tmp_path, TOKENS), test)


def test_texts(tmp_path: Path) -> None:
    def body(*cities: str) -> dict[str, Any]:
        return {"inputs": [{"name": "city", "shape": [len(cities)], "datatype": "BYTES", "data": list(cities)}]}

    async def test(client: Client) -> None:
        assert (await client.post(INFER, body("Oslo", "Rome"))).json["outputs"][0]["data"] == [1, 0]
        assert "holds 'Bonn' in row 1, allowed are 'Rome', 'Oslo'" in error(
            await client.post(INFER, body("Oslo", "Bonn")), 400
        )
        assert "6 characters in row 0, the limit is 5" in error(await client.post(INFER, body("Berlin")), 400)
        assert "field 'city' is 'Bonn', allowed" in error(await client.post(PREDICT, {"rows": [{"city": "Bonn"}]}), 400)
        assert (await client.post(PREDICT, {"rows": [{"city": "Oslo"}]})).json["predictions"] == [{"y": 1.0}]

    serve(deployed(tmp_path, CITY), test)


def test_a_refused_request_never_reaches_the_model(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        tensors = [
            {"name": "shop", "shape": [1], "datatype": "INT64", "data": [50]},
            {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [0, 0]},
        ]
        for _ in range(20):  # four failed batches in a row would count as a broken model
            assert "input 'shop' holds 50" in error(await client.post(INFER, {"inputs": tensors}), 400)
        assert client.app.engine.is_ready
        assert client.app.engine.recorder.batch_rows.counts.count(0) == len(
            client.app.engine.recorder.batch_rows.counts
        )
        found = await counters(client, "tailcut_requests_total")
        assert found == {("infer", "source", "bad_request", "off"): 20}

    serve(shop(tmp_path), test)


def test_the_description_has_the_limits(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        schemas = (await client.get("/openapi.json")).json["components"]["schemas"]
        shops, x = schemas["InferenceRequest"]["properties"]["inputs"]["items"]["oneOf"]
        assert shops["properties"]["data"]["items"] == {"type": "integer", "minimum": 0, "maximum": 49}
        assert x["properties"]["data"]["anyOf"][1]["items"]["items"] == {
            "type": "number",
            "minimum": -10,
            "maximum": 0.1,
        }
        generate = schemas["GenerateRequest"]["properties"]
        assert generate["shop"] == {"type": "integer", "minimum": 0, "maximum": 49}
        predict = schemas["PredictionRequest"]["properties"]
        assert predict["rows"]["items"]["properties"]["shop"] == {"type": "integer", "minimum": 0, "maximum": 49}
        assert predict["rows"]["items"]["properties"]["b"]["minimum"] == -10
        customer = {"type": "integer", "minimum": 1, "enum": [1, 2, 3, 4, 5], "description": "customer"}
        assert predict["entities"]["items"] == customer

    serve(shop(tmp_path, FEATURES), test)


def test_the_description_of_texts_and_lengths(tmp_path: Path) -> None:
    async def tokens(client: Client) -> None:
        schemas = (await client.get("/openapi.json")).json["components"]["schemas"]
        found = schemas["InferenceRequest"]["properties"]["inputs"]["items"]["oneOf"][0]["properties"]
        assert found["shape"]["prefixItems"][1] == {"type": "integer", "minimum": 1, "maximum": 6}
        assert schemas["GenerateRequest"]["properties"]["tokens"]["oneOf"][1]["maxItems"] == 6

    async def city(client: Client) -> None:
        schemas = (await client.get("/openapi.json")).json["components"]["schemas"]
        value = {"type": "string", "enum": ["Rome", "Oslo"], "maxLength": 5}
        assert schemas["GenerateRequest"]["properties"]["city"] == value
        assert schemas["PredictionRequest"]["properties"]["rows"]["items"]["properties"]["city"] == value

    serve(deployed(tmp_path, TOKENS), tokens)
    serve(deployed(tmp_path, CITY), city)


@pytest.mark.parametrize(
    ("question", "step", "said"),
    [
        (["--row", '{"shop": -1, "a": 0, "b": 0}'], "preprocess", "row 0: field 'shop' is -1, allowed are 0 to 49"),
        (["--entity", "2"], "preprocess", 'feature group "places" has a value in column "shop"'),
    ],
)
def test_check_says_what_a_request_would_be_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], question: list[str], step: str, said: str
) -> None:
    shop(tmp_path, FEATURES)
    assert run(["check", "--manifest", str(tmp_path), *question, "--json"]) != 0
    output = capsys.readouterr()
    assert said in output.out + output.err
    assert step in output.out + output.err
