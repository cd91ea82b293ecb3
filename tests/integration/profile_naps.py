"""What planted delays really took, by request: copied as ``naps.py`` beside the applications that they are planted in.

Every delay is timed where it happens, so that a test compares with what took place and not with what was asked of a
busy machine. NAPS: the file that it is all written to in the end.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from fastapi import Request

number: ContextVar[str] = ContextVar("number", default="")
naps: dict[str, dict[str, list[tuple[int, int, int]]]] = defaultdict(lambda: defaultdict(list))
"""By request's number and stage: when a delay was over, how long it took, and how much of that it had no core.

A number comes again in another run.
"""


async def remember(request: Request) -> None:
    """Know the request's number wherever it is worked on: a dependency of the whole application."""
    number.set(request.headers.get("x-tailcut-profile", ""))


@contextmanager
def planted(stage: str) -> Iterator[None]:
    begun, ready = time.perf_counter_ns(), ready_ns()
    try:
        yield
    finally:
        without_core_ns = ready_ns() - ready  # asking takes time too, which a profile sees in the stage
        took(stage, time.perf_counter_ns() - begun, without_core_ns)


def ready_ns() -> int:
    """How long this thread could have run but had no core: where a profile knows it, it is a wait.

    On the event loop's thread nobody knows whose it was.
    """
    if threading.current_thread() is threading.main_thread():
        return 0
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1])


def took(stage: str, spent_ns: int, without_core_ns: int = 0) -> None:
    naps[number.get()][stage].append((time.perf_counter_ns(), spent_ns, without_core_ns))


def write() -> None:
    Path(os.environ["NAPS"]).write_text(json.dumps(naps))
