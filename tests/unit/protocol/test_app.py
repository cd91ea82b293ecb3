"""The HTTP interface without a socket: what it answers to right requests."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
from tests.app_kit import FEATURES, GOOD, INFER, Client, counters, deployment, running

import tailcut
from tailcut.common.tensors import Arrays
from tailcut.errors import TailcutError
from tailcut.models import variant_loader
from tailcut.pipeline.pipeline import Pipeline
from tailcut.pipeline.request_context import RequestContext
from tailcut.protocol.model_routes import EXTENSIONS
from tailcut.serving import engine
from tailcut.testing.runtimes import StubRuntime
from tailcut.transport.asgi import ASGIApplication

Test = Callable[[Client], Awaitable[None]]


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., None]:
    """Run a test against the application of a deployment."""

    def run(test: Test, more: str = "", *overrides: str) -> None:
        async def main() -> None:
            async with running(deployment(tmp_path, more, overrides)) as client:
                await test(client)

        asyncio.run(main())

    return run


Serve = Callable[..., None]


def test_inference(serve: Serve) -> None:
    async def test(client: Client) -> None:
        answer = await client.post(INFER, {**GOOD, "id": "7"})
        assert answer.status == 200
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["content-length"] == str(len(answer.body))
        assert answer.json == {
            "model_name": "m",
            "model_version": "source",
            "id": "7",
            "outputs": [
                {"name": "y", "datatype": "FP32", "shape": [2], "data": [3.0, 7.0]},
                {"name": "z", "datatype": "FP32", "shape": [2, 2], "data": [2.0, 4.0, 6.0, 8.0]},
            ],
        }
        versioned = await client.post("/v2/models/m/versions/source/infer", GOOD)
        assert versioned.json["outputs"] == answer.json["outputs"]
        only_z = await client.post(INFER, {**GOOD, "outputs": [{"name": "z"}]})
        assert [output["name"] for output in only_z.json["outputs"]] == ["z"]

    serve(test)


def test_more_rows_than_a_batch_holds(serve: Serve) -> None:
    async def test(client: Client) -> None:
        data = [float(n) for n in range(22)]
        tensor = {"name": "x", "shape": [11, 2], "datatype": "FP32", "data": data}
        answer = await client.post(INFER, {"inputs": [tensor]})
        assert answer.json["outputs"][0]["data"] == [4.0 * n + 1 for n in range(11)]

    serve(test)


def test_predictions_for_rows(serve: Serve) -> None:
    async def test(client: Client) -> None:
        answer = await client.post("/predict/m", {"rows": [{"id": 1, "value": 2}, {"value": 4, "id": 3}]})
        assert answer.json == {
            "model": "m",
            "predictions": [{"y": 3.0, "z": [2.0, 4.0]}, {"y": 7.0, "z": [6.0, 8.0]}],
        }
        assert answer.headers["x-tailcut-cache"] == "off"

    serve(test)


def test_predictions_for_entities_and_their_cache(serve: Serve) -> None:
    async def test(client: Client) -> None:
        wanted = [{"y": 22.0, "z": [4.0, 40.0]}, {"y": 11.0, "z": [2.0, 20.0]}]
        for cache in ("miss", "hit"):
            answer = await client.post("/predict/m", {"entities": [2, 1]})
            assert answer.status == 200
            assert answer.json["predictions"] == wanted
            assert answer.headers["x-tailcut-cache"] == cache
        assert "infer" not in answer.stages_ms
        unknown = await client.post("/predict/m", {"entities": [1, 100]})
        assert (unknown.status, unknown.json["code"]) == (404, "unknown_entity")
        assert "100" in unknown.json["error"]

    serve(test, FEATURES)


def test_reply_headers_say_where_the_time_went(serve: Serve) -> None:
    async def test(client: Client) -> None:
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        answer = await client.post(INFER, GOOD, {"traceparent": parent})
        assert answer.headers["traceparent"] == parent
        assert answer.headers["x-tailcut-variant"] == "source"
        stages = answer.stages_ms
        total = stages.pop("total")
        assert {"receive", "validate", "admit", "queue", "infer", "encode"} <= stages.keys()
        assert math.isclose(sum(stages.values()), total, abs_tol=0.0005 * (len(stages) + 1))
        failed = await client.post(INFER, b"{", {"traceparent": parent})
        assert failed.headers["traceparent"] == parent
        assert failed.stages_ms["total"] >= 0
        assert "traceparent" not in (await client.post(INFER, GOOD)).headers
        for wrong in (
            "x" * 10_000,
            parent.upper(),
            f"{parent}-1",
            f"00-{'0' * 32}-{'1' * 16}-01",
            parent.replace("b", "\n"),
        ):
            assert "traceparent" not in (await client.post(INFER, GOOD, {"traceparent": wrong})).headers

    serve(test)


def test_metadata_and_health(serve: Serve) -> None:
    async def test(client: Client) -> None:
        server = (await client.get("/v2")).json
        assert server == {"name": "tailcut", "version": tailcut.__version__, "extensions": list(EXTENSIONS)}
        model = {
            "name": "m",
            "versions": ["source"],
            "platform": "onnxruntime_source",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
            "outputs": [
                {"name": "y", "datatype": "FP32", "shape": [-1]},
                {"name": "z", "datatype": "FP32", "shape": [-1, 2]},
            ],
        }
        for path in ("/v2/models/m", "/v2/models/m/versions/source"):
            assert (await client.get(path)).json == model
        for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/m/ready", "/v2/models/m/versions/source/ready"):
            assert (await client.get(path)).status == 200
        assert (await client.request("HEAD", "/v2")).body == b""

    serve(test)


def test_openapi_lists_every_route(serve: Serve) -> None:
    async def test(client: Client) -> None:
        document = (await client.get("/openapi.json")).json
        listed = {
            (path, method.upper())
            for path, methods in document["paths"].items()
            for method in methods
            if "{version}" not in path
        }
        assert listed == {(path, route.method) for path, route in client.app.application.routes.items()}
        for path, methods in document["paths"].items():
            asked = path.replace("{version}", "source")
            answer = await client.request(next(iter(methods)).upper(), asked, b"{}")
            assert answer.status in {200, 400, 403}, path
            assert str(answer.status) in methods[next(iter(methods))]["responses"]

    serve(test)


def test_metrics_count_what_was_sent(serve: Serve) -> None:
    async def test(client: Client) -> None:
        for _ in range(3):
            await client.post(INFER, GOOD)
        await client.post(INFER, b"{")
        await client.post(INFER, GOOD, {"x-tailcut-timeout-ms": "soon"})
        await client.post(INFER, GOOD, {"x-tailcut-timeout-ms": "0.000001"})
        await client.post("/predict/m", {"entities": [1, 2]})
        await client.post("/predict/m", {"entities": [1, 2, 3]})
        await client.post("/predict/m", {"entities": [3]})
        await client.post("/predict/m", {"rows": [{"id": 1, "value": 1}]})
        assert await counters(client, "tailcut_requests_total") == {
            ("infer", "source", "ok", "off"): 3,
            ("infer", "source", "bad_request", "off"): 2,
            ("infer", "source", "deadline_exceeded", "off"): 1,
            ("predict", "source", "ok", "miss"): 2,
            ("predict", "source", "ok", "hit"): 1,
            ("predict", "source", "ok", "off"): 1,
        }
        assert await counters(client, "tailcut_request_seconds_count") == {
            ("infer", "ok"): 3,
            ("infer", "4xx"): 2,
            ("infer", "5xx"): 1,
            ("predict", "ok"): 4,
        }
        stages = await counters(client, "tailcut_stage_seconds_count")
        assert stages[("infer",)] == 6
        assert stages[("features",)] == 2
        assert await counters(client, "tailcut_batch_rows_count") == {(): 6}
        assert await counters(client, "tailcut_batch_rows_sum") == {(): 3 * 2 + 2 + 1 + 1}
        assert await counters(client, "tailcut_prediction_cache_lookups_total") == {
            ("entity", "hit"): 3,
            ("entity", "miss"): 3,
        }
        lookups = await counters(client, "tailcut_feature_cache_lookups_total")
        assert sorted(lookups.values()) == [0, 3]
        assert await counters(client, "tailcut_in_flight") == {(): 0}
        assert await counters(client, "tailcut_ready") == {(): 1}
        assert await counters(client, "tailcut_queue_rows") == {(): 0}

    serve(test, FEATURES)


def test_tenants_are_told_apart_by_the_header(serve: Serve) -> None:
    async def test(client: Client) -> None:
        for tenant, cache in (("a", "miss"), ("b", "miss"), ("a", "hit")):
            answer = await client.post("/predict/m", {"entities": [1]}, {"X-Tenant": tenant})
            assert answer.headers["x-tailcut-cache"] == cache

        twice = {"X-Tenant": "a", "x-tenant": "b"}  # a proxy's beside the client's: whose counts is nobody's to guess
        for wrong in ({}, {"X-Tenant": ""}, {"X-Tenant": "é"}, {"X-Tenant": "a" * 257}, twice):
            for path, body in (("/predict/m", {"entities": [1]}), (INFER, GOOD)):
                answer = await client.post(path, body, wrong)
                assert (answer.status, answer.json["code"]) == (400, "bad_request")
                assert "header x-tenant" in answer.json["error"]
        assert (await client.post(INFER, GOOD, {"X-Tenant": "a" * 256})).status == 200
        assert (await client.get("/v2/health/ready")).status == 200
        document = (await client.get("/openapi.json")).json
        parameters = document["paths"]["/predict/m"]["post"]["parameters"]
        assert [(p["name"], p.get("required")) for p in parameters][1:] == [("x-tenant", True)]

    serve(test, FEATURES, 'server.tenant_header="X-Tenant"')


def test_a_client_may_ask_for_a_longer_or_shorter_deadline_within_the_servers_limit(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Header and parameter are one thing; of two the shorter counts, and neither passes server.max_timeout."""
    seen_ms: list[float] = []
    admit = Pipeline.admit

    def noting(self: Pipeline, context: RequestContext, rows: int, **more: bool) -> None:
        seen_ms.append((context.deadline_ns - context.timings.start_ns) / 1e6)
        admit(self, context, rows, **more)

    monkeypatch.setattr(Pipeline, "admit", noting)

    async def test(client: Client) -> None:
        header_ms: dict[int, dict[str, str]] = {0: {}}
        header_ms |= {ms: {"x-tailcut-timeout-ms": str(ms)} for ms in (4000, 7000, 90_000)}
        for header, parameter_ms in (
            (0, 0),
            (7000, 0),
            (0, 7000),
            (7000, 4000),
            (4000, 7000),
            (90_000, 0),
            (0, 90_000),
        ):
            body = {**GOOD, "parameters": {"timeout": parameter_ms * 1000}}
            assert (await client.post(INFER, body, header_ms[header])).status == 200
        await client.post("/predict/m", {"rows": [{"id": 1, "value": 2}]}, header_ms[90_000])
        assert seen_ms == [5000, 7000, 7000, 4000, 4000, 20_000, 20_000, 20_000]

    serve(test, "", 'slo.timeout="5s"', 'server.max_timeout="20s"')


