"""Every protocol logs its requests alike: over gRPC, in process, and those that are shed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tests.app_kit import FEATURES, GOOD, INFER, deployment, running
from tests.grpc_kit import in_process, message, unary

import tailcut
from tailcut.common.tensors import Arrays
from tailcut.errors import BadRequest
from tailcut.load.replay import body_of
from tailcut.models import variant_loader
from tailcut.observe.request_log import Record, read_log
from tailcut.testing.runtimes import CallableRuntime
from tailcut.transport.grpc.server import SERVICE

LOG = """
[request_log]
path = "requests"
share = 1.0
"""


def logged(folder: Path) -> list[Record]:
    return read_log(folder / "requests", lambda _: None)


def test_grpc(tmp_path: Path) -> None:
    with in_process(tmp_path, LOG) as server, grpc.insecure_channel(server.url) as channel:
        asked = message(parameters={"priority": {"int64_param": 2}}, outputs=[{"name": "y"}])
        unary(channel)(asked.SerializeToString(), metadata=(("x-request-id", "r-7"),), timeout=20)
        with pytest.raises(grpc.RpcError):
            unary(channel)(message(model_version="none").SerializeToString(), timeout=20)
    first, second = logged(tmp_path)
    assert (first.route, first.code, first.priority, first.request_id) == ("grpc_infer", "ok", 2, "r-7")
    assert (first.wanted, first.encoding) == (["y"], "grpc")
    assert 0 < first.asked_ms <= 20_100, "gRPC rounds what is left up to a tenth of a second"
    assert first.arrays()["x"].tolist() == [[1, 2]]
    assert first.outputs is not None
    assert first.outputs[0].data == [3.0]
    assert (second.code, second.status, second.is_asked) == ("not_found", 404, False)
    assert body_of(first).path == "/v2/models/m/infer"


def test_a_stream_is_logged_with_its_request_and_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def parts(inputs: Arrays) -> Iterator[Arrays]:
        for _ in range(3):
            yield {"y": inputs["x"][:, 0], "z": inputs["x"]}

    runtime = CallableRuntime(parts, lambda inputs: next(parts(inputs)))
    monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: runtime)
    with in_process(tmp_path, LOG) as server, grpc.insecure_channel(server.url) as channel:
        stream = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
        assert len(list(stream(iter([message().SerializeToString()]), timeout=20))) == 3
    (found,) = logged(tmp_path)
    assert (found.route, found.code, found.outputs) == ("grpc_stream", "ok", None)
    assert found.arrays()["x"].tolist() == [[1, 2]]
    assert found.timings_ns["infer"] > 0


def test_in_process(tmp_path: Path) -> None:
    x = np.array([[1, np.pi]], np.float32)
    kept = x.copy()

    async def scenario() -> Any:
        async with tailcut.open(deployment(tmp_path, FEATURES + LOG)) as model:
            found = await model.infer({"x": x})
            found["y"][:] = x[:] = 0
            await model.predict([{"id": 1, "value": 2.5}])
            await model.predict(entities=[5])
            with pytest.raises(BadRequest):
                await model.predict([{"id": 1}])

    asyncio.run(scenario())
    tensors, rows, entities, wrong = logged(tmp_path)
    np.testing.assert_array_equal(tensors.arrays()["x"], kept)
    assert tensors.outputs is not None
    assert tensors.outputs[0].array() == kept.sum(dtype=np.float32)
    assert rows.values() == ("rows", [{"id": 1, "value": 2.5}])
    assert rows.predictions == [{"y": 3.5, "z": [2.0, 5.0]}]
    assert entities.values() == ("entities", [5])
    assert wrong.values() == ("rows", [{"id": 1}])
    assert {each.route for each in (rows, entities)} == {"local_predict"}


def test_what_is_shed_is_logged_with_its_inputs(tmp_path: Path) -> None:
    many: dict[str, Any] = {"inputs": [{**GOOD["inputs"][0], "shape": [17, 2], "data": [0.5] * 34}]}

    async def scenario() -> Any:
        async with running(deployment(tmp_path, LOG)) as client:
            assert (await client.post(INFER, many)).status in {413, 429}
            assert (await client.post(INFER, GOOD, {"x-tailcut-timeout-ms": "0.001"})).status in {429, 504}
            return (await client.get("/metrics")).body.decode()

    text = asyncio.run(scenario())
    assert 'tailcut_request_log_dropped_total{model="m",reason="disk"} 0.0' in text
    late = logged(tmp_path)[-1]
    assert late.code in {"shed", "deadline_exceeded"}
    assert late.arrays()["x"].tolist() == [[1, 2], [3, 4]]
    assert late.outputs is None


def test_generate(tmp_path: Path) -> None:
    async def scenario() -> Any:
        async with running(deployment(tmp_path, LOG)) as client:
            reply = await client.post("/v2/models/m/generate", {"x": [1, 2]})
            assert reply.status == 200

    asyncio.run(scenario())
    (found,) = logged(tmp_path)
    assert body_of(found).path == "/v2/models/m/generate"
    assert body_of(found).content == b'{"x":[1.0,2.0]}'


def test_it_is_off_by_default(tmp_path: Path) -> None:
    async def scenario() -> Any:
        async with running(deployment(tmp_path)) as client:
            await client.post(INFER, GOOD)
            assert "request_log" not in (await client.get("/metrics")).body.decode()

    asyncio.run(scenario())
