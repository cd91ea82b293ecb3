"""Whatever is sent, a real server answers in time, never with a bug of its own, and serves the next request."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.app_kit import FEATURES, GOOD, INFER
from tests.integration.faults.kit import open_files
from tests.integration.serving import HOST, Served

schemathesis = pytest.importorskip("schemathesis")

from schemathesis import GenerationMode  # noqa: E402  # only where there is one
from schemathesis.specs.openapi import checks  # noqa: E402

pytestmark = [
    pytest.mark.integration,
    # Those of the libraries that fuzz.
    pytest.mark.filterwarnings("ignore"),
]

TIMEOUT_S = 10.0
HOOKS = """
def values(keys, context):
    known = [isinstance(key[0], (int, float)) and -1e6 < key[0] < 100 for key in keys]
    return [{"value": 10.0 * key[0]} if one else None for key, one in zip(keys, known)]
"""
"""Knows no entity by a text or by a number without bounds, which requests that are drawn at random may name."""
SETTINGS = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), database=None)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    more = ("server.max_body=100KiB", 'slo.timeout="2s"', 'server.cors_origins=["https://a.example"]')
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "fuzz_hooks.py").write_text(HOOKS)
    with Served(folder, FEATURES.replace("app_hooks", "fuzz_hooks"), settings=more) as found:
        for size in (100, 100_000) * 100:  # buffers have their size
            send(found, INFER, b" " * size, {})
        files, rss_bytes = open_files(found), found.worker_rss_bytes
        yield found
        assert open_files(found) <= files + 2, "what was sent holds no file"
        assert found.worker_rss_bytes < 1.2 * rss_bytes, "nor memory"


@pytest.fixture(autouse=True)
def still_serving(server: Served) -> Iterator[None]:
    """After each test: it serves, has nothing left in flight, and has met no bug."""
    yield
    server.post("/v2/repository/models/m/load", {})
    status, reply = server.post(INFER, GOOD)
    assert (status, reply["outputs"][0]["data"]) == (200, [3.0, 7.0])
    assert 'tailcut_in_flight{model="m"} 0.0' in server.metrics()
    assert "Traceback" not in server.log
    assert "a bug in tailcut" not in server.log


def send(server: Served, path: str, body: bytes, headers: dict[str, str]) -> int:
    """POST on a connection of its own; the status."""
    connection = http.client.HTTPConnection(HOST, server.port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", path, body, headers)
        reply = connection.getresponse()
        raw = reply.read()
        if reply.status != 200:
            said = json.loads(raw)
            assert {"error", "code", "hint"} <= said.keys()
        return reply.status
    finally:
        connection.close()


REFUSED = {200, 400, 404, 413, 415}

HEAD = {
    "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}],
    "parameters": {"binary_data_output": True},
}
RAW = json.dumps(HEAD).encode() + np.ones((1, 2), "<f4").tobytes()
lengths = st.integers(-5, 400).map(str) | st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12)


@SETTINGS
@given(body=st.binary(max_size=300), length=lengths, path=st.sampled_from([INFER, "/v2/models/m/generate_stream"]))
def test_any_bytes_as_a_binary_request(server: Served, body: bytes, length: str, path: str) -> None:
    assert send(server, path, body, {"inference-header-content-length": length}) in REFUSED


@SETTINGS
@given(
    cut=st.integers(0, len(RAW)),
    put=st.binary(max_size=20),
    over=st.integers(0, 20),
    length=st.integers(0, len(RAW) + 30),
)
def test_a_binary_request_that_is_damaged(server: Served, cut: int, put: bytes, over: int, length: int) -> None:
    body = RAW[:cut] + put + RAW[cut + over :]
    assert send(server, INFER, body, {"inference-header-content-length": str(length)}) in REFUSED


GOOD_RAW = json.dumps(GOOD).encode()


@SETTINGS
@given(
    cut=st.integers(0, len(GOOD_RAW)),
    put=st.binary(max_size=20) | st.text(max_size=8).map(str.encode),
    over=st.integers(0, 20),
    path=st.sampled_from(
        [INFER, "/predict/m", "/v2/models/m/generate", "/v2/repository/index", "/v2/repository/models/m/load"]
    ),
    encoding=st.sampled_from([None, "gzip", "deflate", "identity", "br"]),
)
def test_json_that_is_damaged(server: Served, cut: int, put: bytes, over: int, path: str, encoding: str | None) -> None:
    body = GOOD_RAW[:cut] + put + GOOD_RAW[cut + over :]
    assert send(server, path, body, {} if encoding is None else {"content-encoding": encoding}) in REFUSED


printable = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=60)


@SETTINGS
@given(
    values=st.dictionaries(
        st.sampled_from(
            ["x-tailcut-timeout-ms", "traceparent", "authorization", "content-encoding", "origin", "accept-encoding"]
        ),
        printable,
    )
)
def test_any_headers(server: Served, values: dict[str, str]) -> None:
    assert send(server, INFER, GOOD_RAW, values) in {*REFUSED, 504}


@SETTINGS
@given(path=printable, method=st.sampled_from(["GET", "POST", "PUT", "OPTIONS", "HEAD", "PATCH"]))
def test_any_path(server: Served, path: str, method: str) -> None:
    connection = http.client.HTTPConnection(HOST, server.port, timeout=TIMEOUT_S)
    try:
        connection.request(method, "/" + path.replace("#", "%23"), b"")
        assert connection.getresponse().status < 500
    finally:
        connection.close()


@SETTINGS
@given(raw=st.binary(min_size=1, max_size=200))
def test_bytes_that_are_no_http(server: Served, raw: bytes) -> None:
    """The connection is answered or closed; nobody waits for more than the client has to say."""
    with socket.create_connection((HOST, server.port), timeout=TIMEOUT_S) as connection:
        try:
            connection.sendall(raw)
            with suppress(OSError):  # the server may have closed already
                connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
        except ConnectionError:
            return


# -- Our own OpenAPI -----------------------------------------------------------------------------------------------


CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
MEANT = {503, 504}
"""Unloaded as it was told to be, or later than the client itself has allowed."""
OVERFLOW = "the model returned NaN or infinity"
"""To numbers that are finite, but so large that the model's own arithmetic overflows: it says so, and why."""


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_requests_that_the_description_allows_and_forbids(server: Served, mode: GenerationMode) -> None:
    """Statuses, content types and bodies are those of the description; none says that the server has failed."""
    url = f"http://{HOST}:{server.port}"
    operations = [found.ok() for found in schemathesis.openapi.from_url(f"{url}/openapi.json").get_all_operations()]
    assert len(operations) >= 20
    for operation in operations:
        if mode is GenerationMode.NEGATIVE and not operation.body:
            continue  # what takes nothing has nothing that could be wrong

        @settings(SETTINGS, max_examples=8)
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Any) -> None:
            response = case.call(timeout=TIMEOUT_S)
            overflow = response.status_code == 500 and OVERFLOW in response.text
            assert response.status_code < 500 or response.status_code in MEANT or overflow, response.text
            case.validate_response(response, checks=CHECKS)

        ask()
