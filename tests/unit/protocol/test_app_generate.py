"""generate and generate_stream without a socket: values in, values or events out, and one end per request."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.app_kit import PATIENT, Client, counters, deployment, running, until_metric

from tailcut.common.tensors import Arrays
from tailcut.errors import Shed
from tailcut.models import variant_loader
from tailcut.pipeline.pipeline import Pipeline
from tailcut.pipeline.streaming import MAX_STREAMS
from tailcut.testing.runtimes import CallableRuntime
from tailcut.transport import asgi
from tailcut.transport.asgi import ASGIApplication

GENERATE = "/v2/models/m/generate"
STREAM = "/v2/models/m/generate_stream"
Test = Callable[[Client], Awaitable[None]]


def parts(inputs: Arrays) -> Iterator[Arrays]:
    """Three parts, each of one more times the first value."""
    first = inputs["x"][:, :1]
    for n in range(1, 4):
        yield {"y": n * first[:, 0], "z": np.concatenate([n * first, first], axis=1)}


def serve(directory: Path, test: Test, *overrides: str) -> None:
    async def main() -> None:
        async with running(deployment(directory, overrides=overrides)) as client:
            await test(client)
            assert client.app.engine.in_flight == {}

    asyncio.run(main())


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Callable[..., CallableRuntime]:
    """Let every deployment of the test run a stream."""

    def use(stream: Callable[[Arrays], Iterator[Arrays]] = parts) -> CallableRuntime:
        runtime = CallableRuntime(stream, lambda inputs: {"y": inputs["x"][:, 0], "z": inputs["x"]})
        monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: runtime)
        return runtime

    return use


class Stream:
    """One streamed request over ASGI, event by event."""

    def __init__(self, app: ASGIApplication, body: Any, headers: dict[str, str] | None = None) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.events: list[Any] = []
        self.arrived = asyncio.Condition()
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._inbox.put_nowait({"type": "http.request", "body": json.dumps(body).encode()})
        raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        scope = {"type": "http", "method": "POST", "path": STREAM, "headers": raw}
        self.task = asyncio.ensure_future(app(scope, self._inbox.get, self._send))

    async def _send(self, message: Any) -> None:
        async with self.arrived:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            elif message["body"]:
                assert message["body"].startswith(b"data: ")
                assert message["body"].endswith(b"\n\n")
                self.events.append(json.loads(message["body"][6:]))
            self.arrived.notify_all()

    async def wait_events(self, count: int) -> None:
        async with asyncio.timeout(20), self.arrived:
            await self.arrived.wait_for(lambda: len(self.events) >= count)

    async def end(self) -> list[Any]:
        async with asyncio.timeout(20):
            await self.task
        return self.events

    def leave(self) -> None:
        self._inbox.put_nowait({"type": "http.disconnect"})


def test_generate_answers_with_values(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        for body in ({"x": [1, 2], "id": "a"}, {"id": "a", "parameters": {"x": [1, 2], "timeout": 1_000_000}}):
            answer = await client.post(GENERATE, body)
            assert answer.status == 200, answer.body
            assert answer.json == {
                "model_name": "m",
                "model_version": "source",
                "id": "a",
                "y": 3.0,
                "z": [2.0, 4.0],
            }
            assert answer.stages_ms["total"] > 0
        versioned = await client.post("/v2/models/m/versions/source/generate", {"x": [1, 2]})
        assert versioned.json["y"] == 3.0
        assert (await client.post("/v2/models/m/versions/9/generate", {"x": [1, 2]})).status == 404

    serve(tmp_path, test)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not a generate request"),
        (b"[]", "not a generate request"),
        ({}, "input 'x' is missing"),
        ({"x": 1}, "has shape [1, 1], expected [-1, 2]"),
        ({"x": [1, "2"]}, "holds '2'"),
        ({"x": [[1, 2]]}, "input 'x'"),
        ({"x": None}, "input 'x'"),
        ({"x": [1, 2], "y": 1}, "input 'y' is unknown"),
        ({"x": [1, 2], "parameters": 1}, "parameters is 1"),
        ({"x": [1, 2], "parameters": {"timeout": "1"}}, "parameter timeout"),
    ],
)
def test_values_that_do_not_fit_are_refused(
    tmp_path: Path, streams: Callable[..., CallableRuntime], body: Any, says: str
) -> None:
    streams()

    async def test(client: Client) -> None:
        for path in (GENERATE, STREAM):
            answer = await client.post(path, body)
            assert (answer.status, answer.json["code"]) == (400, "bad_request")
            assert says in answer.json["error"]
            assert answer.json["hint"]

    serve(tmp_path, test)


def test_a_model_that_does_not_stream_says_what_to_do(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        answer = await client.post(STREAM, {"x": [1, 2]})
        assert (answer.status, answer.json["code"]) == (400, "bad_request")
        assert "does not stream" in answer.json["error"]
        assert "generate" in answer.json["hint"]

    serve(tmp_path, test)


def test_a_stream_is_events_and_counted_once(tmp_path: Path, streams: Callable[..., CallableRuntime]) -> None:
    runtime = streams()

    async def test(client: Client) -> None:
        stream = Stream(client.app, {"x": [2, 7], "id": 5})
        events = await stream.end()
        assert stream.status == 200
        assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert stream.headers["x-tailcut-variant"] == "source"
        assert [event["y"] for event in events] == [2.0, 4.0, 6.0]
        assert events[0] == {
            "model_name": "m",
            "model_version": "source",
            "id": 5,
            "y": 2.0,
            "z": [2.0, 2.0],
        }
        assert runtime.ended.is_set()
        assert await counters(client, "tailcut_requests_total") == {("generate_stream", "source", "ok", "off"): 1}
        whole = await client.post(GENERATE, {"x": [2, 7]})
        assert whole.json["z"] == [2.0, 7.0]

    serve(tmp_path, test)


def test_infinity_and_nan_are_told_apart_in_events(tmp_path: Path, streams: Callable[..., CallableRuntime]) -> None:
    def odd(inputs: Arrays) -> Iterator[Arrays]:
        yield {"y": np.array([np.inf], np.float32), "z": np.array([[np.nan, -np.inf]], np.float32)}

    streams(odd)

    async def test(client: Client) -> None:
        (event,) = await Stream(client.app, {"x": [np.nan, np.inf], "id": np.inf}).end()
        assert (event["y"], event["z"], event["id"]) == (np.inf, [None, -np.inf], np.inf)

    allowed = [f"model.{each}.allow_nan=true" for each in ("inputs.x", "outputs.y", "outputs.z")]
    serve(tmp_path, test, *allowed)


def test_an_error_before_the_first_part_has_its_status(tmp_path: Path, streams: Callable[..., CallableRuntime]) -> None:
    def broken(inputs: Arrays) -> Iterator[Arrays]:
        raise RuntimeError("secret")
        yield {}

    streams(broken)

    async def test(client: Client) -> None:
        answer = await client.post(STREAM, {"x": [1, 2]})
        assert (answer.status, answer.json["code"]) == (500, "inference_failed")
        assert "secret" not in answer.body.decode()

    serve(tmp_path, test)


def test_an_error_in_the_middle_is_the_last_event(tmp_path: Path, streams: Callable[..., CallableRuntime]) -> None:
    def breaks(inputs: Arrays) -> Iterator[Arrays]:
        yield next(parts(inputs))
        raise RuntimeError("secret")

    streams(breaks)

    async def test(client: Client) -> None:
        good, error = await Stream(client.app, {"x": [1, 2]}).end()
        assert good["y"] == 1.0
        assert error["code"] == "inference_failed"
        assert error["incident"]
        assert "secret" not in str(error)
        counted = await counters(client, "tailcut_requests_total")
        assert counted == {("generate_stream", "source", "inference_failed", "off"): 1}

    serve(tmp_path, test)


def test_a_stream_without_an_end_ends_at_its_limit(tmp_path: Path, streams: Callable[..., CallableRuntime]) -> None:
    def endless(inputs: Arrays) -> Iterator[Arrays]:
        while True:
            yield from parts(inputs)

    streams(endless)

    async def test(client: Client) -> None:
        *some, last = await Stream(client.app, {"x": [1, 2]}).end()
        assert 50 < len(some) < 500
        assert (last["code"], last["error"]) == ("too_large", "the answer is over the limit of 10000 bytes of a stream")
        assert "server.max_stream" in last["hint"]

    serve(tmp_path, test, "server.max_stream=10000")


def test_a_client_that_leaves_ends_its_stream(tmp_path: Path, streams: Callable[..., CallableRuntime]) -> None:
    gate = threading.Event()

    def one_then_wait(inputs: Arrays) -> Iterator[Arrays]:
        yield next(parts(inputs))
        gate.wait(20)
        yield next(parts(inputs))

    runtime = streams(one_then_wait)

    async def test(client: Client) -> None:
        stream = Stream(client.app, {"x": [1, 2]}, {"x-tailcut-timeout-ms": "20000"})
        await stream.wait_events(1)
        stream.leave()
        await stream.end()
        gate.set()
        assert await asyncio.to_thread(runtime.ended.wait, 20)
        assert len(stream.events) == 1
        counted = await counters(client, "tailcut_requests_total")
        assert counted == {("generate_stream", "source", "client_gone", "off"): 1}

    serve(tmp_path, test)


def test_a_stream_ends_at_its_deadline(tmp_path: Path, streams: Callable[..., CallableRuntime]) -> None:
    gate = threading.Event()

    def one_then_wait(inputs: Arrays) -> Iterator[Arrays]:
        yield next(parts(inputs))
        gate.wait(20)

    runtime = streams(one_then_wait)

    async def test(client: Client) -> None:
        stream = Stream(client.app, {"x": [1, 2]}, {"x-tailcut-timeout-ms": "200"})
        good, error = await stream.end()
        assert (good["y"], error["code"]) == (1.0, "infer_timeout")
        gate.set()
        assert await asyncio.to_thread(runtime.ended.wait, 20)

    serve(tmp_path, test)


def test_a_stream_waits_for_a_slow_client(tmp_path: Path, streams: Callable[..., CallableRuntime]) -> None:
    made = 0

    def counting(inputs: Arrays) -> Iterator[Arrays]:
        nonlocal made
        for _ in range(200):
            made += 1
            yield next(parts(inputs))

    runtime = streams(counting)

    async def test(client: Client) -> None:
        engine = client.app.engine
        call = engine.begin("test", 0)
        call.deadline_ns = 2**62
        stream = engine.streams.run(call, runtime, {"x": np.ones((1, 2), np.float32)}, ("y", "z"))
        await anext(stream)
        assert not await asyncio.to_thread(runtime.ended.wait, 0.2)
        assert made < 50
        assert len([part async for part in stream]) == 199
        engine.end(call, "ok")

    serve(tmp_path, test)


def test_one_stream_too_many_is_shed(tmp_path: Path, streams: Callable[..., CallableRuntime]) -> None:
    gate = threading.Event()

    def waits(inputs: Arrays) -> Iterator[Arrays]:
        yield next(parts(inputs))
        gate.wait(20)

    streams(waits)

    async def test(client: Client) -> None:
        open_ = [Stream(client.app, {"x": [1, 2]}, {"x-tailcut-timeout-ms": "20000"}) for _ in range(MAX_STREAMS)]
        for each in open_:
            await each.wait_events(1)
        shed = await client.post(STREAM, {"x": [1, 2]})
        assert (shed.status, shed.json["code"]) == (429, "shed")
        assert shed.headers["retry-after"]
        gate.set()
        await asyncio.gather(*(each.end() for each in open_))
        assert len(await Stream(client.app, {"x": [1, 2]}).end()) == 1

    serve(tmp_path, test, *PATIENT)


def test_while_the_only_executor_is_replaced_a_stream_is_told_when_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = {"x-tailcut-timeout-ms": "20000"}
    hangs, ends, may_open = threading.Event(), threading.Event(), threading.Event()
    may_open.set()

    def answer(inputs: Arrays) -> Arrays:
        if inputs["x"][0, 0] == 9:
            hangs.set()
            ends.wait(20)
        return {"y": inputs["x"][:, 0], "z": inputs["x"]}

    def opened(*_: Any, **__: Any) -> CallableRuntime:
        assert may_open.wait(20)
        return CallableRuntime(parts, answer)

    async def test(client: Client) -> None:
        may_open.clear()
        hung = asyncio.create_task(client.post(GENERATE, {"x": [9, 2]}, patient))
        assert await asyncio.to_thread(hangs.wait, 20)
        await until_metric(client, "tailcut_executors", 0)
        refused = await client.post(STREAM, {"x": [1, 2]}, patient)
        assert (refused.status, refused.json["code"]) == (503, "not_ready")
        assert int(refused.headers["retry-after"]) >= 1
        assert "model_transaction_policy" in (await client.get("/v2/models/m/config")).json
        may_open.set()
        ends.set()
        await hung
        await until_metric(client, "tailcut_executors", 1)
        assert len(await Stream(client.app, {"x": [1, 2]}, patient).end()) == 3

    monkeypatch.setattr(variant_loader, "open_runtime", opened)
    serve(tmp_path, test, 'pool={executor="thread", executors=1}', "slo.timeout=200ms")


def test_a_stream_whose_client_does_not_read_ends_at_its_deadline(
    tmp_path: Path, streams: Callable[..., CallableRuntime], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's ``send`` waits while the socket is full, for as long as it is."""
    monkeypatch.setattr(asgi, "_LAST_WORD_S", 0.0)
    ended = threading.Event()

    def endless(inputs: Arrays) -> Iterator[Arrays]:
        try:
            while True:
                yield {"y": inputs["x"][:, 0], "z": inputs["x"]}
        finally:
            ended.set()

    async def test(client: Client) -> None:
        inbox = [{"type": "http.request", "body": b'{"x": [1, 2]}', "more_body": False}]

        async def receive() -> Any:
            return inbox.pop() if inbox else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        headers = [(b"x-tailcut-timeout-ms", b"200")]
        scope = {"type": "http", "method": "POST", "path": STREAM, "headers": headers}
        async with asyncio.timeout(20):
            await client.app(scope, receive, send)
        assert await asyncio.to_thread(ended.wait, 20)
        counted = await counters(client, "tailcut_requests_total")
        assert [(key[0], "client_gone" in key, count) for key, count in counted.items()] == [
            ("generate_stream", True, 1)
        ]

    streams(endless)
    serve(tmp_path, test)


