"""The channel between the profiler and the process that runs the application: options, commands and replies.

Options go in as an argument, commands as lines on stdin, replies come out as one JSON object a line.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec

from tailcut.profiler.records import BackgroundCall, Moment, RecordedRequest

Loop = Literal["auto", "asyncio", "uvloop"]
"""Of the application: "auto" is the one that uvicorn takes."""

_LAST_WORDS_S = 6.0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the child is told when it starts.

    Args:
        profiled: whether where its time goes is traced.
        inputs: whether what it hands to its models is kept.
    """

    target: str
    report: int
    profiled: bool
    loop: Loop = "auto"
    inputs: bool = False


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A route that the framework told of."""

    path: str
    methods: tuple[str, ...]


class Said(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the report.

    Args:
        kind: "ready", "failed", "begun" or "written".
        phase: of a failure: "import", "attribute", "call", "interface", "server", "start", "command".
        error: what was raised, in one line.
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


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """The server's side of a run, as it is written to a file."""

    requests: tuple[RecordedRequest, ...]
    moments: tuple[Moment, ...]
    hooks: tuple[str, ...]
    notes: tuple[str, ...]
    failures: tuple[str, ...]
    cpu_ns: int
    background_calls: tuple[BackgroundCall, ...] = ()
    libraries: dict[str, str] = {}


class Commands:
    """Reads commands in a thread of its own, so that an application that holds everything else still can be asked.

    Args:
        answers: what to do for each command.
        say: where its answer goes.
        commands: file descriptor that they come from, one a line.
    """

    def __init__(self, answers: dict[str, Callable[[str], Said]], say: Callable[[Said], None], commands: int) -> None:
        self._answers = answers
        self._say = say
        self._commands = commands
        threading.Thread(target=self._read, name="tailcut-commands", daemon=True).start()

    def _read(self) -> None:
        try:
            for line in _lines(self._commands):
                name, _, argument = line.strip().partition(" ")
                if name in self._answers:
                    self._say(self._answer(name, argument))
        finally:  # also where nobody reads the answer: whoever asked was killed, and nobody else stops this process
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(_LAST_WORDS_S)
            os._exit(1)

    def _answer(self, name: str, argument: str) -> Said:
        try:
            return self._answers[name](argument)
        except Exception as error:
            return Said(kind="failed", phase="command", error=facts(error), text=traceback.format_exc())


def _lines(descriptor: int) -> Iterator[str]:
    """Lines as they come. No file object: at the end, the interpreter would wait for the lock that its reader holds."""
    rest = b""
    while data := os.read(descriptor, 65536):
        *lines, rest = (rest + data).split(b"\n")
        yield from (line.decode() for line in lines)


def facts(value: Any) -> str:
    """An exception in one line."""
    text = str(value).strip()
    return f"{type(value).__name__}: {text.splitlines()[0]}" if text else type(value).__name__
