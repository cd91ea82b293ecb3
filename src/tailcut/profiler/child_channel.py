"""The channel between the profiler and the process that runs the application: options, commands and replies.

Options go in as an argument, commands as lines on stdin, replies come out as one JSON object a line.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from tailcut.profiler.records import BackgroundCall, Moment, RecordedRequest

Loop = Literal["auto", "asyncio", "uvloop"]
"""Of the application: "auto" is the one that uvicorn takes."""

_LAST_WORDS_S = 6.0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the child.

    Args:
        target: "module:attribute" of the application.
        profiled: its requests are traced; else what it hands to its models is kept, for ``tailcut parity``.
        loop: of the application.
        report: file descriptor of the replies; the parent fills it in.
    """

    target: str
    profiled: bool
    loop: Loop = "auto"
    report: int = -1


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A route of the application, as its framework lists it."""

    path: str
    methods: tuple[str, ...]


class ChildEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the report: the application is ready or failed, or a command was executed.

    Args:
        kind: "ready", "failed" or "done".
        phase: of a failure: "import", "attribute", "call", "interface", "server", "start", "command".
        error: of a failure, in one line.
        text: the end of its traceback.
    """

    kind: str
    phase: str = ""
    error: str = ""
    text: str = ""
    port: int = 0
    loop: str = ""
    threads: int = 0
    routes: tuple[Route, ...] = ()
    versions: dict[str, str] = {}
    usual_loop: str = ""


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The server's side of a run."""

    requests: tuple[RecordedRequest, ...]
    moments: tuple[Moment, ...]
    hooks: tuple[str, ...]
    notes: tuple[str, ...]
    failures: tuple[str, ...]
    background_calls: tuple[BackgroundCall, ...] = ()
    libraries: dict[str, str] = {}


def execute_commands(
    answers: Mapping[str, Callable[[], object]], say: Callable[[ChildEvent], None], commands: int
) -> None:
    """Execute commands in a thread of its own: an application whose other threads are blocked still answers.

    A command is a line "NAME PATH"; its answer is written to that file as MessagePack. Where the commands end, so does
    the process.

    Args:
        answers: functions by the names of the commands.
        say: where it goes that a command was executed, or failed.
        commands: file descriptor that they come from.
    """

    def execute(name: str, path: str) -> ChildEvent:
        try:
            Path(path).write_bytes(msgspec.msgpack.encode(answers[name]()))
        except Exception as error:
            return ChildEvent(kind="failed", phase="command", error=one_line(error), text=traceback.format_exc())
        return ChildEvent(kind="done")

    def read() -> None:
        try:
            for line in _lines(commands):
                name, _, path = line.strip().partition(" ")
                if name in answers:
                    say(execute(name, path))
        finally:  # also where nobody reads the answer: the parent was killed, and nothing else stops this process
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(_LAST_WORDS_S)
            os._exit(1)

    threading.Thread(target=read, name="tailcut-commands", daemon=True).start()


def _lines(descriptor: int) -> Iterator[str]:
    """Lines as they come. No file object: at the end, the interpreter would wait for the lock that its reader holds."""
    rest = b""
    while data := os.read(descriptor, 65536):
        *lines, rest = (rest + data).split(b"\n")
        yield from (line.decode() for line in lines)


def one_line(error: BaseException) -> str:
    """An exception's class and the first line of its text."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
