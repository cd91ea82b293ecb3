"""Streams over a socket of the real server whose clients do not read, or slowly."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.app_kit import deployment, samples
from tests.integration.servers import free_port
from tests.integration.serving import HOST
from tests.integration.test_generate_stream import STREAM, get, wait

pytestmark = pytest.mark.integration

PART_BYTES = 100_000
"""About: of one part's event."""

# Parts without an end, or 100 where there is a file that says so; how many were made stands in a file at the end.
SERVER = """
import itertools, sys
from pathlib import Path
import numpy as np
from tailcut.models import variant_loader
from tailcut.manifest.host import load_host
from tailcut.transport.lifecycle import serve
from tailcut.testing.runtimes import CallableRuntime

folder = Path(sys.argv[1])
WIDE = np.full((1, 20000), 0.125, np.float32)

def parts(inputs):
    made = 0
    try:
        for made in range(100) if (folder / "short").exists() else itertools.count(1):
            yield {"y": np.full(1, made, np.float32), "z": WIDE}
    finally:
        (folder / "made").write_text(str(made))

answer = lambda inputs: {"y": inputs["x"][:, 0], "z": WIDE.repeat(len(inputs["x"]), 0)}
variant_loader.open_runtime = lambda *_, **__: CallableRuntime(parts, answer)
settings = [f"server.port={sys.argv[2]}", "server.max_stream=4GiB", "server.drain=0s"]
sys.exit(serve(load_host([folder], overrides=settings)))
"""


@contextmanager
def serving(directory: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    deployment(directory)
    manifest = directory / "tailcut.toml"
    manifest.write_text(manifest.read_text().replace('"z", shape = [-1, 2]', '"z", shape = [-1, 20000]'))
    port = free_port()
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", SERVER, str(directory), str(port)], stdout=log, stderr=log)
    try:
        wait(lambda: get(port, "/v2/health/ready")[0] == 200, directory)
        yield port, process
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()


def ask(port: int, timeout_ms: int) -> socket.socket:
    """Ask for a stream and read nothing; the kernel takes little for this client."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    client.settimeout(20)
    client.connect((HOST, port))
    head = f"POST {STREAM} HTTP/1.1\r\nhost: h\r\nx-tailcut-timeout-ms: {timeout_ms}\r\n"
    client.sendall(f"{head}content-length: 12\r\n\r\n".encode() + b'{"x":[1, 2]}')
    return client


def read_all(client: socket.socket) -> bytes:
    """Read until the connection ends or breaks."""
    pieces = []
    try:
        while piece := client.recv(1 << 20):
            pieces.append(piece)
    except ConnectionResetError:
        pass
    return b"".join(pieces)


def test_what_a_client_does_not_read_is_not_made(tmp_path: Path) -> None:
    """A stream without an end is made as far as its client takes it; at the deadline the connection is closed."""
    with serving(tmp_path) as (port, _), closing(ask(port, 1000)) as client:
        wait((tmp_path / "made").exists, tmp_path)
        made = int((tmp_path / "made").read_text())
        assert made * PART_BYTES < 4_000_000, made
        wait(lambda: samples(get(port, "/metrics")[1].decode(), "tailcut_in_flight") == {(): 0}, tmp_path)
        counted = samples(get(port, "/metrics")[1].decode(), "tailcut_requests_total")
        assert counted == {("generate_stream", "source", "infer_timeout", "off"): 1}
        wait(lambda: not is_open(port, client), tmp_path)
        assert len(read_all(client)) < 4_000_000


def is_open(port: int, client: socket.socket) -> bool:
    """Whether the server still has the connection, as the kernel lists them."""
    own = client.getsockname()[1]
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ends = {(int(row[1].split(":")[1], 16), int(row[2].split(":")[1], 16)) for row in rows if row[3] == "01"}
    return (port, own) in ends


def test_a_client_that_reads_slowly_gets_all(tmp_path: Path) -> None:
    (tmp_path / "short").touch()
    with serving(tmp_path) as (port, _), closing(ask(port, 20_000)) as client:
        received = bytearray()
        while not received.endswith(b"\r\n0\r\n\r\n"):
            piece = client.recv(16 * 1024)
            assert piece, "the stream was cut"
            received += piece
        found = [json.loads(line[6:])["y"] for line in received.split(b"\n") if line.startswith(b"data: ")]
        assert found == list(range(100))


def test_a_client_that_does_not_read_does_not_hold_the_stop_up(tmp_path: Path) -> None:
    with serving(tmp_path) as (port, process), closing(ask(port, 60_000)) as client:
        assert client.recv(1, socket.MSG_PEEK)
        process.terminate()
        assert process.wait(10) == 0  # server.kill is later
        assert "gracefully" not in (tmp_path / "log").read_text()
