"""One request whose spans overlap: from moment to moment, which spans are innermost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Swept(NamedTuple):
    """What belongs to each span itself, and of that what the process was held up, and the intervals without a span.

    Attributes:
        shared_ns: all of each span's time of which ``self_ns`` is its part; the same where it had nobody beside it.
    """

    self_ns: list[int]
    shared_ns: list[int]
    gc_ns: list[int]
    loop_ns: list[int]
    gaps: list[tuple[int, int]]


def sweep(
    start_ns: Sequence[int],
    end_ns: Sequence[int],
    parent: Sequence[int],
    names: Sequence[Any],
    waits: Sequence[bool],
    thread: Sequence[int],
    computes: Sequence[bool],
    wall_ns: tuple[int, int],
    held_up: Mapping[int, tuple[int, int]],
) -> Swept:
    """Divide a request's time among its spans.

    Args:
        start_ns, end_ns: within ``wall_ns``.
        parent: index of the enclosing span; -1: none. Children may outlive their parents.
        names: decide, where a time does not divide evenly, who gets the odd nanosecond: never the spans' order. Any
            values that sort as the names do.
        waits: whether a span only waits. It has no part of a time in which another one does something: what it
            waits for, often enough (a future, a lock).
        thread: where each one ran.
        computes: whether a span goes on by itself while other threads work for it: only those inside it that run on
            its own thread have its time.
        wall_ns: from when to when.
        held_up: how long collections, and others' work on the loop, took from each moment at which a span starts or
            ends to the next.
    """
    above = [
        [one for one in _above(parent, number) if not computes[one] or thread[one] == thread[number]]
        for number in range(len(parent))
    ]
    rank = [(names[number], start_ns[number], end_ns[number]) for number in range(len(names))]
    events = [(at, 1, number) for number, at in enumerate(start_ns) if end_ns[number] > at]
    events += [(at, 0, number) for number, at in enumerate(end_ns) if at > start_ns[number]]
    events.sort()
    covered = [0] * len(parent)
    active: set[int] = set()
    found = Swept([0] * len(parent), [0] * len(parent), [0] * len(parent), [0] * len(parent), [])
    last = wall_ns[0]
    for at, begins, number in [*events, (wall_ns[1], 0, -1)]:
        if at > last:
            leaves = [one for one in active if not covered[one]]
            if len(leaves) > 1:
                leaves = [one for one in leaves if not waits[one]] or leaves
            if leaves:
                leaves.sort(key=rank.__getitem__)
                _divide(found, leaves, at - last, held_up.get(last, (0, 0)))
            else:
                found.gaps.append((last, at))
            last = at
        if number < 0:
            break
        (active.add if begins else active.discard)(number)
        for one in above[number]:
            covered[one] += 1 if begins else -1
    return found


def _divide(found: Swept, leaves: list[int], length_ns: int, held_ns: tuple[int, int]) -> None:
    gc_ns, loop_ns = held_ns
    for number in leaves:
        found.shared_ns[number] += length_ns
    _share((found.self_ns,), leaves, length_ns - gc_ns - loop_ns)
    if gc_ns:
        _share((found.self_ns, found.gc_ns), leaves, gc_ns)
    if loop_ns:
        _share((found.self_ns, found.loop_ns), leaves, loop_ns)


def _share(columns: tuple[list[int], ...], leaves: list[int], length_ns: int) -> None:
    each, odd = divmod(length_ns, len(leaves))
    for place, number in enumerate(leaves):
        for column in columns:
            column[number] += each + (place < odd)


def _above(parent: Sequence[int], number: int) -> list[int]:
    found: list[int] = []
    at = parent[number]
    while at >= 0 and at != number and len(found) < len(parent):
        found.append(at)
        at = parent[at]
    return found
