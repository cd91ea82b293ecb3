"""The lever that slow preprocessing is: which steps it is aimed at, what it leaves of them, and how."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import NamedTuple

from tailcut.profiler.forecast.phases import Part
from tailcut.profiler.forecast.state import State

SLOW = 0.05
"""Of a request's time: a step that takes less is no lever."""
_TEXTS = ("__call__", "encode", "encode_plus")


class SlowStep(NamedTuple):
    """A step of preprocessing, with all that it calls.

    Attributes:
        label, place: of its calls.
        mean_ms: of a request; share: of its time.
        left_ms: of the same in the graph, as measured; 0 where that is not known.
        into_graph: it was converted, and timed there.
    """

    label: str
    place: str
    mean_ms: float
    share: float
    left_ms: float
    into_graph: bool

    @property
    def named(self) -> str:
        """Label and place."""
        return f"{self.label} at {self.place}" if self.place and self.place not in self.label else self.label


def slow_steps(state: State, least: float = SLOW) -> tuple[SlowStep, ...]:
    """List the steps of preprocessing that take at least such a share of the requests' time, the longest first."""
    work = state.work
    took_ns: defaultdict[int, float] = defaultdict(float)
    left_ns: defaultdict[int, float] = defaultdict(float)
    total_ns = 0.0
    for job in work.jobs:
        for part in job:
            spent_ns = part.cpu_ns + part.wait_ns
            total_ns += spent_ns
            step = work.step_of(part.name)
            if step >= 0:
                took_ns[step] += spent_ns
                left_ns[step] += spent_ns * _left(state, part)
    found = []
    for step, spent_ns in sorted(took_ns.items(), key=lambda one: -one[1]):
        name, count = work.names[step], len(work.jobs)
        if spent_ns and spent_ns >= least * total_ns:
            found.append(
                SlowStep(
                    name.label,
                    name.place,
                    spent_ns / count / 1e6,
                    spent_ns / total_ns,
                    left_ns[step] / count / 1e6,
                    name.label in state.known.as_onnx,
                )
            )
    return tuple(found)


def without_slow_steps(state: State, *, bound: bool) -> State:
    """Leave of slow steps what the graph takes for them; what that is of others is not known, and taken for nothing.

    Args:
        bound: of no step anything is left.
    """
    work = state.work
    slow = {(one.label, one.place) for one in slow_steps(state, 0.0 if bound else SLOW)}

    def change(part: Part) -> Part:
        step = work.step_of(part.name)
        if step < 0 or (work.names[step].label, work.names[step].place) not in slow:
            return part
        left = 0.0 if bound else _left(state, part)
        return part._replace(cpu_ns=part.cpu_ns * left, wait_ns=part.wait_ns * left, beside_ns=part.beside_ns * left)

    return replace(state, work=replace(work, jobs=tuple(tuple(change(part) for part in job) for job in work.jobs)))


def words(state: State) -> str:
    """Say which steps are slow, what each takes, and what to do about the slowest."""
    slow = slow_steps(state)
    if not slow:
        return ""
    first, *others = slow
    more = f" (then {', '.join(f'{one.named}, {one.mean_ms:.3g} ms' for one in others[:2])})" if others else ""
    return f"{first.named} takes {first.mean_ms:.3g} ms of a request, {first.share:.0%}: {_way(state, first)}{more}"


def basis(state: State) -> tuple[str, ...]:
    """Say what is taken to be left of the slow steps, and why some have no place in a graph."""
    lines = [
        f"{one.label}: {one.mean_ms:.3g} ms measured, "
        + (f"{one.left_ms:.3g} in the graph, measured as well" if one.into_graph else "taken to go whole")
        for one in slow_steps(state)
    ]
    return (*lines, *(f"no exact form in a graph: {why}" for why in state.known.refused)) if lines else ("as recorded",)


def _left(state: State, part: Part) -> float:
    quicker = state.known.as_onnx.get(state.work.label(part.name))
    return 1.0 / quicker.mid if quicker is not None else 0.0


def _way(state: State, step: SlowStep) -> str:
    if step.into_graph:
        return f"move it into the graph (`tailcut build`), where {step.left_ms:.2g} ms are left of it, measured here"
    unknown = "measure the rest by trying it"
    if step.label.endswith(_TEXTS):
        return f"make it faster (a fast tokenizer, shorter texts); {unknown}"
    path = step.label.partition(": ")[0].replace(" > ", "' > '")
    if not state.known.refused:
        return f"vectorise it, or move it into the graph if `tailcut build` converts it; {unknown}"
    if any(f"'{path}'" in why or why.startswith("the ") for why in state.known.refused):
        return f"vectorise it: it has no exact form in a graph; {unknown}"
    return f"move it into the graph, once the steps that have no exact form there are moved out; {unknown}"