def test_before_it_is_loaded_only_liveness_is_true(tmp_path: Path) -> None:
    async def main() -> None:
        app = ASGIApplication(deployment(tmp_path))
        client = Client(app)
        assert (await client.get("/v2/health/live")).status == 200
        ready = await client.get("/v2/health/ready")
        assert (ready.status, ready.json) == (503, {"ready": False, "state": "loading"})
        for path, body in ((INFER, GOOD), ("/predict/m", {"rows": [{"id": 1, "value": 1}]})):
            answer = await client.post(path, body)
            assert (answer.status, answer.json["code"]) == (503, "not_ready")
        assert (await client.get("/v2/models/m")).status == 503
        assert (await client.get("/metrics")).status == 200
        await app.start()
        assert (await client.get("/v2/health/ready")).status == 200
        assert (await client.post(INFER, GOOD)).status == 200
        await app.stop()
        assert (await client.get("/v2/health/ready")).status == 503
        assert (await client.post(INFER, GOOD)).status == 503

    asyncio.run(main())


def test_while_draining_requests_are_still_answered(serve: Serve) -> None:
    async def test(client: Client) -> None:
        client.app.host.drain()
        ready = await client.get("/v2/health/ready")
        assert (ready.status, ready.json["state"]) == (503, "draining")
        assert (await client.get("/v2/models/m/ready")).status == 503
        assert (await client.post(INFER, GOOD)).status == 200

    serve(test)


