"""Counts of one model at one moment; the difference of two is what happened between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tailcut.observe.fine_histogram import PLACES
from tailcut.observe.latency_figures import STAGES, Objective, StageCounts
from tailcut.observe.recorder import Recorder
from tailcut.observe.sample import Sample

Labels = tuple[str, ...]
"""Values of a sample's labels, in its order."""


class Mark(NamedTuple):
    """Counts since the start.

    Attributes:
        requests: by (route, variant, code, cache).
        latency: by variant; see ``LatencyFigures.counts``.
        batches: by rows: how many, nanoseconds.
        samples: values of the model's sources by name and labels.
    """

    at_s: float
    requests: Mapping[tuple[str, str, str, str], int]
    latency: Mapping[str, StageCounts]
    batches: Mapping[int, tuple[int, int]]
    batch_sizes: Sequence[int]
    objectives: Sequence[Objective]
    samples: Mapping[str, Mapping[Labels, float]]

    def value(self, name: str, labels: Labels = ()) -> float | None:
        """Return the value of a sample; None where there is none."""
        return self.samples.get(name, {}).get(labels)

    def only(self, name: str) -> float | None:
        """Return the value of a sample whatever its labels are; None where there is none."""
        return next(iter(self.samples.get(name, {}).values()), None)


def mark(at_s: float, recorder: Recorder, samples: Iterable[Sample], before: Mark | None = None) -> Mark:
    """Copy the counts of a model.

    Args:
        before: the last mark; what has not changed since is shared with it.
    """
    by_name: dict[str, dict[Labels, float]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    requests = dict(recorder.requests)  # which has all that has ended counted
    known = before.latency if before is not None else {}
    latency = {name: _copy(counts, known.get(name)) for name, counts in recorder.latency.counts.items()}
    batches = {rows: (count, ns) for rows, (count, ns) in recorder.by_rows.items()}
    sizes = tuple(recorder.batch_rows.counts)
    return Mark(at_s, requests, latency, batches, sizes, recorder.latency.objectives, by_name)


def _copy(counts: StageCounts, known: StageCounts | None) -> StageCounts:
    """Return counts that do not change any more; a variant that answers nothing costs nothing."""
    if known is not None and np.array_equal(known.total_ns, counts.total_ns):
        return known
    return counts.copy()


def latency_between(old: Mark, new: Mark, variant: str | None = None) -> StageCounts:
    """Return the difference of two marks, of one variant or of all together."""
    places = np.zeros((len(STAGES), PLACES), np.int64)
    total_ns = np.zeros(len(STAGES), np.int64)
    for name in new.latency if variant is None else [variant] if variant in new.latency else []:
        now, then = new.latency[name], old.latency.get(name)
        if then is now:
            continue
        places += now.places if then is None else now.places - then.places
        total_ns += now.total_ns if then is None else now.total_ns - then.total_ns
    return StageCounts(places, total_ns)
