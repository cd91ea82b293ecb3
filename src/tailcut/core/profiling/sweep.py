"""One request whose spans overlap: from moment to moment, which spans are innermost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tailcut.core.profiling.flat import Name


class Swept(NamedTuple):
    """What belongs to each span, and the intervals that none covers."""

    self_ns: list[int]
    gaps: list[tuple[int, int]]


def sweep(
    start_ns: Sequence[int],
    end_ns: Sequence[int],
    parent: Sequence[int],
    names: Sequence[int] | Sequence[Name],
    wall_ns: tuple[int, int],
) -> Swept:
    """Divide a request's time among its spans.

    Args:
        start_ns, end_ns: within ``wall_ns``.
        parent: index of the enclosing span; -1: none. Children may outlive their parents.
        names: decide, where a time does not divide evenly, who gets the odd nanosecond: never the spans' order. Any
            values that sort as the names do.
        wall_ns: from when to when.
    """
    above = [_above(parent, number) for number in range(len(parent))]
    rank = [(names[number], start_ns[number], end_ns[number]) for number in range(len(names))]
    events = [(at, 1, number) for number, at in enumerate(start_ns) if end_ns[number] > at]
    events += [(at, 0, number) for number, at in enumerate(end_ns) if at > start_ns[number]]
    events.sort()
    covered = [0] * len(parent)
    active: set[int] = set()
    found = Swept([0] * len(parent), [])
    last = wall_ns[0]
    for at, begins, number in [*events, (wall_ns[1], 0, -1)]:
        if at > last:
            leaves = [one for one in active if not covered[one]]
            if len(leaves) == 1:
                found.self_ns[leaves[0]] += at - last
            elif leaves:
                _share(found, at - last, sorted(leaves, key=rank.__getitem__))
            else:
                found.gaps.append((last, at))
            last = at
        if number < 0:
            break
        (active.add if begins else active.discard)(number)
        for one in above[number]:
            covered[one] += 1 if begins else -1
    return found


def _share(found: Swept, length_ns: int, leaves: list[int]) -> None:
    each, odd = divmod(length_ns, len(leaves))
    for place, number in enumerate(leaves):
        found.self_ns[number] += each + (place < odd)


def _above(parent: Sequence[int], number: int) -> list[int]:
    found: list[int] = []
    at = parent[number]
    while at >= 0 and at != number and len(found) < len(parent):
        found.append(at)
        at = parent[at]
    return found
