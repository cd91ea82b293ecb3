"""While the only executor is replaced, who has the time waits and is answered; who has not is told when to come."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.app_kit import INFER, Answer, Client, counters, deployment, running, until_metric
from tests.wait_kit import until

from tailcut.errors import ArtifactError
from tailcut.models import pool, variant_loader
from tailcut.models.runtimes import open_runtime
from tailcut.testing.runtimes import FaultyRuntime

ONE = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
LOAD_S = 0.2


class Opening:
    """Runtimes as they are opened: the first takes its time to load, later ones as long as the test says."""

    def __init__(self) -> None:
        self.opened: list[FaultyRuntime] = []
        self.allowed = threading.Event()
        self.error: Exception | None = None
        self.begun = 0

    def __call__(self, variant: Any, **options: Any) -> FaultyRuntime:
        self.begun += 1
        if not self.opened:
            time.sleep(LOAD_S)  # takes time: the pool learns how long loading takes
        elif not self.allowed.wait(20):
            raise TimeoutError("the test never let it load")
        if self.opened and self.error is not None:
            raise self.error
        self.opened.append(FaultyRuntime(open_runtime(variant, **options)))
        return self.opened[-1]


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> Opening:
    found = Opening()
    monkeypatch.setattr(variant_loader, "open_runtime", found)
    return found


def serve(folder: Path, test: Callable[[Client], Awaitable[None]], settings: str = "") -> None:
    overrides = [f'pool={{executor="thread", executors=1{settings}}}', 'slo.timeout="300ms"', 'server.kill="30s"']
    manifest = deployment(folder, overrides=overrides)

    async def main() -> None:
        async with running(manifest) as client:
            await test(client)

    asyncio.run(asyncio.wait_for(main(), 60))


def ask(client: Client, timeout_ms: int) -> asyncio.Task[Answer]:
    return asyncio.create_task(client.post(INFER, ONE, {"x-tailcut-timeout-ms": str(timeout_ms)}))


async def given_up(client: Client, opening: Opening) -> asyncio.Task[Answer]:
    """Let the only executor hang until it is given up; returns the request that it hung in."""
    opening.opened[0].hang()
    first = ask(client, 20_000)
    await until_metric(client, "tailcut_executors", 0)
    return first


def test_who_has_the_time_waits_for_the_next_executor(tmp_path: Path, opening: Opening) -> None:
    async def test(client: Client) -> None:
        first = await given_up(client, opening)
        others = [ask(client, 20_000) for _ in range(3)]
        await until_metric(client, "tailcut_queue_rows", 4)
        assert (await client.get("/v2/health/ready")).status == 503, "others should not send their load here meanwhile"
        opening.allowed.set()
        answers = await asyncio.gather(first, *others)
        assert [(each.status, each.json.get("outputs", [{}])[0].get("data")) for each in answers] == [(200, [3.0])] * 4
        assert (await client.get("/v2/health/ready")).status == 200
        opening.opened[0].release()

    serve(tmp_path, test)


def test_who_has_not_is_refused_at_once_and_told_when_to_ask_again(tmp_path: Path, opening: Opening) -> None:
    async def test(client: Client) -> None:
        first = await given_up(client, opening)
        refused = await ask(client, 20)
        assert (refused.status, refused.json["code"]) == (503, "not_ready")
        assert int(refused.headers["retry-after"]) >= 1
        assert "is expected in" in refused.json["error"]
        assert (await counters(client, "tailcut_queue_rows"))[()] == 1, "it does not wait"
        opening.allowed.set()
        assert (await first).status == 200
        opening.opened[0].release()

    serve(tmp_path, test)


def test_where_none_can_be_opened_nobody_waits_in_vain(tmp_path: Path, opening: Opening) -> None:
    async def test(client: Client) -> None:
        opening.error = ArtifactError("the file is gone")
        first = await given_up(client, opening)
        opening.allowed.set()
        async with asyncio.timeout(20):
            while (refused := await ask(client, 150)).status != 503:
                assert refused.status == 504, "it waited while the first attempt was under way"
        assert refused.json["code"] == "not_ready"
        assert int(refused.headers["retry-after"]) >= 1
        opening.error = None
        assert (await first).status == 200
        opening.opened[0].release()

    serve(tmp_path, test)


def test_a_worn_executor_works_until_its_successor_is_there(tmp_path: Path, opening: Opening) -> None:
    async def test(client: Client) -> None:
        for _ in range(3):
            assert (await ask(client, 20_000)).status == 200
        await until(lambda: opening.begun >= 2)
        for _ in range(10):
            assert (await ask(client, 200)).status == 200
        assert (await counters(client, "tailcut_executors_opened_total"))[()] == 0
        opening.allowed.set()
        await until_metric(client, "tailcut_executors_opened_total", 1)
        assert (await ask(client, 20_000)).status == 200

    serve(tmp_path, test, ", recycle_requests=3")


def test_where_memory_is_short_a_worn_executor_ends_first_and_nobody_is_refused(
    tmp_path: Path, opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "free_bytes", lambda: 0)

    async def test(client: Client) -> None:
        for _ in range(3):
            assert (await ask(client, 20_000)).status == 200
        await until_metric(client, "tailcut_executors", 0)
        waiting = [ask(client, 20_000) for _ in range(3)]
        await until_metric(client, "tailcut_queue_rows", 3)
        opening.allowed.set()
        assert [(await each).status for each in waiting] == [200] * 3

    serve(tmp_path, test, ", recycle_requests=3")
