"""The HTTP interface without a socket: wrong requests and faults end clearly, and the next request is served."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from tests.app_kit import FEATURES, GOOD, INFER, PATIENT, Answer, Client, counters, deployment, running
from tests.wait_kit import until

from tailcut.models import variant_loader
from tailcut.pipeline.pipeline import Pipeline
from tailcut.testing.runtimes import FaultyRuntime, StubRuntime

Test = Callable[[Client], Awaitable[None]]
ROW = {"id": 1, "value": 1}


def tensor(**changes: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2], **changes}]}


def serve(test: Test, directory: Path, more: str = "", *overrides: str) -> None:
    async def main() -> None:
        async with running(deployment(directory, more, overrides)) as client:
            await test(client)

    asyncio.run(main())


def check(answer: Answer, status: int, code: str, says: str) -> None:
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/json"
    assert answer.json.keys() - {"incident"} == {"error", "code", "hint"}
    assert answer.json["code"] == code
    assert re.search(says, answer.json["error"]), answer.json["error"]
    assert answer.json["hint"]


WRONG: list[tuple[str, str, Any, dict[str, str], int, str, str]] = [
    ("POST", INFER, b"", {}, 400, "bad_request", "not an inference request: it is empty"),
    ("POST", INFER, b"{", {}, 400, "bad_request", "not an inference request"),
    ("POST", INFER, b"\xff", {}, 400, "bad_request", "malformed"),
    ("POST", INFER, b'{"id": "\xff", "inputs": []}', {}, 400, "bad_request", "utf-8"),
    ("POST", INFER, b'{"inputs": ' + b"[" * 100_000, {}, 400, "bad_request", "not an inference request"),
    ("POST", INFER, tensor(datatype="INT64"), {}, 400, "bad_request", "input 'x' has datatype 'INT64'"),
    ("POST", INFER, tensor(shape=[2]), {}, 400, "bad_request", r"input 'x' has shape \[2\]"),
    ("POST", INFER, tensor(shape=[0, 2], data=[]), {}, 400, "bad_request", "input 'x' has shape"),
    ("POST", INFER, tensor(data=[1]), {}, 400, "bad_request", "input 'x' has 1 values"),
    ("POST", INFER, tensor(data=[[1, 2], [3]]), {}, 400, "bad_request", "input 'x'"),
    ("POST", INFER, tensor(data=[1, None]), {}, 400, "bad_request", "input 'x' holds NaN"),
    ("POST", INFER, tensor(data=[1, 1e39]), {}, 400, "bad_request", "input 'x' holds a value that FP32 cannot"),
    ("POST", INFER, tensor(data=[1, nan]), {}, 400, "bad_request", "input 'x' holds NaN"),
    ("POST", INFER, tensor(data=[1, inf]), {}, 400, "bad_request", "input 'x' holds infinity"),
    ("POST", INFER, b'{"inputs":[{"name":"x","data":[NaN]}]}', {}, 400, "bad_request", "missing required field"),
    ("POST", INFER, b'{"inputs":[{"name":"x","data":[NaN,]}]}', {}, 400, "bad_request", r"char 3\d\)"),
    ("POST", INFER, b'{"inputs":[NaN' + b"[" * 100_000, {}, 400, "bad_request", "not an inference request"),
    ("POST", INFER, tensor(name="w"), {}, 400, "bad_request", "input 'x' is missing; input 'w' is unknown"),
    ("POST", INFER, {"inputs": []}, {}, 400, "bad_request", "input 'x' is missing"),
    ("POST", INFER, {"inputs": GOOD["inputs"] * 2}, {}, 400, "bad_request", "input 'x' is given twice"),
    ("POST", INFER, {**GOOD, "outputs": [{"name": "q"}]}, {}, 400, "bad_request", "output 'q' is unknown"),
    ("POST", INFER, {**GOOD, "parameters": {"timeout": "1s"}}, {}, 400, "bad_request", "parameter timeout is '1s'"),
    ("POST", INFER, {**GOOD, "parameters": {"timeout": 1}}, {}, 504, "deadline_exceeded", "deadline passed"),
    ("POST", INFER, GOOD, {"x-tailcut-timeout-ms": "abc"}, 400, "bad_request", "x-tailcut-timeout-ms is 'abc'"),
    ("POST", INFER, GOOD, {"x-tailcut-timeout-ms": "0"}, 400, "bad_request", "x-tailcut-timeout-ms"),
    ("POST", INFER, GOOD, {"x-tailcut-timeout-ms": "-5"}, 400, "bad_request", "x-tailcut-timeout-ms"),
    ("POST", INFER, GOOD, {"x-tailcut-timeout-ms": "nan"}, 400, "bad_request", "x-tailcut-timeout-ms"),
    ("POST", INFER, GOOD, {"x-tailcut-timeout-ms": "inf"}, 400, "bad_request", "x-tailcut-timeout-ms"),
    ("POST", INFER, GOOD, {"x-tailcut-timeout-ms": "1e-9"}, 504, "deadline_exceeded", "deadline passed"),
    ("POST", INFER, GOOD, {"x-tailcut-timeout-ms": "0.001"}, 504, "deadline_exceeded", "deadline passed"),
    ("POST", INFER, GOOD, {"inference-header-content-length": "9"}, 400, "bad_request", "not an inference request"),
    ("POST", INFER, b"x" * 200_001, {}, 413, "too_large", "200001 bytes is over the limit of 200000"),
    ("POST", INFER, b"", {"content-length": "9" * 5000}, 413, "too_large", "over the limit"),
    ("POST", INFER, tensor(shape=[17, 2], data=[0] * 34), {}, 413, "too_large", "17 rows, the limit is 16"),
    ("GET", INFER, b"", {}, 405, "method_not_allowed", "takes POST, not GET"),
    ("POST", "/metrics", b"", {}, 405, "method_not_allowed", "takes GET, not POST"),
    ("PUT", "/predict/m", b"", {}, 405, "method_not_allowed", "takes POST, not PUT"),
    ("DELETE", "/v2", b"", {}, 405, "method_not_allowed", "takes GET, not DELETE"),
    ("POST", "/v2/models/other/infer", GOOD, {}, 404, "not_found", "model 'other' is unknown"),
    ("POST", "/v2/models/m/versions/9/infer", GOOD, {}, 404, "not_found", "no version '9'"),
    ("POST", "/v2/models/m/versions/source/nothing", GOOD, {}, 404, "not_found", "no such path"),
    ("POST", "/v2/models/other/versions/source/infer", GOOD, {}, 404, "not_found", "model 'other' is unknown"),
    ("POST", "/predict/other", {"rows": [ROW]}, {}, 404, "not_found", "model 'other' is unknown"),
    ("GET", "/v2/models", b"", {}, 404, "not_found", "no such path: /v2/models"),
    ("GET", "/predict", b"", {}, 404, "not_found", "no such path: /predict"),
    ("GET", "/", b"", {}, 404, "not_found", "no such path: /"),
    ("GET", "*", b"", {}, 404, "not_found", "no such path"),
    ("GET", "", b"", {}, 404, "not_found", "no such path"),
    ("GET", "/v2/", b"", {}, 404, "not_found", "no such path"),
    ("POST", "/predict/m", b"[]", {}, 400, "bad_request", "not a prediction request"),
    ("POST", "/predict/m", b'{"rows": "\xff"}', {}, 400, "bad_request", "not a prediction request"),
    ("POST", "/predict/m", b'{"rows": [{"a": ' + b"[" * 100_000, {}, 400, "bad_request", "not a prediction request"),
    ("POST", "/predict/m", {}, {}, 400, "bad_request", "either entities or rows"),
    ("POST", "/predict/m", {"rows": [ROW], "entities": [1]}, {}, 400, "bad_request", "either entities or rows"),
    ("POST", "/predict/m", {"rows": []}, {}, 400, "bad_request", "the list is empty"),
    ("POST", "/predict/m", {"entities": []}, {}, 400, "bad_request", "the list is empty"),
    ("POST", "/predict/m", {"rows": [ROW], "more": 1}, {}, 400, "bad_request", "unknown field `more`"),
    ("POST", "/predict/m", {"rows": [1]}, {}, 400, "bad_request", "not a prediction request"),
    ("POST", "/predict/m", {"rows": [{"id": 1}]}, {}, 400, "bad_request", "row 0: the field 'value' is missing"),
    ("POST", "/predict/m", {"rows": [{"id": 1, "value": "2"}]}, {}, 400, "bad_request", "input 'x' holds '2'"),
    ("POST", "/predict/m", {"rows": [{"id": 1, "value": None}]}, {}, 400, "bad_request", "input 'x' holds NaN"),
    ("POST", "/predict/m", {"rows": [{"id": 1, "value": [2]}]}, {}, 400, "bad_request", "rows cannot be turned"),
    ("POST", "/predict/m", {"rows": [ROW] * 17}, {}, 413, "too_large", "17 rows exceed"),
    ("POST", "/predict/m", {"entities": [100]}, {}, 404, "unknown_entity", "id=100"),
    ("POST", "/predict/m", {"entities": [{"key": 1}]}, {}, 400, "bad_request", "entit"),
    ("POST", "/predict/m", {"entities": [[1]]}, {}, 400, "bad_request", "entit"),
    ("POST", "/predict/m", {"entities": [None]}, {}, 400, "bad_request", "entit"),
    ("POST", "/predict/m", {"entities": [10**30]}, {}, 400, "bad_request", "entit"),
]


def test_wrong_requests_are_refused_and_the_next_one_is_served(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        for method, path, body, headers, status, code, says in WRONG:
            check(await client.request(method, path, body, headers), status, code, says)
            assert (await client.post(INFER, GOOD)).status == 200
        assert client.app.engine.in_flight == {}

    serve(test, tmp_path, FEATURES, "server.max_body=200000B")


def test_a_declared_body_over_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        connection = client.connect("POST", INFER, {"content-length": "1001"})
        check(await connection.answer(), 413, "too_large", "1001 bytes")
        assert connection.sent == 0

    serve(test, tmp_path, "", "server.max_body=1000B")


def test_an_undeclared_body_is_read_no_further_than_the_limit(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        connection = client.connect("POST", INFER)
        for _ in range(100):
            connection.send(b" " * 400, more=True)
        check(await connection.answer(), 413, "too_large", "more than 1000 bytes")
        assert connection.sent == 3

    serve(test, tmp_path, "", "server.max_body=1000B")


async def ticks(client: Client, count: int) -> None:
    """Wait until the engine has looked after its clients ``count`` times more."""
    lag = client.app.host.loop_lag
    wanted = lag.count + count
    await until(lambda: lag.count >= wanted)


def test_a_slow_body_arrives_whole(tmp_path: Path) -> None:
    """Watching for the end of the connection must not read the body away."""

    async def test(client: Client) -> None:
        connection = client.connect("POST", "/predict/m")
        connection.send(b'{"rows": [{"id": 1, ', more=True)
        answer = asyncio.create_task(connection.answer())
        await ticks(client, 3)
        connection.send(b'"value": 2}]}')
        assert (await answer).json["predictions"][0]["y"] == 3.0

    serve(test, tmp_path)


def test_a_client_that_leaves_in_the_middle_of_its_body_is_counted_as_gone(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        for headers in ({}, {"content-length": "100"}):
            connection = client.connect("POST", INFER, headers)
            connection.send(b'{"inputs": [', more=True)
            connection.disconnect()
            assert (await connection.answer()).status == 499
        assert await counters(client, "tailcut_requests_total") == {("infer", "source", "client_gone", "off"): 2}

    serve(test, tmp_path)


def test_a_body_that_does_not_arrive_is_a_408_and_its_request_ends(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        for headers in ({}, {"content-length": "100"}):
            connection = client.connect("POST", INFER, {"x-tailcut-timeout-ms": "1", **headers})
            connection.send(b'{"inputs": [', more=True)
            answer = await connection.answer()
            check(answer, 408, "request_timeout", "body was not complete after")
            assert answer.headers["connection"] == "close"
            assert answer.stages_ms["receive"] == answer.stages_ms["total"] >= 1
        assert await counters(client, "tailcut_requests_total") == {("infer", "source", "request_timeout", "off"): 2}
        assert await counters(client, "tailcut_in_flight") == {(): 0}

    serve(test, tmp_path)


@pytest.mark.parametrize("is_receiving", [True, False])
def test_a_handler_that_its_server_cancels_is_counted_as_a_client_that_left(
    tmp_path: Path, faulty: FaultyRuntime, is_receiving: bool
) -> None:
    async def test(client: Client) -> None:
        faulty.hang()
        connection = client.connect("POST", "/predict/m")
        connection.send(b'{"rows": [{"id": 1, "value": 2}]}', more=is_receiving)
        answer = asyncio.create_task(connection.answer())
        if is_receiving:
            await ticks(client, 1)
        else:
            await entered(faulty)
        answer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answer
        faulty.release()
        assert await counters(client, "tailcut_requests_total") == {("predict", "source", "client_gone", "off"): 1}

    serve(test, tmp_path, "", THREAD, *PATIENT)


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> FaultyRuntime:
    """The runtime that every deployment of the test gets."""
    runtime = FaultyRuntime(StubRuntime(lambda inputs: {"y": inputs["x"].sum(axis=1), "z": inputs["x"] * 2}))
    monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: runtime)
    return runtime


async def entered(runtime: FaultyRuntime) -> None:
    assert await asyncio.to_thread(runtime.entered.wait, 10)


THREAD = 'pool={executor="thread", executors=1}'


def test_a_client_that_leaves_while_the_model_runs_is_counted_and_its_neighbours_are_served(
    tmp_path: Path, faulty: FaultyRuntime
) -> None:
    async def test(client: Client) -> None:
        faulty.hang()
        leaves = client.connect("POST", INFER)
        leaves.send(b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,2]}]}')
        leaving = asyncio.create_task(leaves.answer())
        await entered(faulty)
        queued = client.connect("POST", INFER)
        queued.send(b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[5,6]}]}')
        queue_leaving = asyncio.create_task(queued.answer())
        stays = asyncio.create_task(client.post(INFER, GOOD))
        await ticks(client, 1)
        assert await counters(client, "tailcut_queue_rows") == {(): 3}
        leaves.disconnect()
        queued.disconnect()
        assert [answer.status for answer in await asyncio.gather(leaving, queue_leaving)] == [499, 499]
        assert await counters(client, "tailcut_queue_rows") == {(): 2}
        faulty.release()
        assert (await stays).json["outputs"][0]["data"] == [3.0, 7.0]
        assert await counters(client, "tailcut_requests_total") == {
            ("infer", "source", "client_gone", "off"): 2,
            ("infer", "source", "ok", "off"): 1,
        }
        assert await counters(client, "tailcut_in_flight") == {(): 0}

    serve(test, tmp_path, "", THREAD, *PATIENT)


def test_a_full_queue_is_a_429_that_says_when_to_come_back(tmp_path: Path, faulty: FaultyRuntime) -> None:
    async def test(client: Client) -> None:
        faulty.hang()
        first = asyncio.create_task(client.post(INFER, tensor()))
        await entered(faulty)
        waiting = [asyncio.create_task(client.post(INFER, GOOD)) for _ in range(8)]
        async with asyncio.timeout(30):
            while client.app.engine.pipeline.serving.dispatcher.scheduler.waiting.rows < 16:
                await asyncio.sleep(0)
        for path, body in ((INFER, tensor()), ("/predict/m", {"rows": [ROW]})):
            shed = await client.post(path, body)
            check(shed, 429, "shed", "16 rows, the limit is 16")
            assert int(shed.headers["retry-after"]) >= 1
        faulty.release()
        assert [answer.status for answer in await asyncio.gather(first, *waiting)] == [200] * 9

    serve(test, tmp_path, "", THREAD, *PATIENT)


async def until_ready(client: Client, status: int) -> None:
    """Wait until readiness has a status."""

    async def has_it() -> bool:
        return (await client.get("/v2/health/ready")).status == status

    await until(has_it)


def test_a_hanging_model_is_a_504_and_not_ready_until_another_executor_takes_its_place(
    tmp_path: Path, faulty: FaultyRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(client: Client) -> None:
        may_open = threading.Event()

        def another(*_: object, **__: object) -> StubRuntime:
            assert may_open.wait(30)
            return StubRuntime(lambda inputs: {"y": inputs["x"].sum(axis=1), "z": inputs["x"] * 2})

        monkeypatch.setattr(variant_loader, "open_runtime", another)
        faulty.hang()
        answer = await client.post(INFER, tensor(), {"x-tailcut-timeout-ms": "30"})
        check(answer, 504, "infer_timeout", "while the model was running")
        assert answer.stages_ms["infer"] >= 20
        await until_ready(client, 503)
        async with asyncio.timeout(30):
            while (refused := await client.post(INFER, tensor())).status == 504:
                continue  # it waited, because loading took less at the start than it had time
        check(refused, 503, "not_ready", "no executor is ready, the next is expected in")
        assert await counters(client, "tailcut_executors_hung") == {(): 1}
        may_open.set()
        await until_ready(client, 200)
        assert (await client.post(INFER, tensor())).status == 200
        faulty.release()

    serve(test, tmp_path, "", THREAD, 'slo.timeout="50ms"')


def test_a_failing_model_is_a_500_that_says_so(tmp_path: Path, faulty: FaultyRuntime) -> None:
    async def test(client: Client) -> None:
        faulty.fail(ValueError("bad kernel"))
        check(await client.post(INFER, tensor()), 500, "inference_failed", r"batch of 1 rows \(ValueError\)$")
        assert (await client.post(INFER, tensor())).status == 200

    serve(test, tmp_path, "", 'pool.executor="inline"')


def test_nan_in_an_output_is_an_error_unless_the_manifest_says_that_it_is_an_answer(tmp_path: Path) -> None:
    big = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [3e38, 3e38]}]}
    wanted = (INFER, big), ("/predict/m", {"rows": [{"id": 3e38, "value": 3e38}]})

    async def test(client: Client) -> None:
        for path, body in wanted:
            check(await client.post(path, body), 500, "inference_failed", "NaN or infinity in output 'y'")
            check(await client.post(path, body), 500, "inference_failed", "NaN or infinity in output 'y'")

    async def allowed(client: Client) -> None:
        assert (await client.post(INFER, big)).json["outputs"][0]["data"] == [inf]
        answer = await client.post(*wanted[1])
        assert answer.json["predictions"] == [{"y": inf, "z": [inf, inf]}]

    serve(test, tmp_path, "[cache.tensor]\nenabled = true")
    serve(allowed, tmp_path, "", "model.outputs.y.allow_nan=true", "model.outputs.z.allow_nan=true")


def test_a_model_that_keeps_failing_does_not_flood_the_log(
    tmp_path: Path, faulty: FaultyRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(client: Client) -> None:
        for _ in range(20):
            faulty.fail(ValueError("bad kernel"))
            assert (await client.post(INFER, tensor())).status == 500
        assert len([record for record in caplog.records if "bad kernel" in record.getMessage()]) == 1

    serve(test, tmp_path, "", 'pool.executor="inline"')


def test_text_of_the_client_comes_back_cut(tmp_path: Path) -> None:
    long = "a" * 100_000
    requests: list[tuple[str, str, Any]] = [
        ("GET", f"/{long}", b""),
        ("GET", f"/v2/models/{long}", b""),
        ("GET", f"/v2/models/m/versions/{long}", b""),
        (long, "/v2", b""),
        ("POST", INFER, tensor(name=long)),
        ("POST", INFER, tensor(shape=[1] * 10_000)),
        ("POST", INFER, tensor(datatype=long)),
        ("POST", "/predict/m", {long: 1}),
        ("POST", "/predict/m", {"rows": [{"id": long, "value": 1}]}),
    ]

    async def test(client: Client) -> None:
        for method, path, body in requests:
            answer = await client.request(method, path, body)
            assert answer.status in {400, 404, 405}
            assert len(answer.body) < 1000

    serve(test, tmp_path)


def test_another_method_is_told_which_ones_there_are(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        assert (await client.get(INFER)).headers["allow"] == "POST"
        assert (await client.post("/v2", b"")).headers["allow"] == "GET, HEAD"

    serve(test, tmp_path)


def test_an_unforeseen_exception_is_a_500_that_shows_no_internals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(client: Client) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Pipeline, "infer", lambda *_: 1 / 0)
            answer = await client.post(INFER, GOOD)
        check(answer, 500, "internal", "^unexpected ZeroDivisionError$")
        assert answer.json["incident"]
        assert {"x-request-id", "server-timing", "x-tailcut-variant"} <= answer.headers.keys()
        assert (await client.post(INFER, GOOD)).status == 200
        assert await counters(client, "tailcut_requests_total") == {
            ("infer", "source", "internal", "off"): 1,
            ("infer", "source", "ok", "off"): 1,
        }

    serve(test, tmp_path)
