"""An application's estimators as ONNX, tried on a request's own input: what each of their steps takes in the graph."""

from __future__ import annotations

from collections.abc import Sequence

from tailcut.profiler.attribution.layers import Conversion
from tailcut.profiler.levers.priors import Prior, measured

_LEAST_MS = 0.001
_LEAST_LEFT = 0.05
"""Of the whole graph's time: two graphs that were timed apart differ by less without a reason."""


def quicker_as_onnx(conversions: Sequence[Conversion]) -> dict[str, Prior]:
    """Return how many times quicker each call gets in the graph, by its label, as far as that was measured.

    What an estimator does beside its last step goes with the graph of all of it; where only the last step has one, the
    rest stays as it is.
    """
    found: dict[str, Prior] = {}
    for one in conversions:
        if one.last and one.last_graph_ms is not None:
            found[one.last] = _times(one.last_ms, one.last_graph_ms)
        if one.graph_ms is None:
            continue
        rest = one.run_ms, one.graph_ms
        if one.last and one.last_graph_ms is not None:
            left_ms = max(one.graph_ms - one.last_graph_ms, _LEAST_LEFT * one.graph_ms)
            rest = max(one.run_ms - one.last_ms, 0.0), left_ms
        for label in (one.model, *one.steps):
            found.setdefault(label, _times(*rest))
    return found


def _times(run_ms: float, graph_ms: float) -> Prior:
    took = f"{run_ms:.3g} ms a call, {graph_ms:.3g} as ONNX, on a request's input"
    return measured(max(run_ms, _LEAST_MS) / max(graph_ms, _LEAST_MS), took)
