"""``tailcut.asgi`` in a FastAPI app under uvicorn and Granian, over a socket, and by itself."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.app_kit import GOOD, deployment
from tests.integration.servers import free_port
from tests.integration.serving import HOST, START_TIMEOUT_S

pytestmark = pytest.mark.integration

APP = """
from contextlib import asynccontextmanager
from pathlib import Path

import tailcut
from fastapi import FastAPI

model = tailcut.asgi(Path(__file__).parent, overrides=["server.max_body=1MiB"])
app = FastAPI(lifespan=model.lifespan)
app.mount("/models", model)
late = FastAPI()
late_model = tailcut.asgi(Path(__file__).parent)
late.mount("/models", late_model)


@app.get("/own")
def own() -> dict[str, str]:
    return {"state": model.engine.state}
"""
SERVERS = {
    "uvicorn": ["-m", "uvicorn", "--log-level", "warning"],
    "granian": ["-m", "granian", "--interface", "asgi", "--no-ws", "--log-level", "warning"],
}


@contextmanager
def serving(directory: Path, server: str, name: str) -> Iterator[int]:
    """The app under a server; its port."""
    deployment(directory)
    (directory / "own_app.py").write_text(APP)
    port = free_port()
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *SERVERS[server], "--host", HOST, "--port", str(port), f"own_app:{name}"],
            cwd=directory,
            stdout=log,
            stderr=log,
        )
    try:
        yield port
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()


def request(port: int, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    try:
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, raw, headers or {})
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read()
    finally:
        connection.close()


def wait_ready(port: int, path: str, directory: Path) -> None:
    """Poll until it answers 200."""
    give_up_s = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            if request(port, "GET", path)[0] == 200:
                return
        except OSError:
            pass
        assert time.monotonic() < give_up_s, (directory / "log").read_text()
        time.sleep(0.02)


@pytest.mark.parametrize("server", sorted(SERVERS))
def test_mounted_in_fastapi(tmp_path: Path, server: str) -> None:
    with serving(tmp_path, server, "app") as port:
        wait_ready(port, "/models/v2/health/ready", tmp_path)
        status, headers, body = request(port, "POST", "/models/v2/models/m/infer", GOOD)
        assert (status, json.loads(body)["outputs"][0]["data"]) == (200, [3.0, 7.0])
        assert "total;dur=" in headers["server-timing"]
        head = json.dumps(
            {
                "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}],
                "parameters": {"binary_data_output": True},
            }
        ).encode()
        raw = head + np.array([[1, 2]], "<f4").tobytes()
        length = {"inference-header-content-length": str(len(head))}
        status, headers, body = request(port, "POST", "/models/v2/models/m/infer", raw, length)
        at = int(headers["inference-header-content-length"])
        assert np.frombuffer(body[at:], "<f4").tolist() == [3.0, 2.0, 4.0]
        assert json.loads(request(port, "GET", "/own")[2]) == {"state": "ready"}
        assert request(port, "GET", "/models/nothing")[0] == 404
        # The declared length alone is refused. A body sent as well meets a connection that Granian closes unread.
        assert request(port, "POST", "/models/v2/models/m/infer", None, {"content-length": "2000000"})[0] == 413
        assert request(port, "POST", "/models/v2/repository/models/m/unload", b"")[0] == 403


def test_mounted_without_a_lifespan_it_starts_with_the_first_request(tmp_path: Path) -> None:
    with serving(tmp_path, "uvicorn", "late") as port:
        wait_ready(port, "/models/v2/health/live", tmp_path)
        wait_ready(port, "/models/v2/health/ready", tmp_path)
        assert request(port, "POST", "/models/v2/models/m/infer", GOOD)[0] == 200


def test_by_itself_it_starts_with_the_servers_lifespan(tmp_path: Path) -> None:
    with serving(tmp_path, "uvicorn", "model") as port:
        wait_ready(port, "/v2/health/ready", tmp_path)
        assert request(port, "POST", "/v2/models/m/infer", GOOD)[0] == 200
