"""A runtime stays open under the streams that use it, whatever becomes of its executor."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import promotion_kit
from tests.app_kit import Client, counters, deployment, running, until_metric
from tests.unit.protocol.test_app_generate import GENERATE, Stream
from tests.wait_kit import until

from tailcut.common.tensors import Arrays
from tailcut.errors import InferenceError
from tailcut.models import pool, variant_loader
from tailcut.serving.engine import Engine

PATIENT = {"x-tailcut-timeout-ms": "20000"}
ONE_THREAD = 'pool={executor="thread", executors=1, recycle_requests=3}'
ROW = {"x": [1, 2]}


class Talking:
    """A streaming runtime that cannot be used once it is closed; its streams wait for ``go`` after the first part."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.closed = threading.Event()

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        return {"y": inputs["x"][:, 0], "z": inputs["x"]}

    def stream(self, inputs: Arrays, outputs: Sequence[str]) -> Iterator[Arrays]:
        for n in range(1, 4):
            if self.closed.is_set():
                raise InferenceError("the runtime was closed under its stream")
            yield {"y": np.full(1, n, np.float32), "z": inputs["x"]}
            assert self.go.wait(20)

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Talking]:
    """Every runtime that is opened."""
    found: list[Talking] = []

    def open_runtime(*_: Any, **__: Any) -> Talking:
        found.append(Talking())
        return found[-1]

    monkeypatch.setattr(variant_loader, "open_runtime", open_runtime)
    return found


async def begun(client: Client) -> Stream:
    """A stream whose first part has come and whose second waits."""
    stream = Stream(client.app, ROW, PATIENT)
    await stream.wait_events(1)
    return stream


async def wear_out(client: Client) -> None:
    for _ in range(3):
        assert (await client.post(GENERATE, ROW, PATIENT)).status == 200


async def replaced(client: Client) -> None:
    """Wait until an executor has been replaced and its closing has come to its end."""
    pool = client.app.engine.opened.pool
    await until(lambda: pool.replaced and pool.opened and not pool._closing)


def test_a_stream_ends_whole_when_its_executor_is_replaced(tmp_path: Path, opened: list[Talking]) -> None:
    async def main() -> None:
        async with running(deployment(tmp_path, overrides=[ONE_THREAD])) as client:
            stream = await begun(client)
            await wear_out(client)
            await replaced(client)
            first, second = opened
            assert not first.closed.is_set()
            first.go.set()
            assert [event.get("y") for event in await stream.end()] == [1.0, 2.0, 3.0]
            assert await asyncio.to_thread(first.closed.wait, 20), "nobody uses it any more"
            assert not second.closed.is_set()

    asyncio.run(main())


def test_a_worn_executor_that_must_go_first_waits_for_its_streams(
    tmp_path: Path, opened: list[Talking], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def none_free() -> int:
        nonlocal looks
        looks += 1
        return 0

    monkeypatch.setattr(pool, "free_bytes", none_free)

    async def main() -> None:
        async with running(deployment(tmp_path, overrides=[ONE_THREAD])) as client:
            stream = await begun(client)
            await wear_out(client)
            await until(lambda: looks >= 2)
            assert (await counters(client, "tailcut_executors"))[()] == 1, "it answers on"
            opened[0].go.set()
            assert len(await stream.end()) == 3
            await replaced(client)
            assert opened[0].closed.is_set()

    asyncio.run(main())


def test_a_promotion_closes_nothing_under_a_stream_whose_client_left(tmp_path: Path, opened: list[Talking]) -> None:
    """Its request has ended, but its thread is still making a part."""

    async def main() -> None:
        manifest = promotion_kit.deployment(tmp_path, overrides=['serve.follow="1h"'])
        promotions = promotion_kit.Promotions(manifest)
        promotions.promote(promotions.add(1.0))
        async with running(manifest) as client:
            engine: Engine = client.app.engine
            assert engine.follower is not None
            stream, streaming = await begun(client), opened[0]
            promotions.promote(promotions.add(2.0))
            await engine.follower.look()
            stream.leave()
            await stream.end()
            await until_metric(client, "tailcut_variants_retiring", 0)
            assert not streaming.closed.is_set()
            streaming.go.set()
            assert await asyncio.to_thread(streaming.closed.wait, 20)

    asyncio.run(main())
