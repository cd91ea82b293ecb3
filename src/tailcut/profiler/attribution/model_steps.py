"""Calls of models and of preprocessing that lie in one another: the steps of a Pipeline, the modules of a network."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from tailcut.profiler.attribution.span_table import Bools, Floats, Ints
from tailcut.profiler.attribution.stages import Attribution
from tailcut.profiler.records import Stage

STEPS = frozenset({Stage.PREPROCESS, Stage.MODEL})


class ModelStep(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a model, of preprocessing, or of a step of one.

    Attributes:
        label, place: its name, and the line of the user's code that calls it.
        depth: how many others it lies in.
        per_request: calls per request.
        mean_ms: of a request, with all that it calls; own_ms: without the steps in it. Of all requests: this is what
            leaving it out wins.
        near_ms, near_share: the same as ``mean_ms`` of the requests near the p95, and their time.
    """

    stage: Stage
    label: str
    place: str
    depth: int
    per_request: float
    mean_ms: float
    own_ms: float
    near_ms: float
    near_share: float


def outermost_steps(found: Attribution, stages: frozenset[Stage] = STEPS) -> Ints:
    """Return for each span the outermost span of these stages that it lies in, itself counted; -1: none, [spans]."""
    flat = found.flat
    mine = flat.is_of(stages)
    outer = np.where(mine, np.arange(len(mine)), -1)
    for span in range(len(outer)):  # parents come before their children
        above = flat.parent[span]
        if above >= 0 and outer[above] >= 0:
            outer[span] = outer[above]
    return outer


def steps_of(found: Attribution, near: Ints) -> tuple[ModelStep, ...]:
    """List the steps, each above those that it calls, the longest first.

    Args:
        near: places of the requests near the p95.
    """
    flat = found.flat
    if not len(flat.name) or not len(near):
        return ()
    is_step = flat.is_of(STEPS)
    chosen = np.isin(flat.request, near)
    above = _above(flat.parent, is_step)
    whole_ns = _whole_ns(found, above)
    parents: dict[int, int] = {}
    for span in np.flatnonzero(is_step).tolist():
        upper = int(above[span])
        parents.setdefault(int(flat.name[span]), int(flat.name[upper]) if upper >= 0 else -1)

    def sums(values: Floats) -> Floats:
        return np.bincount(flat.name[is_step], weights=values[is_step], minlength=len(flat.names)).astype(np.float64)

    all_ns, own_ns, calls = sums(whole_ns), sums(found.self_ns.astype(np.float64)), sums(np.ones(len(is_step)))
    near_ns = sums(np.where(chosen, whole_ns, 0.0))
    requests, wall_ns = len(flat.requests), float(flat.wall_ns[near].sum()) or 1.0
    return tuple(
        ModelStep(
            stage=flat.names[name].stage,
            label=flat.names[name].label,
            place=flat.names[name].place,
            depth=depth,
            per_request=float(calls[name]) / requests,
            mean_ms=float(all_ns[name]) / requests / 1e6,
            own_ms=float(own_ns[name]) / requests / 1e6,
            near_ms=float(near_ns[name]) / len(near) / 1e6,
            near_share=float(near_ns[name]) / wall_ns,
        )
        for name, depth in _in_order(parents, near_ns)
    )


def _above(parent: Ints, is_step: Bools) -> Ints:
    """Return for each span the nearest step that it lies in; -1: none, shape [spans]."""
    above = np.full(len(parent), -1, dtype=np.int64)
    for span in range(len(parent)):
        upper = parent[span]
        if upper >= 0:
            above[span] = upper if is_step[upper] else above[upper]
    return above


def _whole_ns(found: Attribution, above: Ints) -> Floats:
    """Return each span's own time with that of all that lies in it, shape [spans]."""
    whole = found.self_ns.astype(np.float64)
    for span in range(len(whole) - 1, -1, -1):  # children come after their parents
        if above[span] >= 0:
            whole[above[span]] += whole[span]
    return whole


def _in_order(parents: Mapping[int, int], near_ns: Floats) -> list[tuple[int, int]]:
    """Lay names out as a tree: (name, depth), each above its own, the longest first."""
    children: dict[int, list[int]] = {}
    for name, parent in parents.items():
        children.setdefault(parent if parent != name else -1, []).append(name)
    found: list[tuple[int, int]] = []

    def add(name: int, depth: int) -> None:
        found.append((name, depth))
        for child in sorted(children.get(name, ()), key=lambda one: -near_ns[one]):
            add(child, depth + 1)

    for name in sorted(children.get(-1, ()), key=lambda one: -near_ns[one]):
        add(name, 0)
    return found
