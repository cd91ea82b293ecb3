"""What levers are pulled on: the work of requests, the service that does it, and what is known of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from tailcut.profiler.attribution.cpu_split import FETCHING
from tailcut.profiler.forecast.service_model import ServiceModel
from tailcut.profiler.forecast.work import Work
from tailcut.profiler.levers import priors
from tailcut.profiler.levers.priors import Prior
from tailcut.profiler.payloads.query_keys import KeyRepeats

LeverName = Literal[
    "serving path", "feature cache", "concurrent I/O", "preprocessing", "runtime", "INT8", "batching",
    "prediction cache", "more executors", "no process pool", "no background work",
]  # fmt: skip


class Excess(NamedTuple):
    """By how much the simulation is too slow before any lever, because of how fetches were recorded.

    Requests waited for one another at the database when they were recorded, and wait for one another there once more
    when they are played. What that makes too much goes with the fetches that were recorded.

    Attributes:
        share: of a simulated p95, where all of those fetches are left; 0: nothing.
        waited_ns: what a request waits for them, on average, where all are left.
    """

    share: float = 0.0
    waited_ns: float = 0.0

    def of(self, work: Work) -> float:
        """Return which share of a p95 is too much where levers have left this work."""
        return self.share * min(recorded_ns(work) / self.waited_ns, 1.0) if self.waited_ns else 0.0


NONE = Excess()


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known of the levers here.

    Attributes:
        feature_hits: by request's number, which share of its fetches a feature cache answers.
        asked: the same by what is fetched, where that is known; else the hits hold of all fetches.
        feature_doubt: why the payloads do not say what a feature cache would answer; empty where they do.
        feature_life_s, prediction_life_s: of cached features and answers, where the hits follow from it; else 0.
        prediction_hits: by request's number, whether a prediction cache answers it, before its features are fetched.
        tensor_hits: of the others, whether one that knows their tensors does, so that the model does not run; empty:
            there is none.
        family: what the model runs on: "torch", "sklearn", "onnxruntime", ...; "" where nobody knows.
        libraries: the same by the label of a model's calls.
        as_onnx: how many times quicker steps and models get as ONNX, by the label of their calls; only those that were
            converted and timed.
        refused: why others have no exact form as ONNX.
        products: share of a model's operators that multiply by weights, by its label, where its layers were timed.
        runtime, int8: how many times quicker; None: as elsewhere.
        batch_share: share of a row's time that a batch takes once; None: as elsewhere.
        model_ms: a call of the model on an idle machine; None: as recorded.
        fetches: by request's number, what its fetches take where they are others than those recorded: CPU and waiting
            of each in nanoseconds. Those of a request that is not named are as recorded.
        cores: that the service may use.
        database_cores: that answer its queries; 0: more than are asked for (a database on a machine of its own).
        database_beside: it takes the service's own core too where that is free first; without any of its own, always.
        database_share: of a recorded query's waiting that it computes, where it has cores; the rest takes none.
        fetches_share: the same of ``fetches``.
        lookup_ns: what a look-up of a request's features takes of a core.
        path: nanoseconds that a request takes of a core in tailcut's path; None: as elsewhere.
        path_slope: by which power of the rate that is less; 0: it is the same at all rates.
        path_waits_ns: how much longer its client waits, in quantiles; empty: what was between client and server here.
    """

    feature_hits: Mapping[int, float] = field(default_factory=dict)
    asked: KeyRepeats = field(default_factory=KeyRepeats)
    feature_doubt: str = ""
    prediction_hits: Mapping[int, bool] = field(default_factory=dict)
    tensor_hits: Mapping[int, bool] = field(default_factory=dict)
    feature_life_s: float = 0.0
    prediction_life_s: float = 0.0
    family: str = ""
    libraries: Mapping[str, str] = field(default_factory=dict)
    as_onnx: Mapping[str, Prior] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    products: Mapping[str, float] = field(default_factory=dict)
    runtime: Prior | None = None
    int8: Prior | None = None
    batch_share: Prior | None = None
    model_ms: float | None = None
    fetches: Mapping[int, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    cores: int = 1
    database_cores: int = 0
    database_beside: bool = False
    database_share: float = 1.0
    fetches_share: float = 1.0
    lookup_ns: float = priors.LOOKUP_NS
    path: Prior | None = None
    path_slope: float = 0.0
    path_waits_ns: tuple[float, ...] = ()


@dataclass(frozen=True)
class State:
    """Work and the service that does it, with the levers that were pulled."""

    work: Work
    service: ServiceModel
    known: Known
    pulled: tuple[LeverName, ...] = ()
    queues: frozenset[int] = frozenset()
    """Locks around little else than models as they were recorded, whatever levers make of these."""
    excess: Excess = NONE


def recorded_ns(work: Work) -> float:
    """Return what a request waits for fetches that were recorded, on average: not for others in their place."""
    found = [sum(part.wait_ns for part in job if part.stage in FETCHING and part.name >= 0) for job in work.jobs]
    return float(np.mean(found)) if found else 0.0
