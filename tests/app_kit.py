"""What the tests of the HTTP interface share: a small model, its manifest, requests without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from prometheus_client.parser import text_string_to_metric_families
from tests.wait_kit import until

from tailcut.manifest import Manifest, load
from tailcut.transport.asgi import ASGIApplication

MANIFEST = """
name = "m"

[model]
source = "model.onnx"
inputs = [{ name = "x", shape = [-1, 2], columns = ["id", "value"] }]
outputs = [{ name = "y", shape = [-1] }, { name = "z", shape = [-1, 2] }]

[serve]
variant = "source"

[batching]
max_rows = 4
max_queue_rows = 16
"""

FEATURES = """
[features]
entity = ["id"]
refresh_ahead = false

[[features.groups]]
name = "values"
key = ["id"]
columns = ["value"]
ttl = "1h"
function = "app_hooks:values"

[cache.entity]
enabled = true
"""

HOOKS = """
def values(keys, context):
    return [{"value": 10.0 * key[0]} if key[0] < 100 else None for key in keys]
"""

GOOD = {"inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
INFER = "/v2/models/m/infer"
PATIENT = ('slo.timeout="20s"', 'server.kill="30s"')
"""Settings where a stall of the machine must not end what a test waits for."""


def save_model(path: Path) -> None:
    """Save x (n, 2) -> y (n): the sum of each row; z (n, 2): twice x."""
    weights = [
        numpy_helper.from_array(np.array([1], dtype=np.int64), "axis"),
        numpy_helper.from_array(np.array(2, dtype=np.float32), "two"),
    ]
    nodes = [
        helper.make_node("ReduceSum", ["x", "axis"], ["y"], keepdims=0),
        helper.make_node("Mul", ["x", "two"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes,
        "sums",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"]),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", 2]),
        ],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def deployment(directory: Path, more: str = "", overrides: Sequence[str] = ()) -> Manifest:
    """Write a model and its manifest, with ``more`` TOML, and load it."""
    save_model(directory / "model.onnx")
    (directory / "app_hooks.py").write_text(HOOKS)
    (directory / "tailcut.toml").write_text(MANIFEST + more)
    return load(directory, environment={}, overrides=overrides)


class Answer:
    """A reply as a client sees it."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def stages_ms(self) -> dict[str, float]:
        """Server-Timing, read as its standard says."""
        entries = [entry.strip().split(";dur=") for entry in self.headers["server-timing"].split(",")]
        return {name: float(ms) for name, ms in entries}


class Connection:
    """One ASGI request, message by message; ``sent`` counts the messages that the application took."""

    def __init__(self, app: ASGIApplication, method: str, path: str, headers: dict[str, str], root: str = "") -> None:
        self._app = app
        self._scope = {
            "type": "http",
            "method": method,
            "path": path,
            "root_path": root,
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._replies: list[Any] = []
        self.sent = 0

    def send(self, body: bytes, more: bool = False) -> None:
        self._inbox.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def disconnect(self) -> None:
        self._inbox.put_nowait({"type": "http.disconnect"})

    async def answer(self) -> Answer:
        async with asyncio.timeout(20):
            await self._app(self._scope, self._receive, self._send)
        start, body = self._replies
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        return Answer(start["status"], headers, body["body"])

    async def _receive(self) -> dict[str, Any]:
        message = await self._inbox.get()
        self.sent += 1
        return message

    async def _send(self, message: Any) -> None:
        self._replies.append(message)


class Client:
    """Sends whole requests to an application."""

    def __init__(self, app: ASGIApplication) -> None:
        self.app = app

    def connect(self, method: str, path: str, headers: dict[str, str] | None = None, root: str = "") -> Connection:
        return Connection(self.app, method, path, headers or {}, root)

    async def request(
        self, method: str, path: str, body: Any = b"", headers: dict[str, str] | None = None, root: str = ""
    ) -> Answer:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = self.connect(method, path, {"content-length": str(len(raw)), **(headers or {})}, root)
        connection.send(raw)
        return await connection.answer()

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.request("GET", path, **options)

    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None, root: str = "") -> Answer:
        return await self.request("POST", path, body, headers, root)


_LABELS = ("route", "variant", "stage", "outcome", "cache", "result")
_CODED = ("route", "variant", "stage", "code", "cache", "result")


def samples(text: str, name: str) -> dict[tuple[str, ...], float]:
    """Values of a metric by the values of its labels but for the model, in the order of ``_LABELS``.

    Ends of requests that did not occur are left out; a code stands in the place of the outcome where a metric has both.
    """
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and (sample.value or not name.startswith("tailcut_request")):
                order = _CODED if "code" in sample.labels and "outcome" in sample.labels else _LABELS
                found[tuple(sample.labels[label] for label in order if label in sample.labels)] = sample.value
    return found


async def counters(client: Client, name: str) -> dict[tuple[str, ...], float]:
    """Scrape a metric; see ``samples``."""
    return samples((await client.get("/metrics")).body.decode(), name)


async def until_metric(client: Client, name: str, value: float) -> None:
    """Wait until all samples of a metric together have a value."""

    async def has_it() -> bool:
        return sum((await counters(client, name)).values()) == value

    await until(has_it)


@asynccontextmanager
async def running(manifest: Manifest) -> AsyncIterator[Client]:
    """A started application, stopped at the end."""
    app = ASGIApplication(manifest)
    await app.start()
    try:
        yield Client(app)
    finally:
        await app.stop()
