"""``tailcut serve`` over sockets: requests, limits, and clients that misbehave."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.app_kit import FEATURES, GOOD, INFER, samples
from tests.integration.serving import Served, Wire, as_bytes, connected

pytestmark = pytest.mark.integration

LIMIT = 1_000_000
SLOW = """
def values(keys, context):
    if any(key[0] == 7 for key in keys):
        open(GATE).read()  # a pipe: waits until the test opens its other end
    return [{"value": 10.0 * key[0]} for key in keys]
"""


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gate") / "pipe"
    os.mkfifo(path)
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, gate: Path) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("serve")
    settings = [f"server.max_body={LIMIT}B", "slo.timeout=20s", "features.timeout=20s", "server.kill=30s"]
    more = FEATURES.replace("app_hooks:values", "slow_hooks:values")
    (directory / "slow_hooks.py").write_text(f"GATE = {str(gate)!r}\n{SLOW}")
    with Served(directory, more, settings) as served:
        yield served


def test_inference_prediction_and_metadata(server: Served) -> None:
    status, headers, body = server.request("POST", INFER, GOOD)
    assert status == 200
    assert json.loads(body)["outputs"][0]["data"] == [3.0, 7.0]
    assert headers["x-tailcut-variant"] == "source"
    assert "infer;dur=" in headers["server-timing"]
    assert headers["content-length"] == str(len(body))
    assert "connection" not in headers
    assert server.post("/predict/m", {"rows": [{"id": 1, "value": 2}]})[1]["predictions"][0]["y"] == 3.0
    assert server.post("/predict/m", {"entities": [1]})[1]["predictions"][0]["y"] == 11.0
    assert server.get("/v2/models/m")[1]["versions"] == ["source"]
    assert server.get("/openapi.json")[1]["openapi"].startswith("3.1")
    assert server.request("HEAD", "/v2")[0] == 200
    assert "is ready on" in server.log


def test_one_connection_survives_wrong_requests_and_pipelining(server: Served) -> None:
    async def main() -> None:
        async with connected(server.port) as wire:
            for raw, status in (
                (as_bytes(), 200),
                (as_bytes(b"{"), 400),
                (as_bytes(b"\xff"), 400),
                (as_bytes(b'{"inputs":' + b"[" * 100_000), 400),
                (as_bytes(path="/nothing"), 404),
                (as_bytes(path="/predict/other"), 404),
                (as_bytes(path="/metrics"), 405),
                (as_bytes(headers="x-tailcut-timeout-ms: soon\r\n"), 400),
                (as_bytes(headers="x-tailcut-timeout-ms: 0.001\r\n"), 504),
                (as_bytes(), 200),
            ):
                got, _, body = await wire.ask(raw)
                assert got == status, body
                if status != 200:
                    assert json.loads(body).keys() == {"error", "code", "hint"}
            wire.writer.write(as_bytes() + as_bytes(b"{") + as_bytes())
            assert [(await wire.reply())[0] for _ in range(3)] == [200, 400, 200]

    asyncio.run(main())


@pytest.mark.parametrize("header", ["traceparent", "x-tailcut-timeout-ms"])
def test_headers_that_are_no_text_are_no_crash(server: Served, header: str) -> None:
    async def main() -> None:
        async with connected(server.port) as wire:
            raw = as_bytes(headers="H: V\r\n").replace(b"H: V", header.encode() + b": \xff\xfe")
            status, _, body = await wire.ask(raw)
            assert status in {200, 400}, body
            assert (await wire.ask(as_bytes()))[0] == 200

    asyncio.run(main())


def test_a_tenant_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    async def main(port: int) -> None:
        async with connected(port) as wire:
            two = b"x-tenant: a\r\nx-tenant: b\r\n"
            for header, status in ((b"", 400), (b"x-tenant: \xff\xfe\r\n", 400), (two, 400), (b"x-tenant: a\r\n", 200)):
                raw = as_bytes(headers="H: V\r\n").replace(b"H: V\r\n", header)
                assert (await wire.ask(raw))[0] == status

    with Served(tmp_path, "", ['server.tenant_header="x-tenant"']) as served:
        asyncio.run(main(served.port))


def test_a_body_that_never_comes_is_a_408_and_the_connection_closes(server: Served) -> None:
    async def main() -> None:
        for head in ("content-length: 1000", "transfer-encoding: chunked"):
            async with connected(server.port) as wire:
                raw = f"POST {INFER} HTTP/1.1\r\nhost: h\r\nx-tailcut-timeout-ms: 1\r\n{head}\r\n\r\n"
                status, headers, body = await wire.ask(raw.encode())
                assert (status, json.loads(body)["code"]) == (408, "request_timeout")
                assert headers["connection"] == "close"
        assert samples(server.metrics(), "tailcut_in_flight") == {(): 0}
        assert server.post(INFER)[0] == 200

    asyncio.run(main())


def test_a_declared_body_over_the_limit_is_refused_before_it_is_sent(server: Served) -> None:
    async def main() -> None:
        async with connected(server.port) as wire:
            wire.writer.write(f"POST {INFER} HTTP/1.1\r\nhost: h\r\ncontent-length: 200000000\r\n\r\n".encode())
            status, _, body = await wire.reply()
            assert (status, json.loads(body)["code"]) == (413, "too_large")
            assert "200000000 bytes" in json.loads(body)["error"]

    asyncio.run(main())


def test_a_client_that_waits_for_continue_is_told_the_limit_instead(server: Served) -> None:
    async def main() -> None:
        async with connected(server.port) as wire:
            head = f"POST {INFER} HTTP/1.1\r\nhost: h\r\ncontent-length: 200000000\r\nexpect: 100-continue\r\n\r\n"
            wire.writer.write(head.encode())
            assert (await wire.reply())[0] == 413

    asyncio.run(main())


def test_an_undeclared_body_over_the_limit_is_refused_before_it_is_buffered(server: Served) -> None:
    async def main() -> None:
        before_bytes = server.worker_rss_bytes
        async with connected(server.port) as wire:
            wire.writer.write(f"POST {INFER} HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n".encode())
            chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
            reply = asyncio.create_task(wire.reply())
            sent = 0
            while not reply.done() and sent < 200_000_000:
                try:
                    wire.writer.write(chunk)
                    await wire.writer.drain()
                except ConnectionError:
                    break
                sent += 65536
                await asyncio.sleep(0.001)  # a pace at which the reply is read before the connection breaks
            status, _, body = await reply
            assert (status, json.loads(body)["code"]) == (413, "too_large")
            assert sent < 50_000_000
            assert server.worker_rss_bytes - before_bytes < 50_000_000

    asyncio.run(main())
    assert server.post(INFER)[0] == 200


def gone(server: Served) -> float:
    return sum(
        count
        for labels, count in samples(server.metrics(), "tailcut_requests_total").items()
        if "client_gone" in labels
    )


def test_clients_that_leave_while_they_wait_are_counted_and_others_are_served(server: Served, gate: Path) -> None:
    async def main() -> None:
        before = gone(server)
        leaving = [await Wire.open(server.port) for _ in range(5)]
        for wire in leaving:
            wire.writer.write(as_bytes({"entities": [7]}, "/predict/m"))
        await asyncio.to_thread(
            server.wait_until, lambda: samples(server.metrics(), "tailcut_in_flight") == {(): len(leaving)}
        )
        for wire in leaving:
            await wire.close()
        assert server.post("/predict/m", {"entities": [2]})[0] == 200
        await asyncio.to_thread(server.wait_until, lambda: gone(server) == before + len(leaving))
        assert samples(server.metrics(), "tailcut_in_flight") == {(): 0}
        gate.open("w").close()
        assert server.post("/predict/m", {"entities": [8]})[0] == 200

    asyncio.run(main())


def test_a_client_that_leaves_in_the_middle_of_its_body_is_counted(server: Served) -> None:
    async def main() -> None:
        before = gone(server)
        for head in ("content-length: 1000", "transfer-encoding: chunked"):
            async with connected(server.port) as wire:
                wire.writer.write(f"POST {INFER} HTTP/1.1\r\nhost: h\r\n{head}\r\n\r\n10\r\n0123".encode())
                await asyncio.to_thread(
                    server.wait_until, lambda: samples(server.metrics(), "tailcut_in_flight") == {(): 1}
                )
            await asyncio.to_thread(
                server.wait_until, lambda: samples(server.metrics(), "tailcut_in_flight") == {(): 0}
            )
        assert gone(server) == before + 2
        assert "Traceback" not in server.log

    asyncio.run(main())


def test_large_bodies_come_one_after_the_other_on_one_connection(server: Served) -> None:
    """Larger than what is read ahead of who asks for them."""

    async def main() -> None:
        async with connected(server.port) as wire:
            for size in range(250_000, LIMIT, 50_000):
                body = json.dumps(GOOD).encode()
                assert (await wire.ask(as_bytes(b" " * (size - len(body)) + body)))[0] == 200

    asyncio.run(main())


def test_a_slow_body_arrives_whole(server: Served) -> None:
    async def main() -> None:
        async with connected(server.port) as wire:
            raw = as_bytes()
            wire.writer.write(raw[:-20])
            lag = "tailcut_loop_lag_seconds_count"
            ticks = samples(server.metrics(), lag)[()]
            await asyncio.to_thread(server.wait_until, lambda: samples(server.metrics(), lag)[()] >= ticks + 3)
            assert (await wire.ask(raw[-20:]))[0] == 200

    asyncio.run(main())


def test_many_connections_at_once_each_get_their_own_answer(server: Served) -> None:
    async def one(number: int) -> None:
        async with connected(server.port) as wire:
            for turn in range(20):
                value = float(number * 100 + turn)
                tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [value, 1]}
                status, _, body = await wire.ask(as_bytes({"id": str(value), "inputs": [tensor]}))
                reply = json.loads(body)
                assert (status, reply["id"], reply["outputs"][0]["data"]) == (200, str(value), [value + 1])

    async def main() -> None:
        await asyncio.gather(*[one(number) for number in range(12)])

    asyncio.run(main())


def test_metrics_count_what_was_sent(server: Served) -> None:
    key = ("infer", "source", "ok", "off")
    before = samples(server.metrics(), "tailcut_requests_total").get(key, 0)
    for _ in range(5):
        server.post(INFER)
    after = server.metrics()
    assert samples(after, "tailcut_requests_total")[key] == before + 5
    stages = samples(after, "tailcut_stage_seconds_count")
    assert stages[("encode",)] >= stages[("infer",)] > 0
    assert samples(after, "tailcut_ready") == {(): 1}
