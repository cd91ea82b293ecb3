"""How many times quicker another runtime or INT8 makes each model: measured here, else known from elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np

from tailcut.profiler.forecast.state import Known, LeverName, State
from tailcut.profiler.forecast.work import Work
from tailcut.profiler.levers import priors
from tailcut.profiler.levers.priors import Prior, measured
from tailcut.profiler.records import TORCH_ON_GPU, Stage

_FEW_PRODUCTS = 0.2
"""Of a model's operators: where INT8 addresses less of their time, it wins nothing."""
_SHOWN = 3


def factor_of(state: State, lever: LeverName) -> Callable[[str], Prior]:
    """Return what says how many times quicker a model gets, by the label of its calls."""
    known, model_ms = state.known, state.known.model_ms
    if model_ms is None:
        model_ms = call_ms(state.work)
    if lever == "runtime":
        return lambda label: _runtime(known, label, model_ms)
    # Once the runtime was changed, the work's model time is the quicker one already.
    overall = 1.0 if "runtime" in state.pulled else factor(state, "runtime").mid
    return lambda label: _int8(known, label, model_ms / overall)


def factor(state: State, lever: LeverName) -> Prior:
    """How many times quicker the models of a request get, all together."""
    each = factor_of(state, lever)
    took_ns = _by_label(state.work)
    found = {label: each(label) for label in took_ns} or {"": each("")}
    if len(set(found.values())) == 1:
        return next(iter(found.values()))
    total = sum(took_ns.values())

    def times(at: Callable[[Prior], float]) -> float:
        return total / sum(ns / at(found[label]) for label, ns in took_ns.items())

    longest = sorted(found, key=lambda label: -took_ns[label])[:_SHOWN]
    texts = "; ".join(f"{label} {found[label].mid:.3g} times ({found[label].source})" for label in longest)
    return Prior(
        low=times(lambda one: one.low),
        mid=times(lambda one: one.mid),
        high=times(lambda one: one.high),
        source=f"measured: {texts}" if all(one.measured for one in found.values()) else texts,
    )


def of_longest(state: State, lever: LeverName) -> Prior:
    """How many times quicker the model gets that takes most of the time."""
    took_ns = _by_label(state.work)
    return factor_of(state, lever)(max(took_ns, key=lambda label: took_ns[label], default=""))


def call_ms(work: Work) -> float:
    """A request's model time, the median of those that have any."""
    took = [sum(part.cpu_ns + part.wait_ns for part in job if part.stage == Stage.MODEL) for job in work.jobs]
    took = [one for one in took if one]
    return float(np.median(took)) / 1e6 if took else 0.0


def _by_label(work: Work) -> dict[str, float]:
    """Time of models, all requests together."""
    found: defaultdict[str, float] = defaultdict(float)
    for job in work.jobs:
        for part in job:
            if part.stage == Stage.MODEL and part.cpu_ns + part.wait_ns > 0:
                found[work.label(part.name)] += part.cpu_ns + part.wait_ns
    return found


def _runtime(known: Known, label: str, model_ms: float) -> Prior:
    library = known.libraries.get(label, known.family)
    found = known.runtime or known.as_onnx.get(label)
    return found or priors.runtime_prior(library, model_ms) or priors.staying_prior(library)


def _int8(known: Known, label: str, model_ms: float) -> Prior:
    library = known.libraries.get(label, known.family)
    if known.int8 is not None:
        return known.int8
    if library == TORCH_ON_GPU:
        return priors.NO_INT8_ON_GPU
    if library in priors.NO_PRODUCTS:
        return priors.NO_INT8_OF_TREES
    share = known.products.get(label)
    if share is not None and share < _FEW_PRODUCTS:
        return measured(1.0, f"products with weights are {share:.0%} of its operators' time")
    return priors.int8_prior(model_ms)
