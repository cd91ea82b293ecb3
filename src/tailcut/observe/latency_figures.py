"""Recent latency percentiles per stage and variant, and how many requests met each objective of the SLO.

The histograms of /metrics have bounds a factor of two or more apart: they cannot tell a p95 that grew by 15 %.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from math import isnan
from typing import NamedTuple

import numpy as np

from tailcut.common.slo import LatencyObjective
from tailcut.common.timings import STAGE_NAMES
from tailcut.errors import ClientGone
from tailcut.observe.fine_histogram import PLACES, Counts, FineHistogram, percentiles_ns, places_of
from tailcut.observe.outcomes import CLIENT_CODES
from tailcut.observe.sample import Sample, counter, gauge

LATENCY = gauge(
    "tailcut_latency_seconds",
    "Recent latency percentile of answered requests by stage; stage request is the whole.",
    "variant",
    "stage",
    "quantile",
)
_OBJECTIVE = ("slo", "objective", "limit")
SLO_REQUESTS = counter(
    "tailcut_slo_requests",
    "Requests that an objective of the SLO is about: all but those that were themselves wrong.",
    *_OBJECTIVE,
)
SLO_GOOD = counter(
    "tailcut_slo_good",
    "Requests that met an objective of the SLO: answered, and within the limit in seconds if it has one.",
    *_OBJECTIVE,
)

REQUEST = "request"
"""Stands beside the stages for the whole request."""

STAGES = (*STAGE_NAMES, REQUEST)
"""What there are figures of, in the order of their rows."""

SHARES = (0.5, 0.95, 0.99)
"""Percentiles that are shown."""

ERRORS = "errors"
"""Name of the objective that requests are answered at all."""

_OFFSETS = np.arange(len(STAGES)) * PLACES


class Objective(NamedTuple):
    """An objective of the SLO, and the counts that say whether it is met.

    Attributes:
        name: "p50", "p95", "p99" or "errors".
        share: of requests that must be good.
        limit_s: within which an answer is good; None: any answer is.
        good, total: requests; those that were themselves wrong do not count.
    """

    name: str
    share: float
    limit_s: float | None
    good: int
    total: int


class LatencyFigures:
    """The figures of one model. Owned by the event loop.

    Args:
        window_s: percentiles are of the last whole window and the running one.
        monotonic_s: the clock that windows are measured by.

    Attributes:
        counts: answered requests since the start by variant: a histogram of their time in each stage of ``STAGES``.
    """

    def __init__(self, window_s: float = 60.0, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self.counts: dict[str, FineHistogram] = {}
        self._window_s = window_s
        self._monotonic_s = monotonic_s
        self._began_s = monotonic_s()
        self._window_began: dict[str, FineHistogram] = {}
        self._last_began: dict[str, FineHistogram] = {}
        self._latency: tuple[LatencyObjective, ...] = ()
        self._errors = 0.0
        self._tallies: dict[tuple[str, float, float | None], list[int]] = {}

    def set_objectives(self, latency: Sequence[LatencyObjective], errors: float) -> None:
        """Count requests against these objectives from now on; one that comes back goes on with its counts.

        Args:
            errors: largest share of requests that are not answered.
        """
        self._latency, self._errors = tuple(latency), errors
        for key in self._keys():
            self._tallies.setdefault(key, [0, 0])

    def add(self, stages_ns: Counts, variants: Sequence[str], codes: Sequence[str]) -> None:
        """Count requests that have ended.

        Percentiles are of answered requests: a refusal is quick and would make a server look fast. For the objectives
        a request that was not answered is late, however quickly it failed; one that was itself wrong does not count,
        nor does a client that left within the limit.

        Args:
            stages_ns: nanoseconds per request and stage, shape (requests, stages).
            variants, codes: of each request; "ok" is an answer.
        """
        self._turn()
        rows_ns = np.column_stack([stages_ns, stages_ns.sum(1)])
        answered = np.array([code == "ok" for code in codes])
        names = set(variants)
        for variant in names:
            mine = answered if len(names) == 1 else answered & np.array([each == variant for each in variants])
            self._count(variant, rows_ns if mine.all() else rows_ns[mine])
        if self._tallies:
            self._judge(rows_ns[:, -1], answered, codes)

    def recent(self, variant: str) -> FineHistogram:
        """Return the counts of the last window and the running one."""
        self._turn()
        now = self.counts.get(variant) or FineHistogram.empty(len(STAGES))
        return now.since(self._last_began.get(variant))

    @property
    def objectives(self) -> list[Objective]:
        """The objectives that are set, each with its counts."""
        return [Objective(*key, *self._tallies[key]) for key in self._keys()]

    def samples(self) -> Iterator[Sample]:
        """Yield the percentiles and the counts of the objectives for /metrics."""
        for variant in self.counts:
            recent = self.recent(variant).places
            for stage, values in zip(STAGES, (percentiles_ns(recent, SHARES) / 1e9).tolist(), strict=True):
                for share, value in zip(SHARES, values, strict=True) if not isnan(values[0]) else ():
                    yield LATENCY(value, variant, stage, f"{share:g}")
        for each in self.objectives:
            limit = "" if each.limit_s is None else f"{each.limit_s:g}"
            labels = each.name, objective_label(each.share), limit
            yield SLO_REQUESTS(each.total, *labels)
            yield SLO_GOOD(each.good, *labels)

    # -- Inside ------------------------------------------------------------------------------------------------------

    def _keys(self) -> list[tuple[str, float, float | None]]:
        latency = [(each.name, each.share, each.limit_s) for each in self._latency]
        return [*latency, (ERRORS, round(1 - self._errors, 12), None)] if self._latency or self._errors else []

    def _judge(self, totals_ns: Counts, answered: np.ndarray, codes: Sequence[str]) -> None:
        asked = answered | np.array([code not in CLIENT_CODES for code in codes])
        left = np.array([code == ClientGone.code for code in codes])
        for key in self._keys():
            limit_s, tally = key[2], self._tallies[key]
            within = totals_ns <= (np.inf if limit_s is None else round(limit_s * 1e9))
            # A client that left within the limit says nothing of the server; one that left later had waited too long.
            tally[0] += int(np.count_nonzero(answered & within))
            tally[1] += int(np.count_nonzero(asked & ~(left & within)))

    def _count(self, variant: str, rows_ns: Counts) -> None:
        counts = self.counts.get(variant)
        if counts is None:
            counts = self.counts[variant] = FineHistogram.empty(len(STAGES))
        # A stage that a request did not meet is not counted as one that took no time.
        places = (places_of(rows_ns) + _OFFSETS)[rows_ns != 0]
        np.add.at(counts.places.reshape(-1), places, 1)
        counts.total_ns[:] += rows_ns.sum(0)

    def _turn(self) -> None:
        """Begin another window where the running one is over."""
        passed_s = self._monotonic_s() - self._began_s
        if passed_s < self._window_s:
            return
        now = {variant: counts.copy() for variant, counts in self.counts.items()}
        self._last_began = self._window_began if passed_s < 2 * self._window_s else now
        self._window_began = now
        self._began_s += self._window_s * (passed_s // self._window_s)


def objective_label(share: float) -> str:
    """Return the label of an objective; the alerts read the error budget, 1 less this, from it."""
    return f"{share:.12g}"
