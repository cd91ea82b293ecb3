"""What requests call: queries, addresses, cache commands and models, those that differ in a value only as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import msgspec
import numpy as np

from tailcut.core.profiling.attribution import Attribution
from tailcut.core.profiling.flat import Name
from tailcut.core.profiling.queries import normalise_address, normalise_command, normalise_query
from tailcut.core.profiling.records import Stage
from tailcut.core.statistics import percentile

_CALLED = frozenset({Stage.SQL, Stage.CACHE, Stage.HTTP, Stage.MODEL})
_SHOWN: dict[Stage, Callable[[str], str]] = {
    Stage.SQL: normalise_query,
    Stage.HTTP: normalise_address,
    Stage.CACHE: normalise_command,
}


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One query, address, cache command or model: how often and how long, all requests together."""

    stage: Stage
    text: str
    place: str
    calls: int
    per_request: float
    total_ms: float
    mean_ms: float
    p95_ms: float


def shown_label(stage: Stage, label: str) -> str:
    """A label without what differs from call to call."""
    shown = _SHOWN.get(stage)
    return shown(label) if shown else label


def calls_of(found: Attribution) -> tuple[Call, ...]:
    """Count and time them, all requests together; by total time."""
    flat = found.flat
    groups: defaultdict[Name, list[int]] = defaultdict(list)
    for number, name in enumerate(flat.names):
        if name.stage in _CALLED:
            groups[Name(name.stage, shown_label(name.stage, name.label), name.place)].append(number)
    length_ns = flat.end_ns - flat.start_ns
    order = np.argsort(flat.name, kind="stable")
    edges = np.searchsorted(flat.name[order], np.arange(len(flat.names) + 1))
    calls = []
    for name, numbers in groups.items():
        took_ms = np.concatenate([length_ns[order[edges[one] : edges[one + 1]]] for one in numbers]) / 1e6
        calls.append(
            Call(
                stage=name.stage,
                text=name.label,
                place=name.place,
                calls=len(took_ms),
                per_request=len(took_ms) / len(flat.requests),
                total_ms=float(took_ms.sum()),
                mean_ms=float(took_ms.mean()),
                p95_ms=percentile(took_ms, 0.95),
            )
        )
    return tuple(sorted(calls, key=lambda call: -call.total_ms))
