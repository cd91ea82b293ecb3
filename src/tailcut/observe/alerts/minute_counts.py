"""Growth of counters by the minute, for as long as the longest window of a rule; and the stage that it points at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tailcut.observe.exposition import REQUESTS
from tailcut.observe.outcomes import SHED_CODES
from tailcut.observe.path_metrics import FEATURE_SOURCE_ERRORS, FEATURE_SOURCE_SECONDS

_MOST_KEYS = 4_000
"""Series that are kept; further ones are left out."""


class CounterKey(NamedTuple):
    """A counter of one model; ``model`` is empty for the process. Labels are sorted, without the model."""

    model: str
    name: str
    labels: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, model: str, name: str, labels: Mapping[str, str]) -> CounterKey:
        """Return the key of a series."""
        return cls(model, name, tuple(sorted(labels.items())))

    def label(self, name: str) -> str:
        """Return a label's value; empty where there is none of that name."""
        return dict(self.labels).get(name, "")


class MinuteCounts:
    """Sums of counters' growth over windows that end with the running minute. For one thread.

    Minutes are counted as they begin, whatever the wall clock says: one that is set moves no count.

    Args:
        minutes: kept of a series, by its name.
        short: minutes that are kept of all other series.
    """

    def __init__(self, minutes: Mapping[str, int], short: int) -> None:
        self._now = 0
        self._minutes = minutes
        self._short = short
        self._rings: dict[CounterKey, npt.NDArray[np.float64]] = {}
        self._named: dict[tuple[str, str], list[CounterKey]] = {}

    def begin_minute(self) -> None:
        """Begin a minute; what is older than a series keeps is forgotten."""
        self._now += 1
        for ring in self._rings.values():
            ring[self._now % len(ring)] = 0

    def add(self, key: CounterKey, growth: float, ago: int = 0) -> None:
        """Count growth in the running minute, or so many minutes before it; left out where that is not kept."""
        ring = self._rings.get(key)
        if ring is None:
            if len(self._rings) >= _MOST_KEYS:
                return
            ring = self._rings[key] = np.zeros(self._minutes.get(key.name, self._short))
            self._named.setdefault((key.name, key.model), []).append(key)
        if ago < len(ring):
            ring[(self._now - ago) % len(ring)] += growth

    def keys(self, name: str, model: str) -> Sequence[CounterKey]:
        """Return the series of a name and a model."""
        return self._named.get((name, model), ())

    def sum(self, key: CounterKey, minutes: int, ago: int = 0) -> float:
        """Return the growth in a window of so many minutes that ends ``ago`` minutes before the running one's end."""
        ring = self._rings.get(key)
        if ring is None:
            return 0.0
        return float(ring[(self._now - np.arange(ago, min(ago + minutes, len(ring)))) % len(ring)].sum())


# -- The stage where requests probably lose their time --


STAGE_NS = "stage_ns"
"""Name under which nanoseconds of answered requests are counted by stage."""

ANSWERED = "answered"
"""Name under which answered requests are counted."""

_NOW, _BEFORE = (10, 0), (50, 10)
"""Minutes that are compared, and how many minutes ago they end."""

_STAGES_OF_CODES = {
    "feature_unavailable": "features",
    "feature_failed": "features",
    "feature_timeout": "features",
    **dict.fromkeys(SHED_CODES, "queue"),
    "executor_lost": "infer",
    "inference_failed": "infer",
    "infer_timeout": "infer",
    # The log says which of the two.
    "hook_failed": "preprocess or postprocess",
    "hook_timeout": "preprocess or postprocess",
}


def failures(counts: MinuteCounts, model: str, minutes: int) -> dict[str, float]:
    """Return how many requests the server failed or shed, by code, the most frequent code first."""
    found: dict[str, float] = {}
    for key in counts.keys(REQUESTS.series[0], model):
        code, number = key.label("code"), counts.sum(key, minutes)
        if number and (code in SHED_CODES or key.label("outcome") == "5xx"):
            found[code] = found.get(code, 0.0) + number
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def likely_stage(counts: MinuteCounts, model: str, code: str = "") -> str:
    """Return the likely stage, of features with the group; empty if it is not known.

    Args:
        code: of most of the requests that failed, where it is about failures and not about time.
    """
    stage = _STAGES_OF_CODES.get(code, "") if code else _grown(counts, model, STAGE_NS, "stage")
    source = (FEATURE_SOURCE_ERRORS if code else FEATURE_SOURCE_SECONDS).series[0]
    group = _grown(counts, model, source, "group") if stage == "features" else ""
    return f"{stage}/{group}" if group else stage


def most_grown(now: Mapping[str, float], before: Mapping[str, float]) -> str:
    """Return what grew most, or, where nothing grew by 5 % of the whole, what is largest; empty if there is nothing."""
    grown = {name: value - before.get(name, 0.0) for name, value in now.items()}
    largest = max(grown, key=lambda name: grown[name], default="")
    if grown.get(largest, 0.0) < 0.05 * sum(now.values()):
        largest = max(now, key=lambda name: now[name], default="")
    return largest if now.get(largest) else ""


def _grown(counts: MinuteCounts, model: str, name: str, label: str) -> str:
    """Return the label whose counter grew most per answered request, the last minutes against the hour before."""
    found: list[dict[str, float]] = []
    for window in (_NOW, _BEFORE):
        requests = max(counts.sum(CounterKey(model, ANSWERED), *window), 1.0)
        found.append({key.label(label): counts.sum(key, *window) / requests for key in counts.keys(name, model)})
    return most_grown(*found)