def test_mounted_below_a_path_of_a_users_app(serve: Serve) -> None:
    async def test(client: Client) -> None:
        assert (await client.post("/models" + INFER, GOOD, root="/models")).status == 200

    serve(test)


def test_the_lifespan_starts_and_stops_the_engine(tmp_path: Path) -> None:
    async def main() -> None:
        app = ASGIApplication(deployment(tmp_path))
        inbox: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        replies: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        lifespan = asyncio.create_task(app({"type": "lifespan"}, inbox.get, replies.put))  # type: ignore[arg-type]
        inbox.put_nowait({"type": "lifespan.startup"})
        assert (await replies.get())["type"] == "lifespan.startup.complete"
        assert app.engine.is_ready
        inbox.put_nowait({"type": "lifespan.shutdown"})
        assert (await replies.get())["type"] == "lifespan.shutdown.complete"
        await lifespan
        assert not app.engine.is_ready

    asyncio.run(main())


def test_a_model_that_does_not_load_fails_the_lifespan_by_name(tmp_path: Path) -> None:
    async def main() -> None:
        manifest = deployment(tmp_path)
        (tmp_path / "model.onnx").write_bytes((tmp_path / "model.onnx").read_bytes()[:-20])
        app = ASGIApplication(manifest)
        replies: list[dict[str, str]] = []

        async def startup() -> dict[str, str]:
            return {"type": "lifespan.startup"}

        async def keep(message: dict[str, str]) -> None:
            replies.append(message)

        await app({"type": "lifespan"}, startup, keep)  # type: ignore[arg-type]
        assert replies[0]["type"] == "lifespan.startup.failed"
        assert "model.onnx" in replies[0]["message"]
        assert isinstance(app.engine.failure, TailcutError)
        answer = await Client(app).post(INFER, GOOD)
        assert (answer.status, answer.json["code"]) == (503, "not_ready")
        assert "model.onnx" in answer.json["error"]

    asyncio.run(main())


