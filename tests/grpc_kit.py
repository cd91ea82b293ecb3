"""What the tests of the gRPC interface share: a server in a thread of its own, whose model fails or hangs on demand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
from tests.app_kit import deployment

from tailcut.manifest.host import HostManifest
from tailcut.models import variant_loader
from tailcut.protocol.auth import Guard
from tailcut.protocol.data_plane import DataPlane
from tailcut.serving.host import Host
from tailcut.testing.runtimes import FaultyRuntime, StubRuntime
from tailcut.transport.grpc.open_inference_pb2 import ModelInferRequest
from tailcut.transport.grpc.server import SERVICE, GRPCServer

T = TypeVar("T")
TIMEOUT_S = 30.0


class InProcess:
    """An engine and its gRPC server on an event loop in a thread; everything else is called from the test's."""

    def __init__(self, directory: Path, more: str = "", overrides: tuple[str, ...] = ()) -> None:
        manifest = HostManifest.of(deployment(directory, more, overrides))
        self.host = Host(manifest)
        self.engine = self.host.only
        self.server = GRPCServer(DataPlane(self.host, Guard.of(manifest, address="127.0.0.1")), "127.0.0.1", 0)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(TIMEOUT_S)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds on the server's loop, looking after every round of it."""

        async def look() -> None:
            async with asyncio.timeout(TIMEOUT_S):
                while not condition():
                    await asyncio.sleep(0)

        self.call(look())

    def counts(self, route: str) -> dict[str, int]:
        """Requests of a route that have ended, by outcome."""
        found: dict[str, int] = {}
        for (its_route, _, outcome, _), count in self.engine.recorder.requests.items():
            if its_route == route and count:
                found[outcome] = found.get(outcome, 0) + count
        return found

    def end(self) -> None:
        """Stop all of it."""
        self.call(self.server.stop(0.0))
        self.call(self.host.stop(timeout_s=1.0))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(TIMEOUT_S)
        self.loop.close()


@contextmanager
def in_process(
    directory: Path, more: str = "", overrides: tuple[str, ...] = (), load: bool = True
) -> Iterator[InProcess]:
    """A running server of the small model; ``load`` False leaves it before the loading."""
    running = InProcess(directory, more, overrides)
    try:
        running.call(running.server.start())
        if load:
            running.call(running.host.start())
        yield running
    finally:
        running.end()


def faulty_runtime(monkeypatch: pytest.MonkeyPatch) -> FaultyRuntime:
    """The small model with faults on demand, in the place of the one that would be opened."""
    runtime = FaultyRuntime(StubRuntime(lambda inputs: {"y": inputs["x"].sum(axis=1), "z": inputs["x"] * 2}))
    monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: runtime)
    return runtime


def message(**changes: Any) -> ModelInferRequest:
    """A request for one row, raw, with fields changed."""
    fields: dict[str, Any] = {
        "model_name": "m",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2]}],
        "raw_input_contents": [b"\0\0\x80?\0\0\0@"],
    }
    return ModelInferRequest(**{**fields, **changes})


def unary(channel: grpc.Channel, method: str = "ModelInfer") -> Callable[..., Any]:
    """A method that takes and gives bytes."""
    return channel.unary_unary(f"/{SERVICE}/{method}")
