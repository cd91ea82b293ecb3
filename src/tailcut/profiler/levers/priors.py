"""What changes of a model won elsewhere: where nothing was measured here, ranges rest on these, and say so.

A factor is how many times quicker the model answers.
"""

from __future__ import annotations

import msgspec

from tailcut.profiler.records import TORCH_ON_GPU


class Prior(msgspec.Struct, frozen=True, kw_only=True):
    """A figure with its range and where it comes from.

    Attributes:
        low, mid, high: of it.
        source: where and on what it was measured; "measured" where that was this model and machine.
    """

    low: float
    mid: float
    high: float
    source: str

    @property
    def measured(self) -> bool:
        """It is this model's, on this machine."""
        return self.source.startswith("measured")


def measured(value: float, how: str = "") -> Prior:
    """Return a figure that was measured here."""
    return Prior(low=value, mid=value, high=value, source=f"measured{': ' + how if how else ''}")


_OWN = "tailcut's own runs, 2 cores"
_TINY_MS, _SMALL_MS = 3.0, 30.0

_RUNTIME = {
    "torch": (
        (_TINY_MS, Prior(low=2.0, mid=3.5, high=6.5, source=f"{_OWN}: small tabular transformers, eager to ONNX")),
        (_SMALL_MS, Prior(low=1.4, mid=2.0, high=2.7, source=f"{_OWN}: MiniLM, 1 x 28 tokens 2.7x; others 1.4x")),
        (float("inf"), Prior(low=1.0, mid=1.25, high=1.4, source=f"{_OWN}: MiniLM, 8 x 28; docs 1.4x")),
    ),
    "sklearn": ((float("inf"), Prior(low=1.5, mid=3.0, high=5.0, source="lleaves' README: trees, batch of 1")),),
}  # fmt: skip

RUNTIMES = frozenset({"onnxruntime", "openvino", "xgboost", "lightgbm", "catboost"})
"""Runtimes for inference only: there is nothing to leave. What leaving a library in neither table wins is not known."""

_QUANTISED = (
    (1.0, Prior(low=0.8, mid=1.0, high=1.1, source=f"{_OWN}: models below a millisecond gain nothing")),
    (float("inf"), Prior(low=1.3, mid=1.6, high=2.1, source=f"{_OWN}: MiniLM 1.5 to 1.9x; 1.6x without VNNI")),
)  # fmt: skip
INT8_AT_BEST = 4.0
"""Of products, an instruction has at most four times as many with 8 bits as with 32 (Intel, "Deep Learning Boost")."""

NO_PRODUCTS = frozenset({"sklearn", "lightgbm", "xgboost", "catboost"})
"""Libraries of trees and linear models: INT8 makes products with large matrices quicker, and they have none."""

_BATCH = {
    "torch": Prior(low=0.5, mid=0.7, high=0.8, source=f"{_OWN}: MiniLM eager, 8 rows cost 2.8 times one"),
    TORCH_ON_GPU: Prior(low=0.0, mid=0.0, high=1.0, source="what rows share on a GPU is not known without its layers"),
    "": Prior(low=0.1, mid=0.3, high=0.6, source=f"{_OWN}: MiniLM ONNX, 8 rows cost 6.1 times one"),
}

PATH = Prior(low=0.13, mid=0.15, high=0.52, source=_OWN)
"""Milliseconds that a request takes of a core in tailcut, from the body to the reply (benchmarks/results/ladder); more
where a core idles in between (docs/explanation/scheduling.md)."""


def runtime_prior(family: str, model_ms: float) -> Prior | None:
    """Return what leaving a framework's own runtime wins; None where nothing is known of that.

    Args:
        family: "torch", "sklearn"; ``RUNTIMES`` have nothing to leave.
        model_ms: a request's calls, as measured.
    """
    if family in RUNTIMES:
        return measured(1.0, "it has no runtime to leave")
    return next((prior for limit, prior in _RUNTIME.get(family, ()) if model_ms < limit), None)


def int8_prior(family: str, model_ms: float) -> Prior | None:
    """Return what INT8 wins over the same runtime in FP32, for a model that takes so long there; None: not known."""
    if family not in {*_RUNTIME, *RUNTIMES}:
        return None
    return next(prior for limit, prior in _QUANTISED if model_ms < limit)


def batch_prior(family: str) -> Prior:
    """Return which share of a row's time a batch of any size takes once."""
    return _BATCH.get(family, _BATCH[""])
