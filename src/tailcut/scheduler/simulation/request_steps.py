"""Steps of a request on its way through a server, and how they follow from the times of a request that was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tailcut.common.timings import Stage

FETCH_NS = 300_000.0
"""Shortest feature stage that is taken for a wait: values that the cache has are there sooner, a source's are not."""

_LOOP_BEFORE = (Stage.RECEIVE, Stage.VALIDATE, Stage.ADMIT, Stage.ENTITY_CACHE)


class Kind(IntEnum):
    """Resource that a step needs."""

    LOOP = 0
    """The event loop, which does one thing at a time."""
    WAIT = 1
    """None: the request waits for something outside, such as a source of features."""
    THREAD = 2
    """A thread for hooks, of which there are only some, and the interpreter, which the loop needs as well."""
    MODEL = 3
    """A place in a batch."""
    REPLY = 4
    """None: the answer has left; what follows is work that only others wait for."""


class Step(NamedTuple):
    """One step; ``amount`` is nanoseconds, of ``MODEL`` rows, of ``REPLY`` what network and client add."""

    kind: Kind
    amount: float


Steps = tuple[Step, ...]


def plain_steps(loop_ns: float, rows: int) -> Steps:
    """Return the steps of a request of which only the event loop's time is known: three fifths before the batch."""
    before_ns = 0.6 * loop_ns
    return Step(Kind.LOOP, before_ns), Step(Kind.MODEL, rows), Step(Kind.LOOP, loop_ns - before_ns), Step(Kind.REPLY, 0)


class Overheads(NamedTuple):
    """What one load shows of its requests beside their stages, in nanoseconds per request, means.

    Attributes:
        loop_ns: processor time of the event loop's thread, without batches that it runs itself.
        beside_ns: of the other threads on its core, without batches and hooks.
        preprocess_threads, postprocess_threads: share of the hook's calls that ran in threads.
        rows: of requests that reach the model: rows -> share of them.
        handover_ns: of such a request, between the queue and the executor and back.
    """

    loop_ns: float
    beside_ns: float
    preprocess_threads: float
    postprocess_threads: float
    rows: Mapping[int, float]
    handover_ns: float = 0.0


def fetches(features_ns: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Tell which requests waited for a source of features, by their feature stage, shape [n]."""
    return features_ns >= FETCH_NS


def measured_steps(
    stages_ns: Mapping[Stage, npt.NDArray[np.float64]],
    outside_ns: npt.NDArray[np.float64],
    overheads: Overheads,
    seed: int = 0,
) -> list[Steps]:
    """Return the steps of every request of a load.

    What the event loop's thread took beyond the stages (reading, writing) goes before and after them in halves, and is
    no part of what network and client add.

    Args:
        stages_ns: of each stage, 0 where a request did not meet it, shape [n].
        outside_ns: latency less the server's total, shape [n].
        seed: of the rows, which the stages do not tell.
    """
    in_threads = {
        Stage.PREPROCESS: overheads.preprocess_threads >= 0.5,
        Stage.POSTPROCESS: overheads.postprocess_threads >= 0.5,
    }
    took, rest_ns = _alone(stages_ns, len(outside_ns), in_threads, overheads.loop_ns)
    fetched = fetches(took[Stage.FEATURES])
    shares = np.array(list(overheads.rows.values()) or [1.0])
    rows = np.random.default_rng(seed).choice(list(overheads.rows) or [1], len(outside_ns), p=shares / shares.sum())
    away_ns = np.maximum(outside_ns - rest_ns, 0.0)
    found = []
    for place in range(len(outside_ns)):
        at = {stage: float(column[place]) for stage, column in took.items()}
        model = bool(at[Stage.INFER] or at[Stage.QUEUE])
        steps = [
            Step(Kind.LOOP, rest_ns / 2 + sum(at[stage] for stage in _LOOP_BEFORE)),
            Step(Kind.WAIT if fetched[place] else Kind.LOOP, at[Stage.FEATURES]),
            Step(Kind.THREAD if in_threads[Stage.PREPROCESS] else Kind.LOOP, at[Stage.PREPROCESS]),
            Step(Kind.LOOP, at[Stage.TENSOR_CACHE]),
            *([Step(Kind.MODEL, int(rows[place])), Step(Kind.WAIT, overheads.handover_ns)] if model else []),
            Step(Kind.THREAD if in_threads[Stage.POSTPROCESS] else Kind.LOOP, at[Stage.POSTPROCESS]),
            Step(Kind.LOOP, rest_ns / 2 + at[Stage.ENCODE]),
            Step(Kind.REPLY, float(away_ns[place])),
            Step(Kind.LOOP, overheads.beside_ns),
        ]
        found.append(joined(steps))
    return found


def _alone(
    stages_ns: Mapping[Stage, npt.NDArray[np.float64]], count: int, in_threads: Mapping[Stage, bool], loop_ns: float
) -> tuple[dict[Stage, npt.NDArray[np.float64]], float]:
    """Return the stages as they are with a core of their own, and what the loop's thread takes beside them.

    Stages on the loop that took longer than its thread ran were interrupted by others on its core.
    """
    took = {stage: stages_ns.get(stage, np.zeros(count)) for stage in Stage}
    on_loop = [*_LOOP_BEFORE, Stage.TENSOR_CACHE, Stage.ENCODE, *(one for one, away in in_threads.items() if not away)]
    cached_ns = np.where(fetches(took[Stage.FEATURES]), 0.0, took[Stage.FEATURES])
    total_ns = sum((took[stage] for stage in on_loop), cached_ns)
    mean_ns = float(total_ns.mean()) if count else 0.0
    share = min(loop_ns / mean_ns, 1.0) if mean_ns else 1.0
    found = {stage: column * (share if stage in on_loop else 1.0) for stage, column in took.items()}
    found[Stage.FEATURES] = took[Stage.FEATURES] - cached_ns * (1.0 - share)
    return found, max(loop_ns - mean_ns, 0.0)


def joined(steps: Sequence[Step]) -> Steps:
    """Leave out steps of no time, and make one of steps in a row on the event loop."""
    found: list[Step] = []
    for step in steps:
        if not step.amount and step.kind is not Kind.REPLY:
            continue
        if found and step.kind is Kind.LOOP and found[-1].kind is Kind.LOOP:
            found[-1] = Step(Kind.LOOP, found[-1].amount + step.amount)
        else:
            found.append(step)
    return tuple(found)


def drawn(pools: Sequence[Sequence[Steps]], shares: Sequence[float], seed: int) -> Callable[[int], Steps]:
    """Return what draws a request's steps: from one of several loads, by their shares, with all that belongs together.

    Args:
        pools: requests of each load, none of them empty.
        shares: of the loads, their sum 1.
    """
    generator = np.random.default_rng(seed)
    edges = np.cumsum(shares)

    def draw(_: int) -> Steps:
        pool = pools[min(int(np.searchsorted(edges, generator.random(), side="right")), len(pools) - 1)]
        return pool[int(generator.integers(len(pool)))]

    return draw


def nearness(rates: Sequence[float], rate: float) -> list[float]:
    """Return the share of each measured rate in what is expected at another: between two of them by the logarithm.

    Args:
        rates: measured, ascending, above 0.
    """
    places = np.log(rates)
    at = float(np.clip(np.log(max(rate, 1e-9)), places[0], places[-1]))
    return [float(np.interp(at, places, np.eye(len(rates))[number])) for number in range(len(rates))]
