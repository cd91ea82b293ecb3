"""Which functions the time of user code went to, as samples saw it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from tailcut.core.profiling.attribution import Attribution
from tailcut.core.profiling.records import Moment, Recording, Request, Stage

_LEAST_SAMPLES = 20


class FunctionShare(msgspec.Struct, frozen=True, kw_only=True):
    """A function's part of a span of user code: of the samples in the span's own time, by weight."""

    function: str
    share: float
    samples: int


def functions_of(
    found: Attribution, recording: Recording, near: npt.NDArray[np.int64]
) -> dict[tuple[str, str], tuple[FunctionShare, ...]]:
    """Divide user code among functions, per span's (label, place); ("", "") is code outside all spans.

    Rests on the samples of the requests near the percentile where there are enough and each sample's request is known,
    else on those of all.
    """
    numbers = {found.flat.requests[place].number: place for place in near.tolist()}
    chosen = [one for one in recording.samples if one.place and one.request in numbers]
    counted = [one for one in recording.samples if one.place and one.request < 0 and one.code != ("", "")]
    if len(chosen) < _LEAST_SAMPLES or counted:
        numbers = {one.number: place for place, one in enumerate(found.flat.requests)}
        chosen = [one for one in recording.samples if one.place and one.request in numbers]
    weights: defaultdict[tuple[str, str], defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for sample in chosen:
        span = _code_at(found.flat.requests[numbers[sample.request]], sample.at_ns)
        if span is not None:
            weights[span][sample.place].append(sample.weight_ns)
    for sample in counted:
        weights[sample.code][sample.place].append(sample.weight_ns)
    return {span: _ranked(functions) for span, functions in weights.items()}


def holders_of(moments: Iterable[Moment]) -> tuple[FunctionShare, ...]:
    """Say what held the event loop, by time."""
    held: defaultdict[str, list[int]] = defaultdict(list)
    for one in moments:
        if one.stage == Stage.LOOP:
            held[f"{one.label} ({one.place})" if one.place else one.label].append(one.end_ns - one.start_ns)
    return _ranked(held)


def _code_at(request: Request, at_ns: int) -> tuple[str, str] | None:
    """Name the user code that a moment belongs to; None where it belongs to something else."""
    active = [number for number, span in enumerate(request.spans) if span.start_ns <= at_ns < span.end_ns]
    if not active:
        return "", ""
    span = request.spans[max(active)]  # parents come before children
    return (span.label, span.place) if span.stage == Stage.CODE else None


def _ranked(functions: Mapping[str, list[int]]) -> tuple[FunctionShare, ...]:
    whole = sum(map(sum, functions.values())) or 1
    shares = [
        FunctionShare(function=name, share=sum(weights) / whole, samples=len(weights))
        for name, weights in functions.items()
    ]
    return tuple(sorted(shares, key=lambda one: (-one.share, one.function)))
