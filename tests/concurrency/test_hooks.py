"""Slow hooks leave the event loop, keep the deadline and let the client go; quick ones stay on it."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from pathlib import Path
from time import perf_counter_ns

import pytest
from tests.app_kit import GOOD, INFER, Client, counters
from tests.concurrency.hooking import ROW, TENANT, ask, blocked, control, preprocess, serve, until_inline
from tests.wait_kit import until

from tailcut.errors import Shed, StartError
from tailcut.manifest import Model, TensorSpec
from tailcut.pipeline.hooks import Hooks
from tailcut.pipeline.request_context import RequestContext
from tailcut.pipeline.row_transform import RowTransform

LATE = {"x_tailcut_timeout_ms": "30"}
PATIENT = ('slo.timeout="30s"', 'server.kill="60s"')
BOTH = pytest.mark.parametrize("hook", ["preprocess", "postprocess"])


def hooked(hook: str) -> dict[str, str]:
    return {"pre" if hook == "preprocess" else "post": hook}


async def slow(client: Client) -> None:
    """Make the hook's next call run in a thread, whatever the warm-up has found."""
    hooks = client.app.engine.pipeline.hooks
    assert hooks is not None
    for placement in (hooks.preprocess, hooks.postprocess):
        if placement.look_ns < 1 << 62:
            for _ in range(50):
                placement.observe(1, 10**9)


@BOTH
def test_while_a_slow_hook_runs_others_are_answered(tmp_path: Path, hook: str) -> None:
    async def test(client: Client) -> None:
        await slow(client)
        async with blocked(client) as work:
            assert (await client.get("/v2/health/live")).status == 200
            assert (await client.get("/v2/health/ready")).status == 200
            assert (await client.post(INFER, GOOD)).status == 200
            assert not work[0].done()
            assert await counters(client, "tailcut_hook_threads_busy") == {(): 1}
        answer = await work[0]
        assert answer.json["predictions"] == ([3.0] if hook == "postprocess" else [{"y": 3.0, "z": [2.0, 4.0]}])
        assert answer.stages_ms[hook] > 0
        assert await counters(client, "tailcut_hook_threads_busy") == {(): 0}

    serve(test, tmp_path, *PATIENT, **hooked(hook))


@BOTH
def test_the_deadline_ends_a_request_whose_hook_runs(tmp_path: Path, hook: str) -> None:
    async def test(client: Client) -> None:
        await slow(client)
        async with blocked(client, **LATE) as work:
            answer = await work[0]
        assert (answer.status, answer.json["code"]) == (504, "hook_timeout")
        assert f"while {hook} ran" in answer.json["error"]
        assert answer.json["hint"]
        assert answer.stages_ms[hook] >= 20, "waiting for the thread is the hook's stage"
        assert (await ask(client)).status == 200

    serve(test, tmp_path, **hooked(hook))


