"""HTTP/2 (``server.http2``): answers, over TLS where the client is offered it, and refusals, also of unread bodies."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from tests.app_kit import GOOD, INFER
from tests.integration.serving import HOST, Served
from tests.integration.test_serve_secure import TLS, Secure, make_certificate

pytestmark = [
    pytest.mark.integration,
    pytest.mark.parallel,
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]
TIMES = 20
HTTP2 = "server.http2=true"


def asked(port: int, path: str, body: bytes) -> list[str]:
    """Post often; return what curl says of each: exit code and status."""
    command = ["curl", "-s", "--http2-prior-knowledge", "-o", "/dev/null", "-w", "%{exitcode} %{http_code}"]
    command += ["--max-time", "20", "--data-binary", "@-", f"http://{HOST}:{port}{path}"]
    runs = [subprocess.run(command, input=body, capture_output=True, check=False) for _ in range(TIMES)]
    return [run.stdout.decode() for run in runs]


def answered(*options: str, url: str, body: bytes) -> tuple[str, bytes]:
    """Post once; return the protocol and status that curl saw, and the reply's body."""
    command = ["curl", "-s", *options, "-w", "\n%{http_version} %{http_code}", "--max-time", "20"]
    run = subprocess.run([*command, "--data-binary", "@-", url], input=body, capture_output=True, check=True)
    reply, _, seen = run.stdout.rpartition(b"\n")
    return seen.decode(), reply


def test_an_answer_is_the_one_of_http_1(tmp_path: Path) -> None:
    with Served(tmp_path, settings=[HTTP2]) as served:
        url, body = f"http://{HOST}:{served.port}{INFER}", json.dumps(GOOD).encode()
        first, old = answered("--http1.1", url=url, body=body)
        second, new = answered("--http2-prior-knowledge", url=url, body=body)
        assert (first, second) == ("1.1 200", "2 200")
        assert json.loads(new)["outputs"] == json.loads(old)["outputs"] != []
        many = b" " * 3_000_000 + body  # in many frames
        assert json.loads(answered("--http2-prior-knowledge", url=url, body=many)[1])["outputs"][0]["data"] == [
            3.0,
            7.0,
        ]


def test_over_tls_the_client_that_offers_it_gets_it(tmp_path: Path) -> None:
    Secure.cert, _ = make_certificate(tmp_path)
    with Secure(tmp_path, settings=[*TLS, HTTP2]) as served:
        url, body = f"https://{HOST}:{served.port}{INFER}", json.dumps(GOOD).encode()
        for option, version in (("--http2", "2"), ("--http1.1", "1.1")):
            seen, reply = answered(option, "--cacert", str(Secure.cert), url=url, body=body)
            assert seen == f"{version} 200"
            assert json.loads(reply)["outputs"][0]["data"] == [3.0, 7.0]


def test_without_it_a_client_that_speaks_nothing_else_is_told_the_setting(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        with socket.create_connection((HOST, served.port), timeout=20) as client:
            client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            raw = b"".join(iter(lambda: client.recv(4096), b""))
        assert raw.startswith(b"HTTP/1.1 400 ")
        assert b"set server.http2 = true" in raw
        command = ["curl", "-s", "--http2", "-o", "/dev/null", "-w", "%{http_version} %{http_code}", "-d", "{}"]
        upgraded = subprocess.run([*command, f"http://{HOST}:{served.port}{INFER}"], capture_output=True, check=True)
        assert upgraded.stdout == b"1.1 400", "it asks for an upgrade, and goes on without"


def test_refusals_arrive(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"{'a' * 64}\n")
    with Served(tmp_path, settings=['server.tokens="tokens"', "server.max_body=20000B", HTTP2]) as served:
        for body in (json.dumps(GOOD).encode(), b" " * 500_000):
            assert asked(served.port, "/nowhere", body) == ["0 404"] * TIMES
            assert asked(served.port, "/metrics", body) == ["0 405"] * TIMES
            assert asked(served.port, INFER, body) == ["0 401"] * TIMES
        assert "every process on this machine may load and unload models" in served.log


def test_what_is_refused_after_its_body_was_read_arrives_too(tmp_path: Path) -> None:
    with Served(tmp_path, settings=["server.max_body=20000B", HTTP2]) as served:
        assert asked(served.port, INFER, b"{}") == ["0 400"] * TIMES
        assert asked(served.port, INFER, b" " * 500_000) == ["0 413"] * TIMES
