"""How the feature groups of one request were had, and when: for its trace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter_ns

from tailcut.common.trace_context import CallerSpan, RequestTrace, derived_id
from tailcut.features.entry import Entry, Outcome
from tailcut.features.groups import Group
from tailcut.features.line import Lookup

GROUP_SPANS = 64
"""Number from which on the ids of the spans of groups are derived from that of the request's."""

_MOST_WATCHED = 8
"""Keys of a group whose answers are noted one by one; of more, the end of the group's level is the group's."""

_END, _HITS, _MISSES, _STALE = 2, 3, 4, 5
"""Places in a row of ``GroupTimes.rows``."""


class Want:
    """One key of one group that a request needs, and what has become of it."""

    __slots__ = ("entry", "future", "group", "held", "lookup", "positions", "stale")

    def __init__(self, group: Group, lookup: Lookup) -> None:
        self.group = group
        self.lookup = lookup
        self.positions: list[int] = []
        """The rows that need it."""
        self.entry: Entry | None = None
        """The answer."""
        self.stale = False
        self.held: Entry | None = None
        """A value past its TTL that may be served if nothing better comes."""
        self.future: asyncio.Future[Outcome] | None = None


class GroupTimes:
    """Notes the groups of one request.

    Attributes:
        rows: per group, in the order in which they were begun: name, begin and end in nanoseconds, and how many of its
            keys were fresh in a cache, asked for, and answered past their TTL. A key without an answer is among those
            asked for, and the end of its group is -1.
    """

    def __init__(self, trace: RequestTrace, clock_ns: Callable[[], int] = perf_counter_ns) -> None:
        self.rows: list[list[str | int]] = []
        self._trace = trace
        self._clock_ns = clock_ns
        self._at: dict[Group, int] = {}

    def begin(self, groups: Sequence[Group]) -> None:
        """Note that groups are looked up from now on."""
        now_ns = self._clock_ns()
        for group in groups:
            self._at[group] = len(self.rows)
            self.rows.append([group.name, now_ns, 0, 0, 0, 0])

    def caller(self, group: Group) -> CallerSpan:
        """Return the span of a group that was begun."""
        return CallerSpan(self._trace, derived_id(self._trace.span_id, GROUP_SPANS + self._at[group]))

    def watch(self, missing: Mapping[Group, Iterable[Want]]) -> None:
        """Note when the keys that are asked for are answered; groups that miss none have ended."""
        now_ns = self._clock_ns()
        for group, at in self._at.items():
            row = self.rows[at]
            futures = [want.future for want in missing.get(group, ()) if want.future is not None]
            if len(futures) > _MOST_WATCHED:
                continue
            if not row[_END]:
                row[_END] = now_ns
            for future in futures:
                future.add_done_callback(partial(self._answered, row))

    def _answered(self, row: list[str | int], future: asyncio.Future[Outcome]) -> None:
        row[_END] = self._clock_ns()

    def end(self, groups: Sequence[Group], wants: Sequence[Want]) -> None:
        """Note what became of groups whose level has ended, well or not."""
        now_ns = self._clock_ns()
        rows = {group: self.rows[self._at.pop(group)] for group in groups}
        unanswered = set(groups) if not wants else {want.group for want in wants if want.entry is None}
        counts = {group: [0, 0, 0] for group in groups}
        for want in wants:
            counts[want.group][2 if want.stale else 1 if want.future is not None or want.entry is None else 0] += 1
        for group, row in rows.items():
            row[_HITS], row[_MISSES], row[_STALE] = counts[group]
            row[_END] = -1 if group in unanswered else row[_END] or now_ns
