"""What is drawn of a recording: requests sorted by latency as columns of stages, and trees of frames."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec
import numpy as np

from tailcut.profiler.attribution.budget import near_percentile
from tailcut.profiler.attribution.calls import shown_label
from tailcut.profiler.attribution.span_table import STAGES
from tailcut.profiler.attribution.stages import Attribution
from tailcut.profiler.records import RecordedSpan, StackSample

COLUMNS = 200
LEAST_SHARE = 0.002
"""A frame below this share of all is too narrow to be seen."""

Trail = tuple[tuple[str, str], ...]
"""(name, style) from the outermost to the innermost frame."""


class LatencyColumn(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of about the same latency.

    Args:
        from_share, to_share: of all requests by latency, 0 to 1.
        count: requests.
        max_ms: the slowest of them.
        stages_ms: mean per stage; they add up to the mean latency.
    """

    from_share: float
    to_share: float
    count: int
    max_ms: float
    stages_ms: dict[str, float]

    @property
    def mean_ms(self) -> float:
        """Mean latency."""
        return sum(self.stages_ms.values())


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the time with its parts.

    Args:
        name: what it is, with its place.
        style: the stage; empty where it is none.
        value: with its children's.
        children: the largest first.
    """

    name: str
    value: float
    style: str = ""
    children: tuple[Frame, ...] = ()


def columns_of(found: Attribution, most: int = COLUMNS) -> tuple[LatencyColumn, ...]:
    """Sort the requests by latency, and put neighbours together where there are more than ``most``."""
    wall_ns = found.flat.wall_ns
    order = np.argsort(wall_ns, kind="stable")
    count = len(order)
    edges = np.unique(np.linspace(0, count, min(count, most) + 1).round().astype(np.int64))
    columns = []
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        chosen = order[low:high]
        means = found.stage_ns[chosen].mean(axis=0) / 1e6
        columns.append(
            LatencyColumn(
                from_share=low / count,
                to_share=high / count,
                count=high - low,
                max_ms=float(wall_ns[chosen].max()) / 1e6,
                stages_ms={str(stage): round(float(ms), 6) for stage, ms in zip(STAGES, means, strict=True) if ms > 0},
            )
        )
    return tuple(columns)


def spans_tree(found: Attribution) -> Frame:
    """Nest what the requests near the p95 did: milliseconds of a request, exact to the nanosecond."""
    flat = found.flat
    near = near_percentile(flat.wall_ns / 1e6)
    times: defaultdict[Trail, float] = defaultdict(float)
    scale = 1e6 * max(len(near), 1)
    in_spans = np.zeros(len(STAGES))
    for place in near.tolist():
        low, high = int(flat.first[place]), int(flat.first[place + 1])
        paths: list[Trail] = []
        for span, own_ns in zip(flat.requests[place].spans, found.self_ns[low:high].tolist(), strict=True):
            above = paths[span.parent] if 0 <= span.parent < len(paths) else ()
            paths.append((*above, (_named(span), str(span.stage))))
            times[paths[-1]] += own_ns / scale
            in_spans[STAGES.index(span.stage)] += own_ns / scale
    for place, stage in enumerate(STAGES):
        rest = float(found.stage_ns[near, place].sum() / scale - in_spans[place])
        if rest > 1e-6:
            times[((str(stage), str(stage)),)] += rest
    return tree_of(times, "a request near the p95")


def stacks_tree(samples: Iterable[StackSample]) -> Frame:
    """Nest sampled stacks: milliseconds of all samples together."""
    times: defaultdict[Trail, float] = defaultdict(float)
    for one in samples:
        times[tuple((name, "") for name in one.stack)] += one.weight_ns / 1e6
    return tree_of(times, "all samples")


def tree_of(times: dict[Trail, float], name: str) -> Frame:
    """Make a tree from what each path took itself; paths below ``LEAST_SHARE`` of all are left out."""
    whole = sum(times.values())
    return _grown([(path, value) for path, value in times.items()], 0, name, "", whole * LEAST_SHARE)


def _grown(times: list[tuple[Trail, float]], depth: int, name: str, style: str, least: float) -> Frame:
    below: defaultdict[tuple[str, str], list[tuple[Trail, float]]] = defaultdict(list)
    for path, value in times:
        if len(path) > depth:
            below[path[depth]].append((path, value))
    children = [
        _grown(inner, depth + 1, *key, least) for key, inner in below.items() if sum(one for _, one in inner) >= least
    ]
    children.sort(key=lambda frame: (-frame.value, frame.name))
    return Frame(name=name, value=sum(value for _, value in times), style=style, children=tuple(children))


def _named(span: RecordedSpan) -> str:
    label = shown_label(span.stage, span.label) or str(span.stage)
    return f"{label} ({span.place})" if span.place and span.place not in label else label
