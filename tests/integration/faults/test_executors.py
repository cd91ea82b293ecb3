"""Executors that die or hang in the middle of a batch, requests that spoil one, clients that leave one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest
from tests.integration.faults.kit import (
    IDS,
    KNOWN,
    counted,
    executors,
    ids,
    outcomes,
    paused,
    save_table,
    until,
    wait_refused,
)
from tests.integration.serving import Served, Wire, as_bytes, connected

pytestmark = pytest.mark.integration

PATIENT = "x-tailcut-timeout-ms: 30000\r\n"


@contextmanager
def serving(folder: Path, timeout_s: float, more: str = "pool.executors=1") -> Iterator[Served]:
    """A server with one executor unless told, which counts as hanging after ``timeout_s``."""
    save_table(folder / "model.onnx")
    (folder / "tailcut.toml").write_text(IDS)
    settings = ['pool.executor="process"', "pool.executors=1", "batching.max_rows=8", "server.kill=30s", more]
    with Served(folder, settings=[*settings, f"slo.timeout={timeout_s}s"], prepared=True) as served:
        yield served


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("executors"), timeout_s=20) as served:
        yield served


def ask(wire: Wire, id_: int, headers: str = PATIENT) -> asyncio.Task[tuple[int, dict[str, str], bytes]]:
    return asyncio.create_task(wire.ask(as_bytes(ids(id_), headers=headers)))


def answer(reply: tuple[int, dict[str, str], bytes]) -> object:
    """The one number of an answer, or the status and code of an error."""
    status, _, body = reply
    said = json.loads(body)
    return said["outputs"][0]["data"][0] if status == 200 else (status, said["code"])


async def waiting(server: Served, running: int, queued: int) -> None:
    await until(
        server,
        lambda: counted(server, "tailcut_running_rows") == running and counted(server, "tailcut_queue_rows") == queued,
    )


async def wires(server: Served, stack: AsyncExitStack, count: int) -> list[Wire]:
    return [await stack.enter_async_context(connected(server.port)) for _ in range(count)]


async def replaced(server: Served, old: int) -> None:
    await until(server, lambda: executors(server) not in ([], [old]) and counted(server, "tailcut_executors") == 1)


def test_an_executor_killed_in_a_batch_costs_no_request(server: Served) -> None:
    async def main() -> None:
        (pid,) = executors(server)
        lost, ok = counted(server, "tailcut_executors_terminated_total", "lost"), outcomes(server).get("ok", 0)
        async with AsyncExitStack() as stack:
            os.kill(pid, signal.SIGSTOP)  # so that its batch is under way when it dies
            first, *others = await wires(server, stack, 8)
            answers = [ask(first, 1)]
            await waiting(server, running=1, queued=0)
            answers += [ask(wire, id_) for id_, wire in enumerate(others, 2)]
            await waiting(server, running=1, queued=7)
            os.kill(pid, signal.SIGKILL)
            assert [answer(await each) for each in answers] == [10.0 * id_ for id_ in range(1, 9)]
        await replaced(server, pid)
        assert counted(server, "tailcut_executors_terminated_total", "lost") == lost + 1
        assert outcomes(server)["ok"] == ok + 8
        assert "the process that ran variant 'source' ended (signal SIGKILL)" in server.log
        assert (await asyncio.to_thread(server.get, "/v2/health/ready"))[0] == 200

    asyncio.run(asyncio.wait_for(main(), 40))


def test_while_the_only_executor_is_replaced_who_has_time_waits_and_who_has_not_is_told_when_to_come(
    server: Served,
) -> None:
    async def main() -> None:
        (pid,) = executors(server)
        ok, refused = outcomes(server).get("ok", 0), outcomes(server).get("not_ready", 0)
        async with AsyncExitStack() as stack:
            impatient, *others = await wires(server, stack, 8)
            os.kill(pid, signal.SIGKILL)
            await until(server, lambda: counted(server, "tailcut_executors") == 0)
            answers = [ask(wire, id_) for id_, wire in enumerate(others, 2)]
            status, headers, body = await ask(impatient, 1, "x-tailcut-timeout-ms: 20\r\n")
            assert (status, json.loads(body)["code"]) == (503, "not_ready")
            assert int(headers["retry-after"]) >= 1
            assert [answer(await each) for each in answers] == [10.0 * id_ for id_ in range(2, 9)]
        await replaced(server, pid)
        assert (outcomes(server)["ok"], outcomes(server)["not_ready"]) == (ok + 7, refused + 1)

    asyncio.run(asyncio.wait_for(main(), 40))


def test_what_was_accepted_before_sigterm_is_answered(tmp_path: Path) -> None:
    """Also what waited in the queue all through the drain."""

    async def main(server: Served) -> None:
        pids = executors(server)
        async with AsyncExitStack() as stack:
            first, *others = await wires(server, stack, 8)
            with paused(*pids):
                answers = [ask(first, 1)]
                await waiting(server, running=1, queued=0)
                answers += [ask(wire, id_) for id_, wire in enumerate(others, 2)]
                await waiting(server, running=1, queued=7)
                server.signal()
                await asyncio.to_thread(wait_refused, server)
            assert [answer(await each) for each in answers] == [10.0 * id_ for id_ in range(1, 9)]
        assert await asyncio.to_thread(server.wait) == 0
        assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []

    with serving(tmp_path, 20, "server.drain=300ms") as server:
        asyncio.run(asyncio.wait_for(main(server), 40))


def test_with_two_executors_one_that_dies_under_load_is_not_noticed(tmp_path: Path) -> None:
    async def main(server: Served) -> None:
        ended: set[object] = set()
        done = asyncio.Event()

        async def client(wire: Wire) -> None:
            while not done.is_set():
                ended.add(answer(await ask(wire, 7)))

        async with AsyncExitStack() as stack:
            tasks = [asyncio.create_task(client(wire)) for wire in await wires(server, stack, 8)]
            for killed in (1, 2):
                await until(server, lambda: counted(server, "tailcut_executors") == 2)
                os.kill(executors(server)[0], signal.SIGKILL)
                await until(server, lambda: counted(server, "tailcut_executors_terminated_total", "lost") == killed)  # noqa: B023
            await until(server, lambda: counted(server, "tailcut_executors") == 2)
            done.set()
            await asyncio.gather(*tasks)
        assert ended == {70.0}
        assert set(outcomes(server)) == {"ok"}

    with serving(tmp_path, 20, "pool.executors=2") as server:
        asyncio.run(asyncio.wait_for(main(server), 40))


def test_an_executor_that_hangs_is_killed_and_who_has_time_is_answered(tmp_path: Path) -> None:
    async def main(server: Served) -> None:
        (pid,) = executors(server)
        async with AsyncExitStack() as stack:
            os.kill(pid, signal.SIGSTOP)
            impatient, *others = await wires(server, stack, 4)
            late = ask(impatient, 1, "")
            await until(server, lambda: counted(server, "tailcut_running_rows") == 1 or late.done())
            answers = [ask(wire, id_) for id_, wire in enumerate(others, 2)]
            assert answer(await late) == (504, "infer_timeout")
            assert [answer(await each) for each in answers] == [20.0, 30.0, 40.0]
        await replaced(server, pid)
        assert counted(server, "tailcut_executors_terminated_total", "lost") == 1
        assert outcomes(server) == {"ok": 3, "infer_timeout": 1}
        assert not Path(f"/proc/{pid}").exists()
        assert "an executor process hangs in a batch and is killed" in server.log
        assert (await asyncio.to_thread(server.get, "/v2/health/ready"))[0] == 200

    with serving(tmp_path, timeout_s=1.5) as server:
        asyncio.run(asyncio.wait_for(main(server), 40))


def test_a_row_that_the_model_cannot_compute_fails_its_own_request_only(server: Served) -> None:
    async def main() -> None:
        failed, apart = (
            outcomes(server).get("inference_failed", 0),
            counted(server, "tailcut_batch_retries_total"),
        )
        async with AsyncExitStack() as stack:
            first, *others = await wires(server, stack, 8)
            with paused(*executors(server)):
                answers = [ask(first, 1)]
                await waiting(server, running=1, queued=0)
                # All wait while the first is under way, so that they share the next batch.
                answers += [ask(wire, KNOWN if id_ == 5 else id_) for id_, wire in enumerate(others, 2)]
                await waiting(server, running=1, queued=7)
            wanted: list[object] = [10.0 * id_ for id_ in range(1, 9)]
            wanted[4] = (500, "inference_failed")
            assert [answer(await each) for each in answers] == wanted
        assert outcomes(server)["inference_failed"] == failed + 1
        assert counted(server, "tailcut_batch_retries_total") == apart + 1

    asyncio.run(asyncio.wait_for(main(), 40))


def test_clients_that_leave_in_the_middle_of_a_batch_hurt_no_neighbour(server: Served) -> None:
    async def main() -> None:
        gone = outcomes(server).get("client_gone", 0)
        async with AsyncExitStack() as stack:
            stayers = await wires(server, stack, 3)
            leavers = [await Wire.open(server.port) for _ in range(3)]
            with paused(*executors(server)):
                leavers[0].writer.write(as_bytes(ids(1), headers=PATIENT))
                await waiting(server, running=1, queued=0)
                for leaver in leavers[1:]:
                    leaver.writer.write(as_bytes(ids(2), headers=PATIENT))
                answers = [ask(wire, id_) for id_, wire in enumerate(stayers, 3)]
                await waiting(server, running=1, queued=5)
                for leaver in leavers:
                    await leaver.close()
                await until(server, lambda: outcomes(server).get("client_gone", 0) == gone + 3)
                await waiting(server, running=1, queued=3)  # nothing is computed for who left the queue
            assert [answer(await each) for each in answers] == [30.0, 40.0, 50.0]
        await until(server, lambda: counted(server, "tailcut_in_flight") == 0)

    asyncio.run(asyncio.wait_for(main(), 40))
