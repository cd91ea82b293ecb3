"""Which functions the time of user code went to, as samples saw it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from tailcut.core.profiling.records import Moment, Recording, Stage


class FunctionShare(msgspec.Struct, frozen=True, kw_only=True):
    """A function's part of a span of user code (of the samples in the span's own time), or of what held the event loop.

    Attributes:
        samples: how often it was seen there; how often it held the loop.
    """

    function: str
    share: float
    samples: int


def functions_of(recording: Recording) -> dict[tuple[str, str], tuple[FunctionShare, ...]]:
    """Divide user code among functions, per span's (label, place)."""
    interval_ns = max(recording.sample_interval_ns, 1)
    weights: defaultdict[tuple[str, str], defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for sample in recording.samples:
        if sample.place and sample.code != ("", ""):
            weights[sample.code][sample.place] += sample.weight_ns
    return {
        span: _ranked({name: (took_ns, round(took_ns / interval_ns)) for name, took_ns in functions.items()})
        for span, functions in weights.items()
    }


def holders_of(moments: Iterable[Moment]) -> tuple[FunctionShare, ...]:
    """Say what held the event loop, by time."""
    held: defaultdict[str, list[int]] = defaultdict(list)
    for one in moments:
        if one.stage == Stage.LOOP:
            held[f"{one.label} ({one.place})" if one.place else one.label].append(one.end_ns - one.start_ns)
    return _ranked({name: (sum(times), len(times)) for name, times in held.items()})


def _ranked(functions: Mapping[str, tuple[int, int]]) -> tuple[FunctionShare, ...]:
    whole = sum(took for took, _ in functions.values()) or 1
    shares = [
        FunctionShare(function=name, share=took / whole, samples=count) for name, (took, count) in functions.items()
    ]
    return tuple(sorted(shares, key=lambda one: (-one.share, one.function)))
