"""Which functions the time of user code went to, as samples saw it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from tailcut.profiler.records import Moment, Recording, Stage

SpanName = tuple[str, str]
"""Label and place of a span."""


class FunctionShare(msgspec.Struct, frozen=True, kw_only=True):
    """A function's part of a span's own time (of the samples in it), or of what held the event loop.

    Attributes:
        function: with the line that it was seen at most.
        samples: how often it was seen there; how often it held the loop.
    """

    function: str
    share: float
    samples: int


def functions_of(recording: Recording) -> dict[SpanName, tuple[FunctionShare, ...]]:
    """Divide user code, and the framework's own time, among the user's functions, per span's (label, place).

    Shares are of all samples there: what only the framework's functions took is nobody's.
    """
    interval_ns = max(recording.sample_interval_ns, 1)
    weights: defaultdict[SpanName, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for sample in recording.samples:
        if sample.code != ("", ""):
            weights[sample.code][sample.place] += sample.weight_ns
    return {
        span: _ranked({name: (took_ns, round(took_ns / interval_ns)) for name, took_ns in _whole(lines).items()})
        for span, lines in weights.items()
    }


def holders_of(moments: Iterable[Moment]) -> tuple[FunctionShare, ...]:
    """Say what held the event loop, by time."""
    held: defaultdict[str, list[int]] = defaultdict(list)
    for one in moments:
        if one.stage == Stage.LOOP:
            held[f"{one.label} ({one.place})" if one.place else one.label].append(one.end_ns - one.start_ns)
    return _ranked({name: (sum(times), len(times)) for name, times in held.items()})


def _whole(lines: Mapping[str, int]) -> dict[str, int]:
    """Add up each function's lines, "function (file:line)", under the one that takes most.

    Not those of lambdas and the like, of which a file has many of one name.
    """
    functions: defaultdict[str, list[str]] = defaultdict(list)
    for line in lines:
        functions[line if "> (" in line else line.rpartition(":")[0]].append(line)
    return {max(own, key=lambda line: lines[line]): sum(lines[line] for line in own) for own in functions.values()}


def _ranked(functions: Mapping[str, tuple[int, int]]) -> tuple[FunctionShare, ...]:
    whole = sum(took for took, _ in functions.values()) or 1
    shares = [
        FunctionShare(function=name, share=took / whole, samples=count) for name, (took, count) in functions.items()
    ]
    return tuple(sorted((one for one in shares if one.function), key=lambda one: (-one.share, one.function)))
