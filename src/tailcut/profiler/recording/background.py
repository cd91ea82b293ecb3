"""Work that ran after the reply of the request that began it, by function. Runs in the profiled process.

On the event loop it is known step by step: a callback, or a step of a task, that begins with the context of a request
whose reply was handed to the server. A background task of the framework's begins in the midst of such a step, right
after the reply: its hook opens a part of its own.
"""

from __future__ import annotations

import functools
import threading
from types import CodeType
from typing import Any, Literal, NamedTuple

from tailcut.profiler.attribution.background import Background
from tailcut.profiler.recording.clocks import delay_between, now, of_thread, thread_time_ns
from tailcut.profiler.recording.tracing import Open, Trace, tracer

_MOST = 200_000
_DEEPEST = 100

Where = Literal["loop", "thread"]
Name = tuple[str, str]
"""Label and place of a function."""


class Ledger:
    """CPU and wall time of such work since it was last emptied, per request and function."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, Name, Where], list[int]] = {}

    def clear(self) -> None:
        """Forget it."""
        self._found = {}

    def add(self, request: int, name: Name, where: Where, cpu_ns: int, took_ns: int) -> None:
        """Count one call, or one step of a task.

        Args:
            request: number of the request that began it.
            name: the function.
            where: what it ran on.
            cpu_ns, took_ns: CPU time, and wall time; on the event loop without waits for a core.
        """
        found, key = self._found, (request, name, where)
        if key not in found and len(found) >= _MOST:
            return
        one = found.setdefault(key, [0, 0, 0])
        # Two threads may do so at once: a call too few in many does no harm.
        one[0] += 1
        one[1] += cpu_ns
        one[2] += took_ns

    def found(self) -> tuple[Background, ...]:
        """Hand out what was counted."""
        return tuple(
            Background(
                request=request, label=label, place=place, where=where, calls=calls, cpu_ns=cpu_ns, took_ns=took_ns
            )
            for (request, (label, place), where), (calls, cpu_ns, took_ns) in list(self._found.items())
        )


background = Ledger()


class Part(NamedTuple):
    """Background work in a step of the event loop that is over."""

    name: Name
    start_ns: int
    end_ns: int


class _Active(NamedTuple):
    """The same of one that runs; ``request`` is -1 where it is of none."""

    name: Name
    request: int
    start_ns: int
    cpu_ns: int
    schedule: bytes


class Steps(threading.local):
    """The background work in the step that the event loop of this thread is at."""

    active: _Active | None = None

    def __init__(self) -> None:
        self.parts: list[Part] = []

    def begin(self, callback: Any, span: Open) -> None:
        """Know a callback that begins after the reply of its request; one of a library's has no name and is not kept.

        Args:
            callback: as the loop has it.
            span: the current one in its context.
        """
        trace = span.trace
        task = getattr(callback, "__self__", None)
        name = trace.background if trace.background is not None and id(task) == trace.task else _name_of(callback, task)
        if name is not None:
            self.open(name, trace.number)

    def open(self, name: Name, request: int) -> None:
        """Begin a part; the one before it ends."""
        self.close()
        start_ns = now()
        self.active = _Active(name, request, start_ns, thread_time_ns(), of_thread.clock.look_now(start_ns))

    def close(self) -> None:
        """End the part that runs, where one does."""
        active, self.active = self.active, None
        if active is None:
            return
        end_ns, cpu_ns = now(), thread_time_ns() - active.cpu_ns
        self.parts.append(Part(active.name, active.start_ns, end_ns))
        if active.request >= 0:
            delay_ns = max(delay_between(active.schedule, of_thread.clock.look_now(end_ns)), 0)
            background.add(active.request, active.name, "loop", cpu_ns, end_ns - active.start_ns - delay_ns)

    def end(self) -> list[Part]:
        """End the step, and hand out its parts."""
        self.close()
        parts, self.parts = self.parts, []
        return parts


steps = Steps()


def counted(function: Any, trace: Trace) -> Any:
    """A function that is handed to a thread after the reply: what it takes there is counted."""
    in_context = isinstance(function, functools.partial) and getattr(function.func, "__name__", "") == "run"
    label, place, users = tracer.places.describe(function.args[0] if in_context and function.args else function)
    if not users:
        return function

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        start_ns, cpu_ns = now(), thread_time_ns()
        try:
            return function(*args, **kwargs)
        finally:
            background.add(trace.number, (label, place), "thread", thread_time_ns() - cpu_ns, now() - start_ns)

    return called


def _name_of(callback: Any, task: Any) -> Name | None:
    """Name a callback by the user's function that it runs: of a task, the outermost; None where there is none."""
    get_coro = getattr(task, "get_coro", None)
    if get_coro is None:
        label, place, users = tracer.places.describe(callback)
        return (label, place) if users else None
    coroutine = get_coro()
    for _ in range(_DEEPEST):
        code: CodeType | None = getattr(coroutine, "cr_code", None)
        if code is None:
            return None
        if tracer.places.is_user(code.co_filename):
            return code.co_qualname.replace("<locals>.", ""), tracer.places.of_code(code)
        coroutine = getattr(coroutine, "cr_await", None)
    return None
