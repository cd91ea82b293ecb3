"""Who had a lock after whom, traced or not, and whether those that were traced stand for all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tailcut.profiler.attribution.span_table import Flat, Ints
from tailcut.profiler.records import Wait

_MOST_APART = 0.5
"""Of the time from one to the next: by how much the traced ones may have it shorter or longer than all of them."""


def stand_for_all(flat: Flat, spans: Ints, got_ns: Ints, handed: Ints) -> bool:
    """Tell whether the traced ones had it about as long as all, and are of each endpoint that waits for it.

    Args:
        spans: that waited, by when they had it (``got_ns``); -1: of a request that was not traced.
        handed: those after which another had it who had been waiting all the time.
    """
    traced = spans[handed] >= 0
    took_ns = (got_ns[handed + 1] - got_ns[handed]).astype(np.float64)
    usual_ns = float(took_ns.mean())
    if abs(float(took_ns[traced].mean()) - usual_ns) > _MOST_APART * usual_ns:
        return False
    wait, have = (flat.endpoint[flat.request[one]] for one in (spans[spans >= 0], spans[handed][traced]))
    return bool(np.isin(wait, have).all())


def in_turn(flat: Flat, spans: Ints, others: Sequence[Wait]) -> tuple[Ints, Ints, Ints]:
    """When each asked for it and had it, and its span, by when they had it; -1: of a request that was not traced."""
    start_ns = np.concatenate([flat.start_ns[spans], np.array([one.start_ns for one in others], dtype=np.int64)])
    got_ns = np.concatenate([flat.end_ns[spans], np.array([one.end_ns for one in others], dtype=np.int64)])
    order = np.argsort(got_ns, kind="stable")
    return start_ns[order], got_ns[order], np.concatenate([spans, np.full(len(others), -1)])[order]
