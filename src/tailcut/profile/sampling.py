"""Looks at what the threads that work on requests are doing, a few hundred times a second.

A look needs the interpreter's lock. Where nobody has it, the look comes on time and shows what threads do without it:
they wait, or compute in C. Where a thread computes in Python, the look comes late, up to ``sys.getswitchinterval()``,
and at a place that the thread chose; for runs shorter than that it never comes. Late looks are kept apart: who can be
looked at from outside (``spying``) needs none of them. Threads of no request are not looked at.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from types import CodeType, FrameType
from typing import NamedTuple

from tailcut.core.profiling.records import Sample
from tailcut.profile.tracing import Trace, active, now, tracer

_MAX_SAMPLES = 200_000
_DEPTH = 120
_IDLE_SHARE = 0.1
_LATE_NS = 500_000
_RECENT = 64
_ENTRIES = frozenset({"run", "__call__"})
"""Functions of ours that the application is called by: on the loop, by the server, in a thread."""

Line = tuple[CodeType, int]


class _Look(NamedTuple):
    at_ns: int
    weight_ns: int
    request: int
    idle: bool
    late: bool
    lines: tuple[Line, ...]
    """Innermost first."""


class Sampler:
    """A thread that samples until it is stopped.

    Args:
        interval_s: between two looks.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._looks: list[_Look] = []
        self._recent: deque[tuple[int, int, str]] = deque(maxlen=_RECENT)
        self._seen: dict[int, tuple[Trace, int, int]] = {}
        self._clocks: dict[int, int] = {}
        self._thread = threading.Thread(target=self._run, name="tailcut-sampler", daemon=True)

    @property
    def interval_ns(self) -> int:
        """Between two looks."""
        return int(self._interval_s * 1e9)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def clear(self) -> None:
        """Forget what was seen."""
        self._looks = []

    def last_place(self, ident: int, start_ns: int, end_ns: int) -> str:
        """The user's innermost line that was seen last in a thread between two times; empty where none was."""
        for thread, at_ns, place in reversed(self._recent):
            if thread == ident and start_ns <= at_ns <= end_ns and place:
                return place
        return ""

    def samples(self, *, late: bool) -> tuple[Sample, ...]:
        """Hand out what was seen on time, or late."""
        return tuple(_sample(look) for look in list(self._looks) if look.late == late)

    def _run(self) -> None:
        interval_ns = self.interval_ns
        asked_ns = now()
        while not self._ended.wait(self._interval_s):
            woke_ns = now()
            if active:
                self._look(late=woke_ns - asked_ns - interval_ns > _LATE_NS)
            else:
                self._seen.clear()
            asked_ns = now()

    def _look(self, *, late: bool) -> None:
        frames = sys._current_frames()
        at_ns = now()
        before, self._seen = self._seen, {}
        for ident, trace in list(active.items()):
            frame = frames.get(ident)
            if frame is None:
                continue
            cpu_ns = self._cpu_ns(ident)
            self._seen[ident] = (trace, at_ns, cpu_ns)
            known = before.get(ident)
            weight_ns, idle = self.interval_ns, False
            if known is not None and known[0] is trace:
                weight_ns = at_ns - known[1]
                idle = cpu_ns >= 0 and cpu_ns - known[2] < _IDLE_SHARE * weight_ns
            else:
                weight_ns = min(weight_ns, at_ns - trace.entered_ns)
            lines = _lines(frame)
            self._recent.append((ident, at_ns, tracer.places.here(frame)))
            if len(self._looks) < _MAX_SAMPLES:
                self._looks.append(_Look(at_ns, weight_ns, trace.number, idle, late, lines))

    def _cpu_ns(self, ident: int) -> int:
        try:
            clock = self._clocks.get(ident)
            if clock is None:
                clock = self._clocks[ident] = time.pthread_getcpuclockid(ident)
            return time.clock_gettime_ns(clock)
        except OSError:
            self._clocks.pop(ident, None)
            return -1


def _lines(frame: FrameType | None) -> tuple[Line, ...]:
    found: list[Line] = []
    while frame is not None and len(found) < _DEPTH:
        found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def _sample(look: _Look) -> Sample:
    places = tracer.places
    stack: list[str] = []
    place = ""
    for code, line in reversed(look.lines):
        filename = code.co_filename
        if "/tailcut/profile/" in filename:
            if code.co_name in _ENTRIES:
                # What lies outside is the server's.
                stack.clear()
            continue
        name = f"{code.co_qualname.replace('<locals>.', '')} ({places.name(filename)}:{line})"
        stack.append(name)
        if places.is_user(filename):
            place = name
    return Sample(
        stack=tuple(stack),
        at_ns=look.at_ns,
        weight_ns=look.weight_ns,
        request=look.request,
        place=place,
        idle=look.idle,
    )
