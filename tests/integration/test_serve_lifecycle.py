"""``tailcut serve`` from start to stop: nothing is lost, and nothing that failed looks like a success."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.app_kit import INFER, samples, save_model
from tests.integration.serving import Served, as_bytes, connected

pytestmark = pytest.mark.integration

PREPROCESS = "model.preprocess=life_hooks:preprocess"
READ_PIPE = "open({pipe!r}).read()  # waits until the test opens the other end"
COLUMNS = """
import numpy as np

def preprocess(rows):
    return {"x": np.array([[row["id"], row["value"]] for row in rows])}
"""
FEATURES = """
[features]
entity = ["id"]

[[features.groups]]
name = "g"
key = ["id"]
columns = ["value"]
ttl = "1h"
function = "life_hooks:values"
"""
VALUES = """
def values(keys, context):
    {wait}
    return [{{"value": 1.0}} for _ in keys]
"""
ROWS = {"rows": [{"id": 1, "value": 2}]}
DRAIN_S = 1.0


def pipe(directory: Path) -> Path:
    path = directory / "pipe"
    os.mkfifo(path)
    return path


def test_it_is_ready_only_after_loading_and_alive_meanwhile(tmp_path: Path) -> None:
    gate = pipe(tmp_path)
    (tmp_path / "life_hooks.py").write_text(READ_PIPE.format(pipe=str(gate)) + "\n" + COLUMNS)
    with Served(tmp_path, settings=[PREPROCESS], wait=False) as server:
        server.wait_until(lambda: server.get("/v2/health/live")[0] == 200)
        assert server.get("/v2/health/ready") == (503, {"ready": False, "state": "loading"})
        assert server.get("/v2/models/m/ready")[0] == 503
        status, reply = server.post("/predict/m", ROWS)
        assert (status, reply["code"]) == (503, "not_ready")
        assert samples(server.metrics(), "tailcut_ready") == {(): 0}
        assert "is ready" not in server.log
        gate.open("w").close()
        server.wait_ready()
        assert samples(server.metrics(), "tailcut_ready") == {(): 1}
        assert server.post("/predict/m", ROWS)[0] == 200
        assert samples(server.metrics(), "tailcut_batch_rows_count") == {(): 1}, "warm-up is not traffic"


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-20]), "model.onnx"),
        pytest.param(lambda path: path.write_bytes(b""), "model.onnx", marks=pytest.mark.whole),
        (lambda path: path.unlink(), "model.onnx"),
    ],
    ids=["truncated", "empty", "missing"],
)
def test_a_model_that_cannot_be_opened_is_named_and_the_exit_code_is_3(
    tmp_path: Path, damage: object, says: str
) -> None:
    assert callable(damage)
    save_model(tmp_path / "broken.onnx")
    (tmp_path / "broken.onnx").rename(tmp_path / "broken-model.onnx")
    damage(tmp_path / "broken-model.onnx")
    with Served(tmp_path, settings=["model.source=broken-model.onnx"], wait=False) as server:
        assert server.wait() == 3
        assert says in server.log
        assert "hint:" in server.log
        assert "Traceback" not in server.log
        assert "worker" not in server.log, "one error is enough"


def test_a_hook_that_cannot_be_imported_is_named_and_the_exit_code_is_not_0(tmp_path: Path) -> None:
    (tmp_path / "life_hooks.py").write_text("import a_module_that_is_not_there\n")
    with Served(tmp_path, settings=[PREPROCESS], wait=False) as server:
        assert server.wait() == 3
        assert "a_module_that_is_not_there" in server.log
        assert "hint:" in server.log


def _signal_worker(server: Served) -> None:
    os.kill(server.worker_pid, signal.SIGTERM)


class Polling:
    """A client that sends the next request as soon as it has an answer, until it is told to close."""

    def __init__(self) -> None:
        self.answered = 0
        self.lost = 0
        self.unclosed = 0
        self.sent_after_drain = 0

    async def run(self, port: int, draining: asyncio.Event) -> None:
        async with connected(port) as wire:
            while True:
                was_draining = draining.is_set()
                try:
                    status, headers, _ = await wire.ask(as_bytes())
                except (asyncio.IncompleteReadError, ConnectionError):
                    self.lost += 1
                    return
                assert status == 200
                self.answered += 1
                if headers.get("connection") == "close":
                    assert await wire.reader.read() == b"", "the server closes what it said it would close"
                    return
                # Asked after the signal was seen to have taken effect, so the reply had to say close.
                self.unclosed += was_draining


@pytest.mark.parametrize("told", [Served.signal, Served.signal_group, _signal_worker])
def test_sigterm_under_load_loses_no_request(tmp_path: Path, told: Callable[[Served], None]) -> None:
    async def main(server: Served) -> None:
        draining = asyncio.Event()
        clients = [Polling() for _ in range(12)]
        tasks = [asyncio.create_task(client.run(server.port, draining)) for client in clients]
        while min(client.answered for client in clients) < 20:
            assert not any(task.done() for task in tasks)
            await asyncio.sleep(0)
        worker = server.worker_pid
        told(server)
        sent_s = time.monotonic()
        await asyncio.to_thread(server.wait_until, lambda: server.get("/v2/health/ready")[0] == 503)
        draining.set()
        assert server.get("/v2/health/ready")[1]["state"] == "draining"
        status, headers, _ = await asyncio.to_thread(server.request, "POST", INFER, {})
        assert (status, headers["connection"]) == (400, "close")
        await asyncio.wait_for(asyncio.gather(*tasks), 10)
        assert [client.lost for client in clients] == [0] * 12
        assert sum(client.unclosed for client in clients) == 0
        async with connected(server.port) as late:
            assert (await late.ask(as_bytes()))[0] == 200, "still served while it drains"
        assert await asyncio.to_thread(server.wait) == 0
        took_s = time.monotonic() - sent_s
        assert DRAIN_S <= took_s < 20, "it ends when it has drained, not when it would be killed"
        assert not _runs(worker)

    settings = [f"server.drain={DRAIN_S}s", "server.kill=30s", "batching.max_queue_rows=1024"]
    with Served(tmp_path, settings=settings) as server:
        asyncio.run(main(server))
        assert "Traceback" not in server.log


def test_sighup_to_the_group_is_ignored_and_says_so(tmp_path: Path) -> None:
    async def main(server: Served) -> None:
        worker = server.worker_pid
        async with connected(server.port) as wire:
            assert (await wire.ask(as_bytes()))[0] == 200
            server.signal_group(signal.SIGHUP)
            await asyncio.to_thread(server.wait_until, lambda: "SIGHUP ignored" in server.log)
            assert (await wire.ask(as_bytes()))[0] == 200, "the connection is the same worker's"
        assert server.worker_pid == worker
        assert server.log.count("SIGHUP ignored") == 1

    with Served(tmp_path) as server:
        asyncio.run(main(server))


def test_a_request_that_is_under_way_when_the_drain_ends_is_answered(tmp_path: Path) -> None:
    gate = pipe(tmp_path)
    source = VALUES.format(wait=READ_PIPE.format(pipe=str(gate)))
    (tmp_path / "life_hooks.py").write_text(source)

    async def main(server: Served) -> None:
        async with connected(server.port) as wire:
            wire.writer.write(as_bytes({"entities": [1]}, "/predict/m"))
            await asyncio.to_thread(
                server.wait_until, lambda: samples(server.metrics(), "tailcut_in_flight") == {(): 1}
            )
            server.signal()
            # The port is closed when the drain has ended and the server is stopping.
            await asyncio.to_thread(_wait_refused, server)
            gate.open("w").close()
            status, headers, body = await wire.reply()
            assert (status, headers["connection"]) == (200, "close"), body
            assert json.loads(body)["predictions"] == [{"y": 2.0, "z": [2.0, 2.0]}]
        assert await asyncio.to_thread(server.wait) == 0

    settings = ["server.drain=0.3s", "server.kill=20s", "slo.timeout=15s", "features.timeout=15s"]
    with Served(tmp_path, FEATURES, settings) as server:
        asyncio.run(main(server))


def _runs(pid: int) -> bool:
    """Whether a process is there and is no zombie that nobody has looked at yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _wait_refused(server: Served) -> None:
    give_up_s = time.monotonic() + 10
    while time.monotonic() < give_up_s:
        try:
            server.get("/v2/health/live")
        except ConnectionRefusedError:
            return
        except OSError:
            pass
        time.sleep(0.01)
    raise AssertionError("the port stayed open")


