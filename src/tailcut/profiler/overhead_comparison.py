"""How much longer the same requests take on one side than on the other, near a percentile of their latency.

Both sides of a round have the same requests at the same times, so that they can be compared one by one. A p95 of some
hundred requests is only a guess: whatever stalls the machine for a moment makes some of either side slow, and their p95
is one of those. So what is compared are the requests that are slow on both sides together, and of their quotients the
median is taken. That a request belongs to them depends on neither side more than on the other. Where only some
requests are traced, these and the others have a median each, and count as many as they are: the median of both together
would not hear of the few.

A process has its luck (where its memory lies, in which order its sets iterate) from start to end, so that there are
several per side, and the interval is one for processes first and rounds second.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import le
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tailcut.common.statistics import percentile, rank
from tailcut.profiler.overhead_records import Added

Values = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

NEAR_P50 = (0.25, 0.75)
NEAR_P95 = (0.85, 0.995)
"""Which requests are compared, by their place in the order of latency: the narrower, the less is known."""
RESAMPLES = 1000
_TAIL = 0.025
_DISTURBED = 1.5
"""A round whose median is so many times the usual one was not alone on the machine: nothing else moves a median so."""
_LEAST_KEPT = 0.6


class Round(NamedTuple):
    """Milliseconds of the same requests on either side, shape [n] each, n >= 1.

    Attributes:
        traced: which of them are, shape [n]; None: they are all of a kind.
    """

    plain_ms: Values
    seen_ms: Values
    traced: Bools | None = None


Rounds = Sequence[Sequence[Round]]
"""For each pair of processes those that they had."""


def longer(rounds: Rounds, near: tuple[float, float], *, seed: int = 0, resamples: int = RESAMPLES) -> Added:
    """Compare the requests near a percentile, those of all rounds together.

    The interval is that of a bootstrap in two steps, as the data came about: pairs of processes are drawn, and then
    rounds of each (Davison and Hinkley 1997, "Bootstrap Methods and their Application", 3.8).

    Args:
        rounds: at least one pair of processes with at least one round.
        near: shares of the requests between which those lie that are compared.
        seed: of the drawing.
        resamples: how often is drawn.

    Raises:
        ValueError: there are no rounds.
    """
    share = _share([one for had in rounds for one in had], near)
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(resamples):
        chosen: list[Round] = []
        for pair in rng.integers(0, len(rounds), len(rounds)):
            had = rounds[pair]
            chosen += [had[one] for one in rng.integers(0, len(had), len(had))]
        drawn.append(_share(chosen, near))
    return Added(share, (percentile(drawn, _TAIL), percentile(drawn, 1 - _TAIL)))


def undisturbed(rounds: Rounds) -> list[list[Round]]:
    """Leave out rounds in which something else had the machine: told by either side's median, never by their quotient.

    Where that would leave out many, all are kept: then this is how the machine is.
    """
    every = [one for had in rounds for one in had]
    limits = [_DISTURBED * percentile(side, 0.5) for side in zip(*map(_medians, every), strict=True)]
    kept = [[one for one in had if all(map(le, _medians(one), limits))] for had in rounds]
    if sum(map(len, kept)) < _LEAST_KEPT * len(every):
        return [list(had) for had in rounds]
    return [had for had in kept if had]


def _medians(one: Round) -> tuple[float, float]:
    return percentile(one.plain_ms, 0.5), percentile(one.seen_ms, 0.5)


def _share(rounds: Sequence[Round], near: tuple[float, float]) -> float:
    plain_ms = np.concatenate([one.plain_ms for one in rounds])
    seen_ms = np.concatenate([one.seen_ms for one in rounds])
    traced = np.concatenate([_kinds(one) for one in rounds])
    order = np.argsort(plain_ms * seen_ms, kind="stable")
    low, high = (rank(len(order), share) for share in near)
    chosen = order[low : high + 1]
    longer, kinds = seen_ms[chosen] / plain_ms[chosen], traced[chosen]
    found = [one for one in (longer[kinds], longer[~kinds]) if len(one)]
    return sum(float(np.median(one)) * len(one) for one in found) / len(longer) - 1.0


def _kinds(one: Round) -> Bools:
    return one.traced if one.traced is not None else np.ones(len(one.plain_ms), np.bool_)
