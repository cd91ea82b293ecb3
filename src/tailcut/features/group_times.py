"""How the feature groups of one request were had, and when: for its trace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any

from tailcut.features.entry import Entry, Outcome
from tailcut.features.groups import Group
from tailcut.features.line import Lookup
from tailcut.observe.traces.trace_context import CallerSpan, RequestTrace

GROUP_SPANS = 64
"""Number from which on the ids of the spans of groups are derived from that of the request's."""

_MOST_WATCHED = 8
"""Keys of a group whose answers are noted one by one; of more, the end of the group's level is the group's."""

_GROUPS, _BEGAN_NS, _ASKED_NS, _ENDED_NS, _ENDS_NS, _WANTS = range(6)
"""Places in what is noted of groups that are fetched together: them, when that began, when the cache had been asked,
when it ended, when the last key of each was answered, and the keys. A list: an object would cost twice as much."""


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
    """Notes the groups of one request, as little as possible: few requests are kept.

    Iterated, it yields per group, in the order in which they were fetched: name, begin and end in nanoseconds, and how
    many of its keys were fresh in a cache, asked for, and answered past their TTL. A key without an answer is among
    those asked for, and the end of its group is -1.

    Args:
        identify: returns the request's place in its trace.
    """

    __slots__ = ("_clock_ns", "_identify", "_last", "_levels")

    def __init__(self, identify: Callable[[], RequestTrace], clock_ns: Callable[[], int] = perf_counter_ns) -> None:
        self._levels: list[list[Any]] = []
        self._last: list[Any] = []
        self._identify = identify
        self._clock_ns = clock_ns

    def begin(self, groups: Sequence[Group]) -> None:
        """Note that groups are looked up from now on."""
        self._last = [groups, self._clock_ns(), 0, 0, None, ()]
        self._levels.append(self._last)

    def caller(self, group: Group) -> CallerSpan:
        """Return the span of a group that was begun."""
        begun = [each for level in self._levels for each in level[_GROUPS]]
        return CallerSpan(self._identify, GROUP_SPANS + begun.index(group))

    def watch(self, missing: Mapping[Group, Sequence[Want]]) -> None:
        """Note that keys are asked for. Of one group the end is its level's; of several it is noted for each."""
        level = self._last
        if len(level[_GROUPS]) == 1:
            return
        level[_ASKED_NS] = self._clock_ns()
        if len(missing) == 1:
            return
        ends_ns: dict[Group, int] = {}
        level[_ENDS_NS] = ends_ns
        for group, wants in missing.items():
            if len(wants) <= _MOST_WATCHED:
                for want in wants:
                    if want.future is not None:
                        want.future.add_done_callback(partial(self._answered, ends_ns, group))

    def _answered(self, ends_ns: dict[Group, int], group: Group, future: asyncio.Future[Outcome]) -> None:
        ends_ns[group] = self._clock_ns()

    def end(self, wants: Sequence[Want]) -> None:
        """Note that the groups that were begun last have ended, well or not."""
        level = self._last
        level[_ENDED_NS] = self._clock_ns()
        level[_WANTS] = wants

    def __iter__(self) -> Iterator[tuple[str, int, int, int, int, int]]:
        for groups, began_ns, asked_ns, level_ended_ns, ends_ns, wants in self._levels:
            counts = {group: [0, 0, 0] for group in groups}
            unanswered = set() if wants else set(groups)
            for want in wants:
                is_missed = want.future is not None or want.entry is None
                counts[want.group][2 if want.stale else 1 if is_missed else 0] += 1
                if want.entry is None:
                    unanswered.add(want.group)
            for group in groups:
                hits, misses, stale = counts[group]
                ended_ns = level_ended_ns if misses or stale or not asked_ns else asked_ns
                if ends_ns is not None:
                    ended_ns = ends_ns.get(group, ended_ns)
                yield group.name, began_ns, -1 if group in unanswered else ended_ns, hits, misses, stale
