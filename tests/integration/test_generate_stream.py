"""generate_stream over a socket of the real server: events come as they are made; a client that leaves is noticed."""

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

import pytest
from tests.app_kit import deployment, samples
from tests.integration.servers import free_port
from tests.integration.serving import HOST, START_TIMEOUT_S

pytestmark = pytest.mark.integration

STREAM = "/v2/models/m/generate_stream"
# The last part comes when the file is there; that a stream has ended is said by another.
SERVER = """
import sys, time
from pathlib import Path
from tailcut.models import variant_loader
from tailcut.manifest.host import load_host
from tailcut.transport.lifecycle import serve
from tailcut.testing.runtimes import CallableRuntime

folder = Path(sys.argv[1])

def parts(inputs):
    first = inputs["x"]
    yield {"y": first[:, 0], "z": first}
    give_up_s = time.monotonic() + 30
    while not (folder / "go").exists() and time.monotonic() < give_up_s:
        time.sleep(0.01)
    try:
        for n in range(200):
            yield {"y": first[:, 1], "z": first}
    finally:
        (folder / "ended").touch()

answer = lambda inputs: {"y": inputs["x"][:, 0], "z": inputs["x"]}
variant_loader.open_runtime = lambda *_, **__: CallableRuntime(parts, answer)
sys.exit(serve(load_host([folder], overrides=[f"server.port={sys.argv[2]}", "server.drain=0s"])))
"""


@contextmanager
def serving(directory: Path) -> Iterator[int]:
    with started(directory) as (port, _):
        yield port


@contextmanager
def started(directory: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    deployment(directory)
    port = free_port()
    with (directory / "log").open("wb") as log:
        command = [sys.executable, "-c", SERVER, str(directory), str(port)]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait(lambda: get(port, "/v2/health/ready")[0] == 200, directory)
        yield port, process
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()


def wait(condition: Any, directory: Path) -> None:
    """Poll a condition; refused connections count as not yet."""
    give_up_s = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            if condition():
                return
        except OSError:
            pass
        assert time.monotonic() < give_up_s, (directory / "log").read_text()
        time.sleep(0.02)


def get(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def begin(port: int) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse, Any]:
    """Ask for a stream and read its first event."""
    connection = http.client.HTTPConnection(HOST, port, timeout=20)
    body = json.dumps({"x": [1, 2]})
    connection.request("POST", STREAM, body, {"x-tailcut-timeout-ms": "30000"})
    reply = connection.getresponse()
    assert reply.status == 200
    assert reply.getheader("content-type") == "text/event-stream; charset=utf-8"
    line, empty = reply.readline(), reply.readline()
    assert (line[:6], empty) == (b"data: ", b"\n")
    return connection, reply, json.loads(line[6:])


def test_events_come_as_they_are_made(tmp_path: Path) -> None:
    with serving(tmp_path) as port:
        connection, reply, first = begin(port)
        assert first["y"] == 1.0
        assert not (tmp_path / "ended").exists()
        (tmp_path / "go").touch()
        rest = [json.loads(event[6:]) for event in reply.read().split(b"\n\n") if event]
        assert [event["y"] for event in rest] == [2.0] * 200
        connection.request("POST", "/v2/models/m/generate", json.dumps({"x": [1, 2]}))
        assert json.loads(connection.getresponse().read())["y"] == 1.0
        connection.close()


def test_a_client_that_leaves_is_noticed_and_counted(tmp_path: Path) -> None:
    with serving(tmp_path) as port:
        connection, _, _ = begin(port)
        connection.close()

        def outcomes() -> dict[tuple[str, ...], float]:
            return samples(get(port, "/metrics")[1].decode(), "tailcut_requests_total")

        wait(lambda: ("generate_stream", "source", "client_gone", "off") in outcomes(), tmp_path)
        (tmp_path / "go").touch()
        wait((tmp_path / "ended").exists, tmp_path)
        assert samples(get(port, "/metrics")[1].decode(), "tailcut_in_flight") == {(): 0}
        assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_stop_ends_streams_with_an_event(tmp_path: Path) -> None:
    with started(tmp_path) as (port, process):
        connection, reply, _ = begin(port)
        process.terminate()
        (last,) = [json.loads(event[6:]) for event in reply.read().split(b"\n\n") if event]
        assert (last["code"], last["error"]) == ("not_ready", "the server is shutting down")
        assert process.wait(10) == 0  # server.kill is later
        assert "gracefully" not in (tmp_path / "log").read_text()
        connection.close()
