"""A request that is refused before its body is read gets its reply over HTTP/2, too."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.app_kit import GOOD, INFER
from tests.integration.serving import HOST, Served

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]
TIMES = 20


def asked(port: int, path: str, body: bytes) -> list[str]:
    """Post often; return what curl says of each: exit code and status."""
    command = ["curl", "-s", "--http2-prior-knowledge", "-o", "/dev/null", "-w", "%{exitcode} %{http_code}"]
    command += ["--max-time", "20", "--data-binary", "@-", f"http://{HOST}:{port}{path}"]
    runs = [subprocess.run(command, input=body, capture_output=True, check=False) for _ in range(TIMES)]
    return [run.stdout.decode() for run in runs]


def test_refusals_arrive(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"{'a' * 64}\n")
    with Served(tmp_path, settings=['server.tokens="tokens"', "server.max_body=20000B"]) as served:
        for body in (json.dumps(GOOD).encode(), b" " * 500_000):
            assert asked(served.port, "/nowhere", body) == ["0 404"] * TIMES
            assert asked(served.port, "/metrics", body) == ["0 405"] * TIMES
            assert asked(served.port, INFER, body) == ["0 401"] * TIMES


def test_what_is_refused_after_its_body_was_read_arrives_too(tmp_path: Path) -> None:
    with Served(tmp_path, settings=["server.max_body=20000B"]) as served:
        assert asked(served.port, INFER, b"{}") == ["0 400"] * TIMES
        assert asked(served.port, INFER, b" " * 500_000) == ["0 413"] * TIMES
