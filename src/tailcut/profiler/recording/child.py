"""The process that runs the application: ``-m tailcut.profiler.recording.child OPTIONS``, with commands on its stdin.

It says on file descriptor ``Options.report`` what happens, one JSON object a line: ready or failed first, then one
answer per command. Where stdin ends, whoever started it is gone, and it stops.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec

from tailcut.profiler.attribution.background import Background
from tailcut.profiler.records import BackgroundCall, Moment, Request, Wait

Loop = Literal["auto", "asyncio", "uvloop"]
"""Of the application: "auto" is the one that uvicorn takes."""

_LAST_WORDS_S = 6.0
_MOST_FRAMES = 20


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

    requests: tuple[Request, ...]
    moments: tuple[Moment, ...]
    hooks: tuple[str, ...]
    notes: tuple[str, ...]
    failures: tuple[str, ...]
    cpu_ns: int
    delay_ns: int
    background_calls: tuple[BackgroundCall, ...] = ()
    background: tuple[Background, ...] = ()
    waits: tuple[Wait, ...] = ()
    libraries: dict[str, str] = {}
    executors: dict[str, int] = {}


def main() -> None:
    """Run the application until told to stop."""
    options = msgspec.json.decode(sys.argv[1], type=Options)
    signal.signal(signal.SIGUSR1, _print_tasks)
    # It works whatever the thread does; what a loop that is idle waits for stands in no frame of the thread.
    faulthandler.register(signal.SIGUSR1, all_threads=False, chain=True)
    os.set_inheritable(options.report, False)
    commands = _take_stdin()
    sys.argv = ["uvicorn", options.target]
    from tailcut.profiler.recording.app_server import run_application

    sys.exit(run_application(options, lambda said: _say(options.report, said), commands))


def _print_tasks(*_: object) -> None:
    """Print where the tasks of the main thread's loop await, innermost call first, as ``faulthandler`` does it."""
    import asyncio  # the hooks are to see who imports it first

    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:
        return  # there is no loop
    for task in tasks:
        frames: list[str] = []
        awaits: Any = task.get_coro()
        while awaits is not None and len(frames) < _MOST_FRAMES:
            frame = getattr(awaits, "cr_frame", None)
            if frame is not None:
                code = frame.f_code
                frames.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
            awaits = getattr(awaits, "cr_await", None)
        if frames:
            sys.stderr.write("\n".join(["A task awaits (most recent call first):", *reversed(frames), ""]))
    sys.stderr.flush()


def _take_stdin() -> int:
    """Keep the commands for this module: the application, and what it starts, find an empty stdin."""
    commands = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return commands


def _say(report: int, said: Said) -> None:
    os.write(report, msgspec.json.encode(said) + b"\n")


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


if __name__ == "__main__":
    main()
