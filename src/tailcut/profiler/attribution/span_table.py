"""A recording's requests as arrays: one row per request and one per span, cut to the request's wall time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tailcut.profiler.records import RecordedRequest, Recording, Stage

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

STAGES: tuple[Stage, ...] = tuple(Stage)
STAGE_AT = {stage: place for place, stage in enumerate(STAGES)}


class Name(NamedTuple):
    """What a span was, whichever request it belongs to."""

    stage: Stage
    label: str
    place: str


@dataclass(frozen=True)
class Flat:
    """Requests and spans, in the order of the recording.

    Attributes:
        requests: those that were answered, as recorded; n of them.
        intended_ns, sent_ns, entered_ns, left_ns, done_ns: never falling from one to the next, shape [n].
        seen: whether the server recorded when it began, shape [n].
        first: index of each request's first span, and the number of all at the end, shape [n + 1].
        request: of each span, its request's index, shape [spans].
        start_ns, end_ns: within the request's wall time, shape [spans].
        parent: index of the enclosing span among all; -1: none, shape [spans].
        thread: where it ran, shape [spans].
        cpu_ns, delay_ns: as recorded, children included; -1: not known, shape [spans].
        name: index into ``names``, shape [spans].
    """

    requests: tuple[RecordedRequest, ...]
    intended_ns: Ints
    sent_ns: Ints
    entered_ns: Ints
    left_ns: Ints
    done_ns: Ints
    seen: Bools
    first: Ints
    request: Ints
    start_ns: Ints
    end_ns: Ints
    parent: Ints
    thread: Ints
    cpu_ns: Ints
    delay_ns: Ints
    name: Ints
    names: tuple[Name, ...]

    def is_of(self, stages: Collection[Stage]) -> Bools:
        """Tell which spans are of some stages, shape [spans]."""
        return self.which(lambda name: name.stage in stages)

    def which(self, tell: Callable[[Name], bool]) -> Bools:
        """Tell which spans have a name that a function is true for, shape [spans]."""
        return np.array([tell(name) for name in self.names], dtype=bool)[self.name]

    @cached_property
    def stage(self) -> Ints:
        """Index of each span's stage in ``STAGES``, shape [spans]."""
        return np.array([STAGE_AT[name.stage] for name in self.names], dtype=np.int64)[self.name]

    @property
    def wall_ns(self) -> Ints:
        """From the intended send time to the whole reply, shape [n]."""
        return self.done_ns - self.intended_ns


def is_good(request: RecordedRequest) -> bool:
    """Tell whether a request got a good answer (status below 400); others have no time that could be compared."""
    return request.done_ns >= request.intended_ns and 0 <= request.status < 400


def answered_ms(recording: Recording) -> Floats:
    """How long requests took that got a good answer, in milliseconds, shape [answered]."""
    good = filter(is_good, recording.requests)
    return np.array([one.done_ns - one.intended_ns for one in good], dtype=np.float64) / 1e6


def flatten(requests: Sequence[RecordedRequest]) -> Flat:
    """Lay out the requests that got a good answer."""
    good = tuple(filter(is_good, requests))
    intended_ns, done_ns = _column([one.intended_ns for one in good]), _column([one.done_ns for one in good])
    sent_ns = np.clip(_column([one.sent_ns for one in good]), intended_ns, done_ns)
    entered_ns = np.clip(_column([one.entered_ns for one in good]), sent_ns, done_ns)
    left_ns = _column([one.left_ns for one in good])
    spans = [span for one in good for span in one.spans]
    counts = np.fromiter((len(one.spans) for one in good), np.int64, len(good))
    first = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    request = np.repeat(np.arange(len(good)), counts)
    names: dict[Name, int] = {}
    name = _column([names.setdefault(Name(one.stage, one.label, one.place), len(names)) for one in spans])
    parent = _column([span.parent for span in spans])
    low, high = intended_ns[request], done_ns[request]
    start_ns = np.clip(_column([span.start_ns for span in spans]), low, high)
    return Flat(
        requests=good,
        intended_ns=intended_ns,
        sent_ns=sent_ns,
        entered_ns=entered_ns,
        left_ns=np.where(left_ns < 0, done_ns, np.clip(left_ns, entered_ns, done_ns)),
        done_ns=done_ns,
        seen=np.fromiter((one.entered_ns >= 0 for one in good), bool, len(good)),
        first=first,
        request=request,
        start_ns=start_ns,
        end_ns=np.maximum(np.clip(_column([span.end_ns for span in spans]), low, high), start_ns),
        parent=np.where(parent >= 0, parent + first[request], -1),
        thread=_column([span.thread for span in spans]),
        cpu_ns=_column([span.cpu_ns for span in spans]),
        delay_ns=_column([span.delay_ns for span in spans]),
        name=name,
        names=tuple(names),
    )


def _column(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64).reshape(len(values))
