"""Rows that are asked for one by one: those that follow one another closely are one span of their query."""

from __future__ import annotations

import itertools

from tailcut.profiler.recording.tracing import Open

JOIN_NS = 8_000
"""With less than this in between: most of it is the hook's own."""
_CURSORS = 8
"""So many spans are looked through for those of other cursors, whose rows are read in turn with this one's."""


def join_rows(last: Open, start_ns: int, end_ns: int, cpu_ns: int) -> bool:
    """Make rows that were read from ``start_ns`` to ``end_ns`` a part of the span of those before, where it can be.

    Where rows of other cursors were read in between, their spans move by as much as this one grows: they take as long
    as they did, and no time is two queries'.
    """
    others = _since(last, start_ns)
    if others is None:
        return False
    added_ns = end_ns - (others[0] if others else last).end_ns
    last.end_ns += added_ns
    for other in others:
        other.start_ns += added_ns
        other.end_ns += added_ns
    if last.cpu_ns >= 0:
        last.cpu_ns += cpu_ns
    return True


def _since(last: Open, start_ns: int) -> list[Open] | None:
    """Find the spans of rows that were read on its thread since ``last``, the latest first.

    Returns:
        None where something else came in between, or too long a time.
    """
    found: list[Open] = []
    for span in itertools.islice(reversed(last.trace.spans), _CURSORS):
        if span.thread != last.thread:
            continue
        if start_ns - span.end_ns >= JOIN_NS:
            return None
        if span is last:
            return found
        if not span.more or span.parent is not last.parent:
            return None
        found.append(span)
        start_ns = span.start_ns
    return None
