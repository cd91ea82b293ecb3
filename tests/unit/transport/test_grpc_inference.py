"""Requests over gRPC: whose they are where a host has several models, and how they end."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest
from tests.app_kit import deployment
from tests.grpc_kit import faulty_runtime, message, unary
from tests.wait_kit import until

from tailcut.manifest.host import load_host
from tailcut.pipeline.pipeline import Pipeline
from tailcut.pipeline.request_context import RequestContext
from tailcut.protocol.data_plane import DataPlane
from tailcut.serving.host import Host
from tailcut.transport.grpc.open_inference_pb2 import ModelInferResponse
from tailcut.transport.grpc.server import GRPCServer

Infer = Callable[..., Awaitable[bytes]]


def serve(folders: list[Path], test: Callable[[Host, Infer], Awaitable[None]]) -> None:
    async def main() -> None:
        host = Host(load_host(folders, environment={}))
        server = GRPCServer(DataPlane(host), "127.0.0.1", 0)
        await server.start()
        try:
            await host.start()
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel, asyncio.timeout(30):
                await test(host, unary(channel))
        finally:
            await server.stop(0.0)
            await host.stop(1.0)

    asyncio.run(main())


def ends(host: Host) -> dict[str, dict[str, int]]:
    """Requests that have ended, by model and code."""
    return {
        name: {key[2]: count for key, count in engine.recorder.requests.items() if count}
        for name, engine in host.engines.items()
    }


def metadata(error: grpc.aio.AioRpcError) -> dict[str, str]:
    return {str(key): str(value) for key, value in error.trailing_metadata()}


def test_each_of_several_models_counts_its_own_requests(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        deployment(tmp_path / name)
        file = tmp_path / name / "tailcut.toml"
        file.write_text(file.read_text().replace('name = "m"', f'name = "{name}"'))

    async def test(host: Host, infer: Infer) -> None:
        for name in ("a", "b", "b"):
            reply = ModelInferResponse.FromString(await infer(message(model_name=name).SerializeToString()))
            assert reply.model_name == name
        for sent, status in ((message(model_name="c").SerializeToString(), "NOT_FOUND"), (b"\xff", "INVALID_ARGUMENT")):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await infer(sent, metadata=(("x-request-id", "mine"),))
            assert caught.value.code().name == status
            assert metadata(caught.value)["x-request-id"] == "mine"
        assert ends(host) == {"a": {"ok": 1}, "b": {"ok": 2}}

    serve([tmp_path / "a", tmp_path / "b"], test)


def test_a_bug_is_internal_with_an_incident_and_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment(tmp_path)

    async def test(host: Host, infer: Infer) -> None:
        monkeypatch.setattr(Pipeline, "infer", lambda *_: 1 / 0)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await infer(message().SerializeToString())
        assert caught.value.details() == "unexpected ZeroDivisionError"
        told = {"x-tailcut-incident", "x-request-id", "server-timing", "x-tailcut-variant", "x-tailcut-version"}
        assert told <= metadata(caught.value).keys()
        assert ends(host) == {"m": {"internal": 1}}

    serve([tmp_path], test)


def test_a_failed_request_is_freed_without_the_garbage_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment(tmp_path)
    runtime = faulty_runtime(monkeypatch)
    alive: list[weakref.ref[RequestContext]] = []

    async def test(host: Host, infer: Infer) -> None:
        pipeline = host.only.pipeline
        admit = pipeline.admit

        def watched(context: RequestContext, rows: int, **names: bool) -> None:
            alive.append(weakref.ref(context))
            admit(context, rows, **names)

        monkeypatch.setattr(pipeline, "admit", watched)
        runtime.fail()
        gc.disable()
        try:
            with pytest.raises(grpc.aio.AioRpcError, match="the model failed"):
                await infer(message().SerializeToString())
            await until(lambda: [found() for found in alive] == [None])
        finally:
            gc.enable()

    serve([tmp_path], test)