def test_when_all_threads_hang_requests_are_told_so_and_the_server_is_not_ready(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        async with blocked(client, 8, x_tailcut_timeout_ms="5000") as work:
            late = await ask(client, {"id": 99, "value": 0}, **LATE)
            assert (late.status, late.json["code"]) == (504, "hook_timeout")
            assert "all 8 hook threads are busy (8 with preprocess)" in late.json["error"]
            assert not client.app.engine.pipeline.hooks.waiting
            await until(lambda: not client.app.engine.is_ready)
            assert (await client.get("/v2/health/ready")).status == 503
            refused = await ask(client)
            assert (refused.status, refused.json["code"]) == (503, "not_ready")
            assert "all 8 hook threads are stuck (8 with preprocess)" in refused.json["error"]
            assert (await client.post(INFER, GOOD)).status == 200, "what needs no hook is answered"
        assert [(await task).status for task in work] == [200] * 8
        assert client.app.engine.is_ready
        assert (await ask(client)).status == 200
        assert [{"id": 99, "value": 0}] not in control.rows, "what ended while it waited is never called"

    serve(test, tmp_path, 'slo.timeout="50ms"', 'server.max_timeout="60s"', pre="preprocess")


def test_waiting_calls_are_served_in_order_when_a_thread_is_free(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        async with blocked(client, 8):
            later = [asyncio.create_task(ask(client, {"id": n, "value": 0})) for n in range(3)]
            await until(lambda: client.app.engine.pipeline.hooks.waiting == 3)
        answers = await asyncio.gather(*later)
        assert [answer.json["predictions"][0]["y"] for answer in answers] == [0, 1, 2]

    serve(test, tmp_path, *PATIENT, pre="preprocess")


def test_no_more_calls_wait_for_a_thread_than_may() -> None:
    async def main() -> None:
        model = Model(source="m:m", inputs=(TensorSpec(name="x", shape=(-1, 2)),), outputs=(TensorSpec(name="y"),))
        transform = RowTransform(model, preprocess, None)
        hooks = Hooks(transform, preprocess=True, postprocess=False, stuck_after_s=60, max_threads=1, max_waiting=1)
        start_ns = perf_counter_ns()
        calls = [RequestContext("predict", start_ns, start_ns + 60 * 10**9, "", "v") for _ in range(3)]
        control.close()
        try:
            runs, waits = [asyncio.create_task(hooks.inputs(context, [ROW], True)) for context in calls[:2]]
            await control.wait_entered()
            with pytest.raises(Shed, match="1 calls of hooks wait for a thread, the limit is 1"):
                await hooks.inputs(calls[2], [ROW], True)
            waits.cancel()
            await asyncio.gather(waits, return_exceptions=True)
            assert hooks.waiting == 0, "its place is free"
        finally:
            control.open()
        assert (await runs)["x"].tolist() == [[1, 2]]
        await hooks.stop(10)

    asyncio.run(main())


@BOTH
def test_a_client_that_leaves_while_its_hook_runs_is_let_go(tmp_path: Path, hook: str) -> None:
    async def test(client: Client) -> None:
        await slow(client)
        control.close()
        connection = client.connect("POST", "/predict/m")
        connection.send(json.dumps({"rows": [ROW]}).encode())
        work = asyncio.create_task(connection.answer())
        await control.wait_entered()
        connection.disconnect()
        await until(lambda: not client.app.engine.in_flight)
        assert not control.gate.is_set(), "it was not waited for"
        control.open()
        await asyncio.gather(work, return_exceptions=True)
        outcomes = await counters(client, "tailcut_requests_total")
        assert [labels for labels in outcomes if "client_gone" in labels]
        await until(lambda: not client.app.engine.pipeline.hooks.busy)
        computed = client.app.engine.pipeline.hooks.calls["postprocess"]
        assert computed == (1 if hook == "postprocess" else 0), "nothing happens after the hook"

    serve(test, tmp_path, *PATIENT, **hooked(hook))


@BOTH
@pytest.mark.parametrize("error", [ValueError("too few"), StopIteration("too few"), SystemExit("too few")])
def test_a_hook_that_raises_says_the_same_from_a_thread_as_inline(
    tmp_path: Path, hook: str, error: BaseException
) -> None:
    async def test(client: Client) -> None:
        await until_inline(client)
        control.fails = error
        inline = await ask(client)
        assert not control.in_thread
        await slow(client)
        threaded = await ask(client)
        assert control.in_thread
        assert (threaded.status, threaded.json) == (inline.status, inline.json)
        refused = hook == "preprocess" and isinstance(error, ValueError)
        assert inline.json["code"] == ("bad_request" if refused else "hook_failed")
        assert f"({type(error).__name__})" in inline.json["error"]
        assert "too few" not in str(inline.json), "what a hook says is for the log"
        control.fails = None
        assert (await ask(client)).status == 200

    serve(test, tmp_path, **hooked(hook))


def test_a_new_hook_runs_in_a_thread_until_it_is_known_to_be_quick(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        assert (await ask(client)).status == 200
        assert control.in_thread
        await until_inline(client)
        assert control.threads[-1] == threading.current_thread().name
        shown = (await client.get("/metrics")).body.decode()
        calls = re.search(r'^tailcut_hook_thread_calls_total\{.*hook="preprocess".*\} (\d+)', shown, re.MULTILINE)
        assert calls is not None
        assert int(calls[1]) == len(control.threads) - 1

    serve(test, tmp_path, pre="preprocess")


@BOTH
def test_a_hook_that_held_the_event_loop_once_stays_in_threads_and_the_log_has_the_setting(
    tmp_path: Path, hook: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(client: Client) -> None:
        await until_inline(client)
        control.takes_s = 0.03
        assert (await ask(client)).status == 200
        control.takes_s = 0.0
        assert not control.in_thread
        asked = len(control.threads)
        for _ in range(400):  # far more than bring a quick hook back that was slow in threads
            assert (await ask(client)).status == 200
        assert all(name.startswith("tailcut-hook-") for name in control.threads[asked:])
        (said,) = [record.message for record in caplog.records if "on the event loop" in record.message]
        took_ms = re.match(rf"{hook} of 1 rows took (\d+) ms on the event loop", said)
        assert took_ms is not None
        assert int(took_ms[1]) >= 30, "a busy machine takes longer"
        assert 'pool.hooks = "thread"' in said

    serve(test, tmp_path, **hooked(hook))


@BOTH
def test_a_deployment_may_keep_its_hooks_off_the_event_loop(tmp_path: Path, hook: str) -> None:
    async def test(client: Client) -> None:
        asked = len(control.threads)
        for _ in range(60):
            assert (await ask(client)).status == 200
        assert all(name.startswith("tailcut-hook-") for name in control.threads[asked:])

    serve(test, tmp_path, 'pool.hooks="thread"', **hooked(hook))


@pytest.mark.parametrize(
    ("post", "threaded"), [("postprocess", False), ("slow_postprocess", True), ("fussy_postprocess", True)]
)
def test_postprocess_is_measured_in_the_warm_up(tmp_path: Path, post: str, threaded: bool) -> None:
    async def test(client: Client) -> None:
        warm_up = len(control.rows)
        assert warm_up >= 1
        assert (await ask(client)).json["predictions"] == [3.0]
        assert len(control.rows) == warm_up + 1
        if threaded:
            assert control.in_thread

    serve(test, tmp_path, post=post)


def test_a_hook_in_a_thread_sees_the_requests_context(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        TENANT.set("mine")
        assert (await ask(client)).status == 200
        assert control.in_thread
        assert control.tenants[-1] == "mine"

    serve(test, tmp_path, pre="preprocess")


def test_without_hooks_nothing_is_looked_at(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        assert client.app.engine.pipeline.hooks is None
        assert (await ask(client)).status == 200
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("tailcut-hook-")]

    serve(test, tmp_path)


def test_stopping_lets_a_running_hook_end_and_ends_its_thread(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        engine = client.app.engine
        await slow(client)
        async with blocked(client) as work:
            stopping = asyncio.create_task(engine.stop(30))
            await until(lambda: engine.state == "stopped")
        assert (await work[0]).status == 200
        await stopping
        assert (await ask(client)).status == 503
        await until(lambda: not [t for t in threading.enumerate() if t.name.startswith("tailcut-hook-")])

    serve(test, tmp_path, *PATIENT, post="postprocess")


def test_a_hung_hook_does_not_hold_up_stopping(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        async with blocked(client, 9 - 1) as work:
            waiting = asyncio.create_task(ask(client))
            await until(lambda: client.app.engine.pipeline.hooks.waiting == 1)
            await client.app.engine.stop(0.01)
            answers = [await task for task in (*work, waiting)]
            assert {(answer.status, answer.json["code"]) for answer in answers} == {(503, "not_ready")}
            hung = [thread for thread in threading.enumerate() if thread.name.startswith("tailcut-hook-")]
            assert len(hung) == 8
            assert all(thread.daemon for thread in hung), "the process can end"

    serve(test, tmp_path, *PATIENT, pre="preprocess")


def test_an_async_hook_is_refused_at_start(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        raise AssertionError("it started")

    with pytest.raises(StartError, match=r"model.preprocess: .*async_preprocess is async"):
        serve(test, tmp_path, pre="async_preprocess")
