"""Applications that need an event loop of their own: how that shows, and what to do."""

from __future__ import annotations

import re
from typing import NamedTuple

from tailcut.profiler.assembling import LIBRARY

_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
_OWN = "/tailcut/profiler/"
_LOOPS = (
    ("/asyncio/", {"run", "run_forever", "run_until_complete"}),
    ("/trio/_core/", {"run"}),
    ("/granian/", {"serve", "_serve", "_serve_loop", "startup"}),
    ("/hypercorn/", {"run", "serve", "worker_serve"}),
    ("/gunicorn/", {"run"}),
    ("/waitress/", {"run", "serve"}),
    ("/socketserver.py", {"serve_forever"}),
)
"""Files of libraries and functions in them that end when a loop or a server does."""

_WAYS = (
    (
        re.compile(r"(attached|belongs|bound) to a different (event )?loop|different event loop|Event loop is closed"),
        "it uses objects of its own event loop, but is served on another, here as in production: create tasks, "
        "futures, locks and clients in its lifespan or in the request",
    ),
    (
        # As trio and asyncio say it.
        re.compile(r"^RuntimeError: (must be called from async context$|Task got bad yield: .*\btrio\b)"),
        "it is written for trio, and this serves it on asyncio as uvicorn does: serve it as you do in production and"
        " profile it from outside, tailcut profile http://127.0.0.1:PORT/PATH",
    ),
    (
        re.compile(
            r"cannot be called from a running event loop|event loop is already running"
            r"|Cannot run the event loop while another loop is running"
        ),
        "it starts an event loop inside the serving one: use await instead, or a synchronous handler, which runs in a "
        "thread",
    ),
)
"""What exceptions of applications say that do not get the loop that they need, and the way out."""


class Stuck(NamedTuple):
    """An import that does not end.

    Attributes:
        place: "file:line" of the application's own code; empty where there is none.
        looping: an event loop or a server runs in it.
    """

    place: str
    looping: bool


def stuck_import(log: str) -> Stuck | None:
    """Find an import that had not ended in a dump of the main thread's stack, innermost call first; None: no import."""
    frames = _FRAME.findall(log)
    if not any(file.endswith(f"{_OWN}recording/importing.py") for file, _, _ in frames):
        return None
    theirs = (f"{file}:{line}" for file, line, _ in frames if not LIBRARY.search(file) and _OWN not in file)
    looping = any(
        LIBRARY.search(file) and part in file and function in functions
        for file, _, function in frames
        for part, functions in _LOOPS
    )
    return Stuck(next(theirs, ""), looping)


def way_out(trace: str) -> str:
    """Say what an application that failed for want of its own loop needs; empty where that is not why it failed.

    Args:
        trace: its traceback, or what it printed.
    """
    lines = [line.lstrip(" |") for line in trace.splitlines()]  # of a group of exceptions they are indented
    errors = [line for line in lines if line.startswith(("RuntimeError: ", "ValueError: "))]
    return next((way for pattern, way in _WAYS if any(pattern.search(line) for line in errors)), "")