def test_a_stream_is_logged_when_it_ends_and_always_where_it_failed(
    tmp_path: Path, streams: Callable[..., CallableRuntime]
) -> None:
    def breaks_for_9(inputs: Arrays) -> Iterator[Arrays]:
        yield from parts(inputs)
        if inputs["x"][0, 1] == 9:
            raise RuntimeError("secret")

    streams(breaks_for_9)
    seen: list[list[Any]] = []

    async def test(client: Client) -> None:
        seen.extend([await Stream(client.app, {"x": [1, last]}).end() for last in (2, 9)])

    log = 'server.access_log="access.log"'
    for share in ("0.0", "1.0"):
        serve(tmp_path, test, log, f"server.access_log_share={share}")
    failed, fine, again = (json.loads(line) for line in (tmp_path / "access.log").read_text().splitlines())
    assert (failed["path"], failed["status"], failed["variant"]) == (STREAM, 200, "source")
    assert failed["error"] == {"code": "inference_failed", "incident": seen[1][-1]["incident"]}
    assert "error" not in fine
    assert fine["bytes"] == sum(len(f"data: {json.dumps(event, separators=(',', ':'))}\n\n") for event in seen[2])
    assert again["error"]["code"] == "inference_failed"


def test_a_stream_whose_client_leaves_is_logged_as_such(
    tmp_path: Path, streams: Callable[..., CallableRuntime]
) -> None:
    gate = threading.Event()

    def one_then_wait(inputs: Arrays) -> Iterator[Arrays]:
        yield next(parts(inputs))
        gate.wait(20)

    streams(one_then_wait)

    async def test(client: Client) -> None:
        stream = Stream(client.app, {"x": [1, 2]}, {"x-tailcut-timeout-ms": "20000"})
        await stream.wait_events(1)
        stream.leave()
        await stream.end()
        gate.set()

    serve(tmp_path, test, 'server.access_log="access.log"', "server.access_log_share=0.0")
    (line,) = (json.loads(line) for line in (tmp_path / "access.log").read_text().splitlines())
    assert line["error"] == {"code": "client_gone"}


def test_once_a_body_brought_a_timeout_nobody_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(client: Client) -> None:
        monkeypatch.setattr(Pipeline, "refused_unread", lambda *_: Shed("unread", hint="", retry_after_s=1.0))
        assert (await client.post(GENERATE, {"x": [1, 2]})).status == 429
        monkeypatch.undo()
        assert (await client.post(GENERATE, {"x": [1, 2], "parameters": {"timeout": 400_000}})).status == 200
        monkeypatch.setattr(Pipeline, "refused_unread", lambda *_: Shed("unread", hint="", retry_after_s=1.0))
        assert (await client.post(GENERATE, {"x": [1, 2]})).status == 200

    serve(tmp_path, test)
