"""Work after the reply, by function: what it takes of a core, and of the rate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

_LEAST_NS = 50_000.0
"""Per request: less is what every task costs."""


class Background(msgspec.Struct, frozen=True, kw_only=True):
    """Work that a request began and that ran after its reply: a background task, a callback, a thread.

    Args:
        request: the request's number.
        label, place: the function, and "file.py:line" of it.
        where: what it ran on: the event loop, or another thread of the service.
        calls: how often it ran: steps of a task count one each.
        cpu_ns, took_ns: of all of them: CPU time, and wall time; on the event loop without waits for a core.
    """

    request: int
    label: str
    place: str
    where: Literal["loop", "thread"]
    calls: int
    cpu_ns: int
    took_ns: int


class LeftBehind(msgspec.Struct, frozen=True, kw_only=True):
    """One function that runs after the reply.

    Attributes:
        label, place: its name, and "file.py:line".
        where: "loop" or "thread".
        cpu_ms, took_ms: CPU and wall time per request, of all requests.
        requests: share of the requests that begin it.
        core_share: of one core's time, at the recording's rate.
    """

    label: str
    place: str
    where: str
    cpu_ms: float
    took_ms: float
    requests: float
    core_share: float


def left_behind(background: Sequence[Background], numbers: Collection[int], rate: float) -> tuple[LeftBehind, ...]:
    """List what requests leave to be done after their replies, the most CPU time first.

    Args:
        background: as recorded.
        numbers: of the requests that count, in a set.
        rate: requests per second.
    """
    found: defaultdict[tuple[str, str, str], list[Background]] = defaultdict(list)
    for one in background:
        if one.request in numbers:
            found[one.label, one.place, one.where].append(one)
    count = max(len(numbers), 1)
    lines = []
    for (label, place, where), each in found.items():
        cpu_ns, took_ns = sum(one.cpu_ns for one in each) / count, sum(one.took_ns for one in each) / count
        if max(cpu_ns, took_ns) < _LEAST_NS:
            continue
        lines.append(
            LeftBehind(
                label=label, place=place, where=where, cpu_ms=cpu_ns / 1e6, took_ms=took_ns / 1e6,
                requests=len({one.request for one in each}) / count, core_share=cpu_ns * rate / 1e9,
            )
        )  # fmt: skip
    return tuple(sorted(lines, key=lambda one: -one.cpu_ms))
