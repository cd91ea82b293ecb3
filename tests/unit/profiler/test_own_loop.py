"""What applications that need an event loop of their own are told, by the very exceptions that Python raises."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable

import pytest

from tailcut.profiler.own_loop import stuck_import, way_out


async def of_another_loop() -> None:
    loop = asyncio.new_event_loop()
    try:
        await loop.create_future()
    finally:
        loop.close()


async def ensured_in_another() -> None:
    loop = asyncio.new_event_loop()
    try:
        await asyncio.ensure_future(loop.create_future(), loop=asyncio.get_running_loop())
    finally:
        loop.close()


async def closed() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    loop.call_soon(print)


async def run_within() -> None:
    coroutine = asyncio.sleep(0)
    try:
        asyncio.run(coroutine)
    finally:
        coroutine.close()


async def another_within() -> None:
    loop = asyncio.new_event_loop()
    coroutine = asyncio.sleep(0)
    try:
        loop.run_until_complete(coroutine)
    finally:
        coroutine.close()
        loop.close()


async def in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(run_within())


def raised(failing: Callable[[], Awaitable[None]]) -> str:
    async def main() -> None:
        await failing()

    try:
        asyncio.run(main())
    except BaseException:
        return traceback.format_exc()
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("failing", "says"),
    [
        (of_another_loop, "create tasks, futures, locks and clients in its lifespan"),
        (ensured_in_another, "create tasks, futures, locks and clients in its lifespan"),
        (closed, "create tasks, futures, locks and clients in its lifespan"),
        (run_within, "use await instead"),
        (another_within, "use await instead"),
        (in_a_group, "use await instead"),
    ],
)
def test_the_exception_says_the_way_out(failing: Callable[[], Awaitable[None]], says: str) -> None:
    assert says in way_out(raised(failing))


def test_other_exceptions_do_not() -> None:
    async def failing() -> None:
        raise RuntimeError("CUDA out of memory")

    assert way_out(raised(failing)) == ""


IMPORTING = (
    '  File "/usr/lib/python3/site-packages/tailcut/profiler/recording/importing.py", line 43 in load_application\n'
)
LOOP = '  File "/usr/lib/python3.11/asyncio/base_events.py", line 607 in run_forever\n'


def dumped(*frames: str) -> str:
    return "Stack (most recent call first):\n" + "".join(frames)


def test_an_import_that_does_not_end_is_told_from_one_that_only_takes_long() -> None:
    own = '  File "/home/me/app/serving.py", line 8 in <module>\n'
    found = stuck_import(dumped(LOOP, own, IMPORTING))
    assert found is not None
    assert found.looping
    assert found.place == "/home/me/app/serving.py:8"
    # A library that is being imported, and an application in a folder of that name, run no loop.
    granian = '  File "/usr/lib/python3.11/site-packages/granian/server/mp.py", line 3 in <module>\n'
    mine = '  File "/home/me/asyncio/app.py", line 3 in run\n'
    for frame in (granian, mine):
        found = stuck_import(dumped(frame, own, IMPORTING))
        assert found is not None
        assert not found.looping
    assert stuck_import(dumped(LOOP, own)) is None
