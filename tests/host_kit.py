"""What the tests of hosts share: folders of small models, y = factor * (x0 + x1), and a running host of them."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.app_kit import GOOD, Answer, Client
from tests.promotion_kit import save_model

from tailcut.errors import ArtifactError
from tailcut.manifest.host import load_host
from tailcut.models import variant_loader
from tailcut.registry import Variant
from tailcut.serving.host import Host
from tailcut.testing.runtimes import FaultyRuntime, StubRuntime
from tailcut.transport.asgi import ASGIApplication

TOKEN = "manager"
MANAGES = {"authorization": f"Bearer {TOKEN}"}

MANIFEST = """
name = "{name}"

[model]
source = "model.onnx"
inputs = [{{ name = "x", shape = [-1, 2], columns = ["id", "value"] }}]
outputs = [{{ name = "y", shape = [-1] }}, {{ name = "z", shape = [-1, 2] }}]

[serve]
variant = "source"

[batching]
max_rows = 4
max_queue_rows = 16
"""


def add_model(folder: Path, name: str, factor: float = 1.0, more: str = "", *, directory: str = "") -> Path:
    """Write a model and its manifest into a subfolder, which has the model's name unless another is given."""
    where = folder / (directory or name)
    where.mkdir(parents=True, exist_ok=True)
    save_model(where / "model.onnx", factor)
    (where / "tailcut.toml").write_text(MANIFEST.format(name=name) + more)
    return where / "tailcut.toml"


def add_models(folder: Path, **factors: float) -> Path:
    """Write models by name; return the folder."""
    for name, factor in factors.items():
        add_model(folder, name, factor)
    return folder


class HostClient(Client):
    """Sends requests to the models of a host."""

    @property
    def host(self) -> Host:
        """What serves."""
        return self.app.host

    async def infer(self, name: str) -> Answer:
        """Ask a model for two rows."""
        return await self.post(f"/v2/models/{name}/infer", GOOD)

    async def factor(self, name: str) -> float:
        """Return the factor that a model answers with."""
        reply = await self.infer(name)
        assert reply.status == 200, reply.body
        assert reply.json["model_name"] == name
        return float(reply.json["outputs"][0]["data"][0]) / 3.0

    async def load(self, name: str, **parameters: Any) -> Answer:
        """Load a model over HTTP."""
        return await self.post(f"/v2/repository/models/{name}/load", {"parameters": parameters}, MANAGES)

    async def unload(self, name: str) -> Answer:
        """Unload a model over HTTP."""
        return await self.post(f"/v2/repository/models/{name}/unload", b"", MANAGES)

    async def states(self) -> dict[str, str]:
        """Return the state of each model."""
        found = (await self.get("/v2/health/ready")).json["models"]
        return {name: each["state"] for name, each in found.items()}

    async def reasons(self) -> dict[str, str]:
        """Return why models are not ready, of those that say it."""
        found = (await self.get("/v2/health/ready")).json["models"]
        return {name: each["reason"] for name, each in found.items() if "reason" in each}

    async def index(self, **body: Any) -> dict[str, tuple[str, str]]:
        """Return state and reason of each model as the repository lists it; of several variants the last."""
        reply = await self.post("/v2/repository/index", body)
        assert reply.status == 200, reply.body
        return {entry["name"]: (entry["state"], entry.get("reason", "")) for entry in reply.json}


class Runtimes:
    """Opens fakes in the place of models, by the name of the model; counts what is open.

    Attributes:
        opened: all fakes of each model, in the order in which they were opened.
        factors: what the fakes of a version answer with; 1 unless given.
        entered: models of which one is being opened, or was.
        waiting: models of which one waits in ``hold``.
        broken: models that cannot be opened.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: dict[str, list[FakeRuntime]] = {}
        self.factors: dict[str, float] = {}
        self.entered: list[str] = []
        self.waiting: set[str] = set()
        self.broken: set[str] = set()
        self._held: dict[str, threading.Event] = {}
        monkeypatch.setattr(variant_loader, "open_runtime", self._open)

    def hold(self, name: str) -> None:
        """Let no fake of a model be opened until ``let``."""
        self._held[name] = threading.Event()

    def let(self, name: str) -> None:
        """Let those that are held be opened, and later ones."""
        self.waiting.discard(name)
        self._held.pop(name).set()

    def latest(self, name: str) -> FakeRuntime:
        """Return a model's fake that was opened last."""
        return self.opened[name][-1]

    @property
    def open_now(self) -> dict[str, int]:
        """How many fakes of each model are open."""
        counts = {name: sum(not each.closed for each in fakes) for name, fakes in self.opened.items()}
        return {name: count for name, count in counts.items() if count}

    def _open(self, variant: Variant, **_: object) -> FakeRuntime:
        name = variant.model
        self.entered.append(name)
        if (held := self._held.get(name)) is not None:
            self.waiting.add(name)
            if not held.wait(30):
                raise ArtifactError(f"{name} was held for too long")
        if name in self.broken:
            raise ArtifactError(f"{name} cannot be opened", hint="mend it")
        found = FakeRuntime(self.factors.get(variant.version, 1.0))
        self.opened.setdefault(name, []).append(found)
        return found


class FakeRuntime(FaultyRuntime):
    """Answers sums of rows, fails or hangs on demand, and knows whether it was closed."""

    def __init__(self, factor: float) -> None:
        self._stub = StubRuntime(lambda inputs: {"y": factor * inputs["x"].sum(axis=1), "z": factor * inputs["x"]})
        super().__init__(self._stub)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._stub.closed


def host_of(*paths: Path, overrides: Sequence[str] = ()) -> HostClient:
    """Make the application of a host that has not started; whoever has ``TOKEN`` may load models."""
    tokens = (paths[0] if paths[0].is_dir() else paths[0].parent) / "tokens"
    tokens.write_text(hashlib.sha256(TOKEN.encode()).hexdigest())
    app = ASGIApplication(
        load_host(paths, environment={}, overrides=[f"server.management_tokens={tokens}", *overrides])
    )
    return HostClient(app)


def serve(folder: Path, test: Callable[[Client], Awaitable[None]], overrides: Sequence[str] = ()) -> None:
    """Serve a folder of models in one server and run a test against it."""

    async def main() -> None:
        app = ASGIApplication(load_host([folder], environment={}, overrides=overrides))
        await app.start()
        try:
            await test(Client(app))
        finally:
            await app.stop()

    asyncio.run(main())


@asynccontextmanager
async def running_host(*paths: Path, overrides: Sequence[str] = ()) -> AsyncIterator[HostClient]:
    """A started host, stopped at the end."""
    client = host_of(*paths, overrides=overrides)
    await client.app.start()
    try:
        yield client
    finally:
        async with asyncio.timeout(30):
            await client.app.stop()