def test_an_unforeseen_error_while_loading_is_a_failed_deployment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    async def main() -> None:
        monkeypatch.setattr(engine, "open_deployment", broken)
        app = ASGIApplication(deployment(tmp_path))
        with pytest.raises(ZeroDivisionError):
            await app.start()
        client = Client(app)
        assert (await client.get("/v2/health/ready")).json == {"ready": False, "state": "failed"}
        assert "ZeroDivisionError: division by zero" in (await client.post(INFER, GOOD)).json["error"]
        await app.stop()

    asyncio.run(main())


def test_infinity_is_kept_in_the_entity_cache(serve: Serve) -> None:
    async def test(client: Client) -> None:
        for cache in ("miss", "hit"):
            answer = await client.post("/predict/m", {"entities": [1]})
            assert answer.json["predictions"] == [{"y": math.inf, "z": [None, math.inf]}]
            assert answer.headers["x-tailcut-cache"] == cache
        for wrong in (math.nan, math.inf, None):
            answer = await client.post("/predict/m", {"entities": [wrong]})
            assert (answer.status, answer.json["code"]) == (400, "bad_request")

    def odd(inputs: Arrays) -> Arrays:
        return {
            "y": np.full(len(inputs["x"]), np.inf, np.float32),
            "z": np.array([[np.nan, np.inf]] * len(inputs["x"]), np.float32),
        }

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(variant_loader, "open_runtime", lambda *_, **__: StubRuntime(odd))
        serve(test, FEATURES, "model.outputs.y.allow_nan=true", "model.outputs.z.allow_nan=true")
