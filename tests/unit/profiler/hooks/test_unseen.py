"""Hooks change nothing for the user's code: labels that cannot be made, functions asked for their names, no request."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tailcut.profiler.hooks import layering, sqlite, starlette
from tailcut.profiler.hooks.wrapping import awaited, called
from tailcut.profiler.recording.background_calls import background_calls
from tailcut.profiler.recording.places import Places, code_of
from tailcut.profiler.recording.tracing import Trace, current, tracer
from tailcut.profiler.records import Stage


def impossible(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    raise ValueError("no label can be made of these")


def refuses(url: str) -> None:
    raise ConnectionError(url)


async def refuses_later(url: str) -> None:
    raise ConnectionError(url)


def test_a_label_that_cannot_be_made_is_not_the_users_error(request_: Trace) -> None:
    with pytest.raises(ConnectionError):
        called(refuses, Stage.HTTP, impossible)("http://[bad")
    with pytest.raises(ConnectionError):
        asyncio.run(awaited(refuses_later, Stage.HTTP, impossible)("http://[bad"))


def test_nor_is_it_outside_of_requests() -> None:
    with pytest.raises(ConnectionError):
        called(refuses, Stage.HTTP, impossible)("http://[bad")


def test_an_executor_of_ones_own_can_ask_a_function_for_its_name(request_: Trace, hooked_threads: None) -> None:
    asked: list[str] = []

    class Named(ThreadPoolExecutor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            asked.append(fn.__name__)
            return super().submit(fn, *args, **kwargs)

    def score() -> int:
        return 7

    async def main() -> int:
        with Named() as executor:
            return await asyncio.get_running_loop().run_in_executor(executor, score)

    assert asyncio.run(main()) == 7
    assert set(asked) == {"score"}


class Service:
    def __init__(self) -> None:
        self.gen = (number for number in range(3))

    def predict(self) -> None:
        """Predict."""


@contextmanager
def session() -> Iterator[None]:
    yield


def test_only_contextlibs_managers_stand_for_their_generators() -> None:
    found = code_of(Service().predict)
    assert found is not None
    assert found.co_name == "predict"
    found = code_of(session().__enter__)
    assert found is not None
    assert found.co_name == "session"


def test_an_application_called_for_no_request_works() -> None:
    """As one is that warms itself up by its own client: streams and middleware find a span, and no request."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b"1"
        yield b"2"

    def warm_up() -> tuple[str | bytes, list[bytes]]:
        span = current.get()
        assert span is not None

        async def read() -> list[bytes]:
            return [piece async for piece in starlette._Pieces(pieces(), "generate", "app.py:3")]

        return layering._framework(span), asyncio.run(read())

    with background_calls.counted(Stage.HTTP, "POST /predict"):
        assert warm_up() == ("framework", [b"1", b"2"])


class Pages:
    """Can be read as often as one likes."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"1"
        yield b"2"


def test_what_can_be_read_twice_still_can() -> None:
    async def read(pages: Any) -> list[bytes]:
        return [piece async for piece in pages]

    async def main() -> list[list[bytes]]:
        pages = starlette._Pieces(Pages(), "pages", "app.py:3")
        return [await read(pages), await read(pages)]

    assert asyncio.run(main()) == [[b"1", b"2"]] * 2


def test_an_object_that_has_every_attribute_is_not_called() -> None:
    class Proxy:
        def __getattr__(self, name: str) -> Proxy:
            return self

        def __call__(self, *args: Any) -> Any:
            raise AssertionError("a call to the remote server")

    assert "Proxy" in Places("").describe(Proxy())[0]


def test_a_class_that_refuses_to_be_inherited_stays_as_it_is() -> None:
    class Only(sqlite3.Connection):
        def __init_subclass__(cls) -> None:
            raise ValueError("registered already")

    class Traced(sqlite3.Connection):
        pass

    assert sqlite._traced(Only, Traced) is Only
    tracer.clear()


def test_a_child_whose_parent_is_gone_ends(tmp_path: Path) -> None:
    """Also where it finds out by an answer that nobody reads."""
    program = tmp_path / "orphan.py"
    program.write_text(
        "import os, time\n"
        "from tailcut.profiler.child_channel import execute_commands\n"
        "def broken(said): raise BrokenPipeError\n"
        "execute_commands({'begin': lambda: None}, broken, 0)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, str(program)], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdin is not None
        child.stdin.write(b"begin\n")
        child.stdin.flush()  # and not closed: that would end it, too
        assert child.wait(30) == -signal.SIGTERM