def test_a_model_that_hangs_is_killed_in_time(tmp_path: Path) -> None:
    gate = pipe(tmp_path)
    called = f"open({str(tmp_path / 'called')!r}, 'w').close()"
    source = COLUMNS.replace("    return", f"    {called}\n    {READ_PIPE.format(pipe=str(gate))}\n    return")
    (tmp_path / "life_hooks.py").write_text(source)

    async def main(server: Served) -> None:
        async with connected(server.port) as wire:
            wire.writer.write(as_bytes(ROWS, "/predict/m"))
            await asyncio.to_thread(server.wait_until, (tmp_path / "called").exists)
            worker = server.worker_pid
            server.signal()
            sent_s = time.monotonic()
            await asyncio.to_thread(server.wait, 15)
            assert 0.5 <= time.monotonic() - sent_s < 12
            assert not _runs(worker)

    with Served(tmp_path, settings=[PREPROCESS, "server.drain=0.5s", "server.kill=2s"]) as server:
        asyncio.run(main(server))


def test_a_worker_that_dies_ends_the_server_with_an_error(tmp_path: Path) -> None:
    with Served(tmp_path) as server:
        os.kill(server.worker_pid, signal.SIGKILL)
        assert server.wait(15) == 1
        assert "the worker was killed by SIGKILL (out of memory?" in server.log
        assert "worker-1" not in server.log
        assert server.output == ""


