"""Executors in processes of their own, through a real server's engine: crashes, hangs, recycling and growth."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import pytest
from tests.models.graphs import linear

from tailcut.common.units import Duration, Share
from tailcut.errors import ArtifactError, ExecutorLost, InferenceError, StartError
from tailcut.manifest import Batching, Deployment, Manifest, Model, PoolSettings, Serve, Slo, TensorSpec
from tailcut.models.executors import ProcessExecutor, ThreadExecutor
from tailcut.models.pool import Pool
from tailcut.models.runtimes.remote import RemoteRuntime
from tailcut.pipeline.request_context import RequestContext
from tailcut.scheduler import pool_scaling
from tailcut.serving.deployment_loader import find_variant
from tailcut.serving.engine import Engine

pytestmark = pytest.mark.integration

X = TensorSpec(name="x", shape=(-1, 4))
Y = TensorSpec(name="y", shape=(-1,))
ROW = {"x": np.arange(4, dtype=np.float32).reshape(1, 4)}


def manifest(folder: Path, pool: PoolSettings, timeout_s: float = 20.0, mode: Any = "auto") -> Manifest:
    linear(folder / "x.onnx")
    deployment = Deployment(
        name="m",
        model=Model(source="x.onnx", inputs=(X,), outputs=(Y,)),
        serve=Serve(variant="source"),
        slo=Slo(p95_s=Duration(0.1), timeout_s=Duration(timeout_s)),
        batching=Batching(max_rows=8, mode=mode),
        pool=pool,
    )
    return Manifest(deployment, folder, {})


def serve(folder: Path, pool: PoolSettings, use: Callable[[Engine], Coroutine[Any, Any, None]], **more: Any) -> None:
    async def main() -> None:
        engine = Engine(manifest(folder, pool, **more))
        await engine.start()
        try:
            await use(engine)
        finally:
            await engine.stop(5.0)

    asyncio.run(asyncio.wait_for(main(), 60))


async def ask(engine: Engine, rows: int = 1) -> np.ndarray[Any, Any]:
    context: RequestContext = engine.begin("infer", perf_counter_ns())
    try:
        engine.pipeline.admit(context, rows)
        found = await engine.pipeline.infer(context, {"x": np.repeat(ROW["x"], rows, axis=0)}, rows, ("y",))
    finally:
        engine.end(context, "ok")
    return found["y"]


def processes(pool: Pool) -> list[ProcessExecutor]:
    return [executor for executor in pool._handles if isinstance(executor, ProcessExecutor)]


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.02)


PROCESS = PoolSettings(executor="process", executors=1)


def test_answers_are_those_of_the_model_itself(tmp_path: Path) -> None:
    async def use(engine: Engine) -> None:
        answers = await asyncio.gather(*[ask(engine, rows) for rows in (1, 3, 7, 40)])
        assert [len(answer) for answer in answers] == [1, 3, 7, 40]
        assert np.allclose(np.concatenate(answers), answers[0][0])

    serve(tmp_path, PROCESS, use)


def test_a_killed_process_is_replaced_and_its_batch_runs_once_more(tmp_path: Path) -> None:
    async def use(engine: Engine) -> None:
        before = await ask(engine)
        (executor,) = processes(engine.opened.pool)
        pid = executor.runtime.process.pid
        os.kill(pid, signal.SIGSTOP)  # so that the batch is under way when it dies
        waiting = asyncio.create_task(ask(engine))
        await until(lambda: engine.pipeline.serving.dispatcher.running.rows == 1)
        os.kill(pid, signal.SIGKILL)
        assert np.array_equal(await waiting, before)
        assert engine.opened.pool.lost == 1
        assert engine.opened.executors == 1
        assert not Path(f"/proc/{pid}").exists()

    serve(tmp_path, PROCESS, use)


def test_a_process_that_dies_idle_is_replaced_before_anybody_asks(tmp_path: Path) -> None:
    async def use(engine: Engine) -> None:
        (executor,) = processes(engine.opened.pool)
        executor.kill()
        await until(lambda: engine.opened.pool.lost == 1 and engine.opened.executors == 1)
        assert len(await ask(engine)) == 1

    serve(tmp_path, PROCESS, use)


def test_a_hung_process_is_killed_and_replaced(tmp_path: Path) -> None:
    async def use(engine: Engine) -> None:
        (executor,) = processes(engine.opened.pool)
        os.kill(executor.runtime.process.pid, signal.SIGSTOP)
        with pytest.raises(Exception, match="deadline"):
            await ask(engine)
        await until(lambda: engine.opened.pool.lost == 1 and engine.opened.executors == 1)
        assert len(await ask(engine)) == 1
        assert engine.is_ready

    serve(tmp_path, PROCESS, use, timeout_s=1.0)


def test_a_batch_whose_deadline_has_passed_is_not_run_again(tmp_path: Path) -> None:
    async def use(engine: Engine) -> None:
        (executor,) = processes(engine.opened.pool)
        pid = executor.runtime.process.pid
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(Exception, match="deadline"):
            await ask(engine)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: engine.opened.pool.lost == 1)
        assert engine.pipeline.serving.dispatcher.batch_retry.batches == 0

    serve(tmp_path, PROCESS, use, timeout_s=0.3)


def test_what_the_model_refuses_is_an_error_and_no_loss(tmp_path: Path) -> None:
    async def use(engine: Engine) -> None:
        context = engine.begin("infer", perf_counter_ns())
        engine.pipeline.admit(context, 1)
        with pytest.raises(InferenceError, match="the model failed on a batch of 1 rows"):
            await engine.pipeline.infer(context, {"x": np.zeros((1, 3), np.float32)}, 1, ("y",))
        engine.end(context, "ok")
        assert engine.opened.pool.lost == 0
        assert len(await ask(engine)) == 1

    serve(tmp_path, PROCESS, use)


@pytest.mark.parametrize("wear", [{"recycle_requests": 20}, {"recycle_age_s": Duration(0.3)}], ids=["requests", "age"])
@pytest.mark.parametrize("kind", ["process", "thread"])
def test_executors_are_recycled_under_load_without_dropping_anything(tmp_path: Path, kind: Any, wear: Any) -> None:
    async def use(engine: Engine) -> None:
        pool = engine.opened.pool
        answered = 0
        async with asyncio.timeout(30):
            while pool.replaced < 2:
                answered += len(await asyncio.gather(*[ask(engine) for _ in range(8)]))
                await asyncio.sleep(0.005)  # leaves a core to the process that starts
        assert answered > 40
        assert pool.lost == 0
        assert pool.size == 1

    serve(tmp_path, PoolSettings(executor=kind, executors=1, **wear), use)


def test_memory_that_grows_wears_a_process_out(tmp_path: Path) -> None:
    async def use(engine: Engine) -> None:
        pool = engine.opened.pool
        (first,) = processes(pool)
        await ask(engine, 1)
        async with asyncio.timeout(30):
            rows = 1024
            while pool.replaced < 1:
                await ask(engine, rows)
        assert first not in processes(pool)

    serve(tmp_path, PoolSettings(executor="process", executors=1, recycle_growth=Share(0.001)), use)


def test_the_pool_grows_where_work_waits_and_shrinks_when_it_is_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_scaling, "_QUIET_S", 1.0)

    async def use(engine: Engine) -> None:
        pool = engine.opened.pool
        (executor,) = processes(pool)
        os.kill(executor.runtime.process.pid, signal.SIGSTOP)  # a batch that takes long
        for _ in range(50):
            engine.pipeline.serving.dispatcher.costs.observe(8, 4e7)
        waiting = [asyncio.create_task(ask(engine)) for _ in range(200)]
        await until(lambda: pool.size == 2)
        os.kill(executor.runtime.process.pid, signal.SIGCONT)
        assert len(await asyncio.gather(*waiting)) == 200
        assert pool.opened == 1
        ran: list[Any] = []
        while pool.size == 2:
            before = {executor: handle.requests for executor, handle in pool._handles.items()}
            await ask(engine)  # of whom none is dropped, and no queue comes of
            ran = [executor for executor, handle in pool._handles.items() if handle.requests > before[executor]]
            await asyncio.sleep(0.02)
        assert processes(pool) == ran, "the one whose caches are warm stays"
        assert len(await ask(engine)) == 1

    serve(tmp_path, PoolSettings(executor="process", executors=1, max_executors=2), use)


def test_a_model_that_dies_at_every_batch_fails_its_requests_and_nothing_else(tmp_path: Path) -> None:
    async def use(engine: Engine) -> None:
        pool = engine.opened.pool
        open_one = pool._open_one

        def open_stopped() -> Any:
            runtime = open_one()
            assert isinstance(runtime, RemoteRuntime)
            os.kill(runtime.process.pid, signal.SIGSTOP)  # it dies in its batch, however quick it would have been
            pool._open_one = open_one
            return runtime

        async def kill_at_work() -> None:
            killed: set[ProcessExecutor] = set()
            while len(killed) < 2:
                await until(lambda: engine.pipeline.serving.dispatcher.running.rows == 1)
                for executor in set(processes(pool)) - killed:
                    executor.kill()
                    killed.add(executor)
                await asyncio.sleep(0)

        pool._open_one = open_stopped
        (first,) = processes(pool)
        os.kill(first.runtime.process.pid, signal.SIGSTOP)
        killer = asyncio.create_task(kill_at_work())
        with pytest.raises(ExecutorLost, match="SIGKILL"):
            await ask(engine)
        await killer
        await until(lambda: engine.opened.executors == 1)
        assert len(await ask(engine)) == 1

    serve(tmp_path, PROCESS, use)


def test_children_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    import subprocess
    import sys

    linear(tmp_path / "x.onnx")
    (tmp_path / "tailcut.toml").write_text(
        'name = "m"\n[model]\nsource = "x.onnx"\n[[model.inputs]]\nname = "x"\nshape = [-1, 4]\n'
        '[[model.outputs]]\nname = "y"\n[serve]\nvariant = "source"\n[pool]\nexecutor = "process"\nexecutors = 1\n'
    )
    code = (
        "import sys\nfrom pathlib import Path\nfrom tailcut.manifest import load\n"
        "from tailcut.serving.deployment_loader import find_variant\n"
        "from tailcut.models.runtimes.remote import RemoteRuntime\n"
        "m = load(Path('tailcut.toml'))\nr = RemoteRuntime(m, find_variant(m), threads=1)\n"
        "print(r.process.pid, flush=True)\nsys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        child = os.pidfd_open(pid)
        parent.kill()
    import select

    poll = select.poll()
    poll.register(child, select.POLLIN)
    assert poll.poll(10_000), "the child lives on"
    os.close(child)


def test_a_process_that_dies_while_it_is_to_go_leaves_its_batch_to_another(tmp_path: Path) -> None:
    async def use(engine: Engine) -> None:
        pool = engine.opened.pool
        before = await ask(engine)
        for executor in processes(pool):
            os.kill(executor.runtime.process.pid, signal.SIGSTOP)
        waiting = asyncio.create_task(ask(engine))
        await until(lambda: engine.pipeline.serving.dispatcher.running.rows == 1)
        busy, idle = sorted(processes(pool), key=lambda executor: not executor._batch)
        os.kill(idle.runtime.process.pid, signal.SIGCONT)
        pool._retire(pool._handles[busy], "")
        busy.kill()
        assert np.array_equal(await waiting, before)
        await until(lambda: not pool._closing)

    serve(tmp_path, PoolSettings(executor="process", executors=2), use)


def test_what_cannot_be_replaced_is_not_tried_at_every_look(tmp_path: Path) -> None:
    async def use(engine: Engine) -> None:
        pool, attempts = engine.opened.pool, 0

        def refuse() -> Any:
            nonlocal attempts
            attempts += 1
            raise StartError("no memory", hint="")

        pool._open_one = refuse
        await ask(engine)
        await until(lambda: attempts == 1)
        pool._reopening._after_s = float("inf")
        for _ in range(3):
            pool._look()
        assert attempts == 1

    serve(tmp_path, PoolSettings(executor="process", executors=1, recycle_requests=1), use)


def test_a_replacement_has_the_priority_of_the_first(tmp_path: Path) -> None:
    async def use(engine: Engine) -> None:
        (first,) = processes(engine.opened.pool)
        usual = os.getpriority(os.PRIO_PROCESS, first.runtime.process.pid)
        first.kill()
        await until(lambda: engine.opened.pool.lost == 1 and engine.opened.executors == 1)
        (second,) = processes(engine.opened.pool)
        assert os.getpriority(os.PRIO_PROCESS, second.runtime.process.pid) == usual

    serve(tmp_path, PROCESS, use)


def test_nothing_is_opened_after_the_stop(tmp_path: Path) -> None:
    async def use(engine: Engine) -> None:
        pool = engine.opened.pool
        (executor,) = processes(pool)
        os.kill(executor.runtime.process.pid, signal.SIGSTOP)
        waiting = asyncio.create_task(ask(engine))
        await until(lambda: engine.pipeline.serving.dispatcher.running.rows == 1)
        pool.stop()
        stopping = asyncio.create_task(engine.pipeline.serving.dispatcher.stop(10))
        await asyncio.sleep(0)
        executor.kill()
        with pytest.raises(ExecutorLost):
            await waiting
        await stopping
        assert pool._opening is None
        assert pool.size == 0

    serve(tmp_path, PROCESS, use)


def test_a_signal_without_a_name_is_noticed_too(tmp_path: Path) -> None:
    async def use(engine: Engine) -> None:
        (executor,) = processes(engine.opened.pool)
        os.kill(executor.runtime.process.pid, signal.SIGRTMIN + 5)
        await until(lambda: engine.opened.pool.lost == 1)
        assert "signal 39" in str(executor.runtime.lost())

    serve(tmp_path, PROCESS, use)


def test_a_death_is_seen_although_what_the_model_started_lives_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "if b'tailcut.models.runtimes.remote.child' in open('/proc/self/cmdline', 'rb').read() and os.fork() == 0:\n"
        "    signal.pause()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    async def use(engine: Engine) -> None:
        (executor,) = processes(engine.opened.pool)
        os.kill(executor.runtime.process.pid, signal.SIGKILL)
        await until(lambda: engine.opened.pool.lost == 1 and engine.opened.executors == 1)
        group = executor.runtime.process.pid
        await until(lambda: not _alive(group))

    serve(tmp_path, PROCESS, use)


def _alive(group: int) -> bool:
    """Whether a process of the group runs: what is dead and waits for its parent does not."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, number = path.read_text().rpartition(")")[2].split()[:3]
            if int(number) == group and state != "Z":
                return True
    return False


