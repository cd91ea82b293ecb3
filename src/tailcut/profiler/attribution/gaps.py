"""Time that no span covers: on the way, held up by the process, or not known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tailcut.common.statistics import percentile
from tailcut.profiler.attribution.span_table import STAGE_AT, Flat, Ints
from tailcut.profiler.attribution.stalls import Stalls
from tailcut.profiler.records import Stage

_GC, _LOOP, _ACCEPT = STAGE_AT[Stage.GC], STAGE_AT[Stage.LOOP], STAGE_AT[Stage.ACCEPT]
_NETWORK, _UNKNOWN = STAGE_AT[Stage.NETWORK], STAGE_AT[Stage.UNATTRIBUTED]


@dataclass
class Gaps:
    """Intervals within requests: ``request`` is an index into the flat requests; each shape [gaps]."""

    request: Ints
    start_ns: Ints
    end_ns: Ints

    @staticmethod
    def between(flat: Flat, roots: Ints, requests: Ints) -> Gaps:
        """Find what lies before, between and after root spans that do not overlap.

        Args:
            roots: indices of the root spans, by request and start.
            requests: indices of the requests that they belong to; some may have none.
        """
        # Every gap ends where a root span starts, or with its request; it starts where the root before ended.
        request = np.concatenate([flat.request[roots], requests])
        end_ns = np.concatenate([flat.start_ns[roots], flat.done_ns[requests]])
        after_ns = np.concatenate([flat.end_ns[roots], flat.done_ns[requests]])
        last = np.concatenate([np.zeros(len(roots), bool), np.ones(len(requests), bool)])
        order = np.lexsort((after_ns, end_ns, last, request))
        request, end_ns, after_ns = request[order], end_ns[order], after_ns[order]
        begins = np.ones(len(request), dtype=bool)
        begins[1:] = request[1:] != request[:-1]
        start_ns = np.where(begins, flat.intended_ns[request], np.concatenate([np.zeros(1, np.int64), after_ns])[:-1])
        some = end_ns > start_ns
        return Gaps(request[some], start_ns[some], end_ns[some])

    def add(self, gaps: Sequence[tuple[int, int, int]]) -> None:
        """Take in (request, start, end)."""
        found = np.array(gaps, dtype=np.int64).reshape(len(gaps), 3)
        self.request = np.concatenate([self.request, found[:, 0]])
        self.start_ns = np.concatenate([self.start_ns, found[:, 1]])
        self.end_ns = np.concatenate([self.end_ns, found[:, 2]])


SENT_LATE = "the load generator sent late"
READ_LATE = "the load generator read late"
_NETWORK_SHARE = 0.1
"""Of the requests: how long the quickest of them take is what the way itself takes, on one machine."""


def attribute_gaps(flat: Flat, gaps: Gaps, stalls: Stalls, stage_ns: Ints, *, beside: bool = False) -> None:
    """Add what the gaps were to ``stage_ns``, shape [n, stages].

    Args:
        beside: client and server are on one machine, whose loopback is as quick for each request: what took longer
            from the client to the server was the server's not beginning.
    """
    nobody = np.where(flat.seen, flat.entered_ns, flat.sent_ns)  # on its way; the server never told of the others
    parts = (
        (flat.intended_ns, flat.sent_ns, None, _NETWORK),
        (flat.sent_ns, nobody, _ACCEPT, _NETWORK),
        (nobody, flat.left_ns, _LOOP, _UNKNOWN),
        (flat.left_ns, flat.done_ns, None, _NETWORK),
    )
    for low, high, busy, rest in parts:
        start = np.maximum(gaps.start_ns, low[gaps.request])
        end = np.minimum(gaps.end_ns, high[gaps.request])
        some = end > start
        request, start, end = gaps.request[some], start[some], end[some]
        left = end - start
        if busy is not None:
            gc_ns, busy_ns = stalls.gc_ns(start, end), stalls.loop_ns(request, start, end)
            np.add.at(stage_ns[:, _GC], request, gc_ns)
            np.add.at(stage_ns[:, busy], request, busy_ns)
            left = left - gc_ns - busy_ns
        rest_ns = np.zeros(len(flat.requests), dtype=np.int64)
        np.add.at(rest_ns, request, left)
        if beside and busy == _ACCEPT:
            late_ns = np.maximum(rest_ns - _way_ns(flat, high - low), 0)
            stage_ns[:, _ACCEPT] += late_ns
            rest_ns -= late_ns
        stage_ns[:, rest] += rest_ns


def lateness_ns(flat: Flat, *, beside: bool) -> dict[str, Ints]:
    """Return how much of the network's time was lateness of the load generator, by cause, shape [n] each.

    Args:
        beside: as of ``attribute_gaps``.
    """
    found = {SENT_LATE: flat.sent_ns - flat.intended_ns}
    if beside:
        back_ns = flat.done_ns - flat.left_ns
        found[READ_LATE] = np.maximum(back_ns - _way_ns(flat, back_ns), 0)
    return found


def _way_ns(flat: Flat, took_ns: Ints) -> int:
    """Return what the way takes when neither side is late."""
    known = took_ns[flat.seen]
    return int(percentile(known, _NETWORK_SHARE)) if len(known) else 0
