"""The process that runs the application: ``-m tailcut.profiler.recording.child OPTIONS``, with commands on its stdin.

It writes one JSON object per line to file descriptor ``Options.report``: first "ready" or "failed", then one reply per
command. It stops when stdin ends, because then the process that started it is gone.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from typing import Any

import msgspec

from tailcut.profiler.child_channel import ChildEvent, Options

_MOST_FRAMES = 20


def main() -> None:
    """Run the application until SIGTERM."""
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


def _say(report: int, said: ChildEvent) -> None:
    os.write(report, msgspec.json.encode(said) + b"\n")


if __name__ == "__main__":
    main()