def test_failed_opens_leave_nothing_behind(tmp_path: Path) -> None:
    found = manifest(tmp_path, PROCESS)
    variant = find_variant(found)
    (tmp_path / "x.onnx").write_bytes(b"nothing")
    gc.collect()  # what earlier tests left open closes now or later: it must not hide, nor seem, a leak
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        with pytest.raises(ArtifactError):
            RemoteRuntime(found, variant, threads=1)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_process_that_dies_while_it_starts_says_so_and_no_module_of_the_folder_is_taken_for_pythons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = manifest(tmp_path, PROCESS)
    variant = find_variant(found)
    (tmp_path / "socket.py").write_text("raise SystemExit(7)\n")
    monkeypatch.chdir(tmp_path)
    RemoteRuntime(found, variant, threads=1).close()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(StartError, match=r"ended while opening it \(exit code 7\)"):
        RemoteRuntime(found, variant, threads=1)


def test_a_process_that_hangs_while_it_warms_up_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = manifest(tmp_path, PROCESS)
    monkeypatch.setattr("tailcut.models.runtimes.remote.client._OPEN_TIMEOUT_S", 5.0)
    runtime = RemoteRuntime(found, find_variant(found), threads=1)
    runtime.connection.settimeout(0.2)
    os.kill(runtime.process.pid, signal.SIGSTOP)
    with pytest.raises(ExecutorLost, match="SIGKILL"):
        runtime.run({"x": ROW["x"]}, ("y",))
    runtime.close()