def test_a_server_whose_supervisor_is_killed_gives_the_port_up(tmp_path: Path) -> None:
    with Served(tmp_path) as server:
        worker = server.worker_pid
        server.signal(signal.SIGKILL)
        _wait_refused(server)
        assert server.wait() == -signal.SIGKILL
        give_up_s = time.monotonic() + 10
        while _runs(worker):
            assert time.monotonic() < give_up_s
            time.sleep(0.01)


def test_a_signal_before_it_is_ready_stops_it_cleanly(tmp_path: Path) -> None:
    gate = pipe(tmp_path)
    (tmp_path / "life_hooks.py").write_text(READ_PIPE.format(pipe=str(gate)) + "\n" + COLUMNS)
    settings = [PREPROCESS, "server.drain=0.2s", "server.kill=1s", "slo.timeout=500ms"]
    with Served(tmp_path, settings=settings, wait=False) as server:
        server.wait_until(lambda: server.has_worker)
        server.signal()
        assert server.wait(15) == 0


def test_a_second_signal_skips_the_rest_of_the_drain(tmp_path: Path) -> None:
    with Served(tmp_path, settings=["server.drain=30s", "server.kill=40s"]) as server:
        server.signal(signal.SIGUSR1)  # what it sends to its worker itself means nothing to it
        assert server.post(INFER)[0] == 200
        server.signal(signal.SIGINT)
        server.wait_until(lambda: server.get("/v2/health/ready")[0] == 503)
        assert "draining for 30 s; Ctrl-C or SIGTERM again stops now" in server.log
        time.sleep(0.5)
        server.signal(signal.SIGINT)
        assert server.wait(15) == 0


def test_signals_that_come_together_are_one(tmp_path: Path) -> None:
    """A terminal's Ctrl-C reaches the group, and a wrapper passes it on."""
    with Served(tmp_path, settings=["server.drain=1s", "server.kill=4s"]) as server:
        began_s = time.monotonic()
        server.signal(signal.SIGINT)
        server.signal(signal.SIGTERM)
        assert server.wait(15) == 0
        assert time.monotonic() - began_s >= 1.0


def test_a_worker_that_dies_while_it_drains_is_no_clean_stop(tmp_path: Path) -> None:
    with Served(tmp_path, settings=["server.drain=20s", "server.kill=30s"]) as server:
        worker = server.worker_pid
        server.signal()
        server.wait_until(lambda: server.get("/v2/health/ready")[0] == 503)
        os.kill(worker, signal.SIGSEGV)
        assert server.wait(15) == 1
        assert "the worker was killed by SIGSEGV" in server.log


def test_threads_of_the_server_do_not_interrupt_each_other_where_it_is_told_so(tmp_path: Path) -> None:
    inherited = os.sched_getscheduler(0)
    with Served(tmp_path, settings=["server.scheduling=batch"]) as server:
        assert server.post(INFER)[0] == 200
        tasks = os.listdir(f"/proc/{server.worker_pid}/task")
        found = {os.sched_getscheduler(int(task)) for task in tasks}
        assert found == {os.SCHED_BATCH if inherited == os.SCHED_OTHER else inherited}
