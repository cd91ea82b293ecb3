"""Each moment of a request's wall time belongs to one stage; sums are exact, in whole nanoseconds.

A moment belongs to the innermost span that covers it; where several run side by side, each gets the same part. What no
span covers belongs to a collection of garbage, then to others' work on the event loop, where these cover it; then to
the user's code, where a sample was taken in it. Else it is between client and server (network, or waiting to be
accepted), or nobody knows.

Requests whose spans lie one after the other and inside one another, nearly all, are done at once, as sums over arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tailcut.core.profiling.flat import STAGE_AT, STAGES, Flat, Ints, flatten
from tailcut.core.profiling.gaps import Gaps, attribute_gaps
from tailcut.core.profiling.records import Recording
from tailcut.core.profiling.sweep import sweep


@dataclass(frozen=True)
class Attribution:
    """Where the time went.

    Attributes:
        flat: the requests and spans.
        stage_ns: per request and stage (in the order of ``flat.STAGES``), shape [n, stages].
        self_ns: what belongs to each span itself, shape [spans].
        gaps: what no span covers.
    """

    flat: Flat
    stage_ns: Ints
    self_ns: Ints
    gaps: Gaps


def attribute(recording: Recording) -> Attribution:
    """Attribute the wall time of every request that was answered."""
    flat = flatten(recording.requests)
    self_ns, gaps = _own(flat)
    stage_ns = attribute_gaps(flat, gaps, recording)
    stages = np.array([STAGE_AT[name.stage] for name in flat.names], dtype=np.int64)
    if len(flat.name):
        np.add.at(stage_ns, (flat.request, stages[flat.name]), self_ns)
    return Attribution(flat, stage_ns, self_ns, gaps)


def self_of(flat: Flat, values: Ints) -> Ints:
    """Take from each span's CPU time or delay what its children had of it; -1 where that is not known, shape [spans].

    Only children on the same thread have had a part, and those whose time is known.
    """
    left = values.copy()
    children = np.flatnonzero((flat.parent >= 0) & (values >= 0))
    children = children[flat.thread[children] == flat.thread[flat.parent[children]]]
    np.subtract.at(left, flat.parent[children], values[children])
    return np.where(values < 0, -1, np.maximum(left, 0))


def _own(flat: Flat) -> tuple[Ints, Gaps]:
    """Find each span's own time, and the time that no span covers."""
    order, plain = _plain(flat)
    length = flat.end_ns - flat.start_ns
    self_ns = length.copy()
    inner = np.flatnonzero(flat.parent >= 0)
    np.subtract.at(self_ns, flat.parent[inner], length[inner])
    roots = order[(flat.parent[order] < 0) & plain[flat.request[order]]]
    gaps = Gaps.between(flat, roots, np.flatnonzero(plain))
    rank = _ranks(flat)
    swept: list[tuple[int, int, int]] = []
    for number in np.flatnonzero(~plain).tolist():
        low, high = int(flat.first[number]), int(flat.first[number + 1])
        parent = flat.parent[low:high]
        found = sweep(
            flat.start_ns[low:high].tolist(),
            flat.end_ns[low:high].tolist(),
            np.where(parent >= 0, parent - low, -1).tolist(),
            rank[flat.name[low:high]].tolist(),
            (int(flat.intended_ns[number]), int(flat.done_ns[number])),
        )
        self_ns[low:high] = found.self_ns
        swept += [(number, start, end) for start, end in found.gaps]
    gaps.add(swept)
    return self_ns, gaps


def _ranks(flat: Flat) -> Ints:
    """Each name's place in the order of names, shape [names]."""
    order = sorted(range(len(flat.names)), key=flat.names.__getitem__)
    return np.argsort(np.array(order, dtype=np.int64))


def _plain(flat: Flat) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Sort the spans, and tell which requests' spans neither overlap nor leave their parents."""
    plain = np.ones(len(flat.requests), dtype=bool)
    inner = np.flatnonzero(flat.parent >= 0)
    outer = flat.parent[inner]
    leaves = (flat.start_ns[inner] < flat.start_ns[outer]) | (flat.end_ns[inner] > flat.end_ns[outer])
    plain[flat.request[inner[leaves]]] = False
    order = np.lexsort((flat.end_ns, flat.start_ns, flat.parent, flat.request))
    before, after = order[:-1], order[1:]
    siblings = (flat.request[before] == flat.request[after]) & (flat.parent[before] == flat.parent[after])
    overlap = siblings & (flat.start_ns[after] < flat.end_ns[before])
    plain[flat.request[after[overlap]]] = False
    return order, plain


def stage_column(attribution: Attribution, stage: str) -> Ints:
    """One stage's time of every request, shape [n]."""
    return attribution.stage_ns[:, [str(one) for one in STAGES].index(stage)]