def test_a_thread_that_was_recycled_is_none_that_was_given_up(tmp_path: Path) -> None:
    async def use(engine: Engine) -> None:
        pool = engine.opened.pool
        (handle,) = pool._handles.values()
        given_up = ThreadExecutor(handle.runtime, pool._done, asyncio.get_running_loop(), "hangs")
        pool._abandoned.add(given_up)
        gate, run = threading.Event(), handle.runtime.run
        handle.runtime.run = lambda inputs, outputs: (gate.wait(10), run(inputs, outputs))[1]  # type: ignore[method-assign]
        waiting = asyncio.create_task(ask(engine))
        await until(lambda: engine.pipeline.serving.dispatcher.running.rows == 1)
        pool._retire(handle, "")
        gate.set()
        await waiting
        assert pool._abandoned == {given_up}
        given_up.close(1)

    serve(tmp_path, PoolSettings(executor="thread", executors=1), use)


def test_tensors_that_are_shared_are_no_growth_of_the_child(tmp_path: Path) -> None:
    """Seen by reading before: after its first large batches a child had grown enough to be recycled."""
    wide = 8192
    linear(tmp_path / "x.onnx", width=wide)
    model = Model(source="x.onnx", inputs=(TensorSpec(name="x", shape=(-1, wide)),), outputs=(Y,))
    found = Manifest(Deployment(name="m", model=model, serve=Serve(variant="source")), tmp_path, {})
    runtime = RemoteRuntime(found, find_variant(found), threads=1)
    try:
        runtime.run({"x": np.ones((1, wide), np.float32)}, ["y"])
        before_bytes = runtime.resident_bytes
        inputs = {"x": np.ones((1024, wide), np.float32)}
        runtime.run(inputs, ["y"])
        assert before_bytes > 0
        assert abs(runtime.resident_bytes - before_bytes) < inputs["x"].nbytes // 2
    finally:
        runtime.close()
