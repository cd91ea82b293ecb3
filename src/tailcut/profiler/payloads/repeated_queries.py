"""Statements that one request runs again and again: N+1 queries, and answers that are not kept."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tailcut.profiler.attribution.calls import heads_of, is_fetch, shown_label
from tailcut.profiler.attribution.span_table import Flat, Name
from tailcut.profiler.attribution.stages import Attribution

_OFTEN = 3.0
"""Times a request, of those requests that run it."""
_MUCH, _SOME = 0.05, 0.01
"""Share of the time of all requests."""
_AROUND = 0.2
"""The same from the first to the last of them, where they themselves take little."""
_OVERLAP = 0.1
_MOST = 3
_LONGEST = 90


def repeated_fetches(found: Attribution) -> tuple[str, ...]:
    """Name statements that requests run at least three times, one after the other, and that take their time so.

    Returns:
        Sentences, those first that take most time.
    """
    flat = found.flat
    heads = heads_of(flat)
    took_ns = np.bincount(heads, weights=flat.end_ns - flat.start_ns, minlength=len(heads))
    fetches = np.flatnonzero(heads == np.arange(len(heads)))
    groups: dict[Name, list[int]] = {}
    for number, name in enumerate(flat.names):
        if is_fetch(name):
            groups.setdefault(Name(name.stage, shown_label(name.stage, name.label), name.place), []).append(number)
    wall_ns = float(flat.wall_ns.sum())
    lines = []
    for name, numbers in groups.items():
        spans = fetches[np.isin(flat.name[fetches], numbers)]
        spans = spans[np.lexsort((flat.start_ns[spans], flat.request[spans]))]
        times = len(spans) / max(len(np.unique(flat.request[spans])), 1)
        share = float(took_ns[spans].sum()) / wall_ns if wall_ns else 0.0
        same = flat.request[spans][1:] == flat.request[spans][:-1]
        overlap_ns = np.maximum(flat.end_ns[spans][:-1] - flat.start_ns[spans][1:], 0)[same].sum()
        around = _from_first_to_last_ns(flat, spans) / wall_ns if wall_ns else 0.0
        much = share >= _MUCH or (share >= _SOME and around >= _AROUND)
        if times < _OFTEN or not much or overlap_ns > _OVERLAP * took_ns[spans].sum():
            continue
        text = name.label if len(name.label) <= _LONGEST else f"{name.label[:_LONGEST]}..."
        where = f" ({name.place})" if name.place else ""
        line = (
            f"{text}{where} runs {times:.3g} times a request, one after the other, {share:.0%} of the time and"
            f" {around:.0%} with the code in between: keep the answer where it is the same, else ask for all in one"
            " call, to save both; no lever does this"
        )
        lines.append((around, line))
    return tuple(line for _, line in sorted(lines, reverse=True)[:_MOST])


def _from_first_to_last_ns(flat: Flat, spans: npt.NDArray[np.int64]) -> float:
    """How long it takes from the start of a request's first one to the end of its last, all requests together."""
    count = len(flat.requests)
    first_ns, last_ns = np.full(count, np.iinfo(np.int64).max), np.zeros(count, dtype=np.int64)
    np.minimum.at(first_ns, flat.request[spans], flat.start_ns[spans])
    np.maximum.at(last_ns, flat.request[spans], flat.end_ns[spans])
    asking = np.unique(flat.request[spans])
    return float((last_ns[asking] - first_ns[asking]).sum())
