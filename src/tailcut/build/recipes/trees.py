"""Recipe "onnx" for models on tables: LightGBM, XGBoost and scikit-learn in onnxruntime, compared at the thresholds.

Trees are written by tailcut itself (see ``ensembles``), everything else by skl2onnx. Converters were tried first:
onnxmltools 1.16 rounds LightGBM's thresholds to the nearest float32, which sends rows on more than half of them the
other way; it fails on XGBoost's dart; skl2onnx 1.20 fails on HistGradientBoosting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tailcut.build import ensembles
from tailcut.build.ensembles.base import Bools, Ensemble, Floats
from tailcut.build.ensembles.probes import Probes, probes
from tailcut.build.here import Here
from tailcut.build.recipes.base import Result, Subject, Work, missing
from tailcut.core.tensors import NUMPY_OF, Array, Arrays
from tailcut.errors import BuildError
from tailcut.manifest import Tensor
from tailcut.runtimes.live import source_of

KINDS = frozenset({"sklearn", "lightgbm", "xgboost"})
"""Kinds of source that this makes the variant "onnx" of; others are ``recipes.onnx``'s."""

TREES_TOLERANCE = 2e-5
"""Of the largest answer: float32 sums over a thousand leaves stay under it, a row in the wrong leaf does not."""

ABSOLUTE, RELATIVE = 1e-4, 1e-3
"""Of other estimators, as ``parity``."""

_ROWS = 4096
_BLOCK = 512

_FLIPS = 0.001
"""Share of holdout rows that may fall into another leaf where a pipeline computes in float before its trees."""

Run = Callable[[Arrays], Array]


def why_not(subject: Subject, here: Here) -> str:
    """Say which package is missing."""
    needed = ["onnx"] if subject.trees and subject.kind != "sklearn" else ["onnx", "skl2onnx"]
    return missing(here, *needed, extra="trees-build")


def make(work: Work) -> Result:
    """Write the ONNX file and compare it with the source on holdout rows, and at and around every threshold.

    Raises:
        BuildError: it cannot be written, or answers otherwise; at thresholds with the number of rows.
    """
    from tailcut.build.ensembles import model as onnx_model
    from tailcut.runtimes.tables import check_columns

    held = work.manifest.deployment.model
    source = _model(work)
    steps = source[:-1] if len(getattr(source, "steps", ())) > 1 else None
    end = source.steps[-1][1] if hasattr(source, "steps") else source
    trees = ensembles.of(end) if ensembles.is_trees(end) else None
    width = check_columns(held.inputs)
    # Without trees the whole pipeline is skl2onnx's.
    found = onnx_model.write(
        held.inputs,
        held.outputs[0],
        width,
        work.path,
        transform=steps if trees is not None else None,
        last=trees if trees is not None else source,
    )
    expected = _runner(work.open(work.base), held.outputs[0])
    given = _runner(work.open_file(work.path, "onnxruntime"), held.outputs[0])
    evidence: dict[str, Any] = {**found, "holdout": _on_holdout(work, expected, given, trees, steps)}
    if trees is not None:
        evidence |= {"trees": len(trees.trees), "tree_nodes": trees.nodes}
        if steps is None:
            evidence["thresholds"] = _at_thresholds(work, expected, given, trees, _takes_nan(end))
    return Result(evidence)


def _model(work: Work) -> Any:
    """Open the source model for its trees: natively from the artifact, or live where there is none."""
    if work.base.runtime == "lightgbm":
        import lightgbm

        return lightgbm.Booster(model_file=work.base.path)
    if work.base.runtime == "xgboost":
        import xgboost

        return xgboost.Booster(model_file=work.base.path)
    live = source_of(work.manifest, work.base.runtime)
    assert live is not None
    return live()


def _runner(runtime: Any, output: Tensor) -> Run:
    def run(inputs: Arrays) -> Array:
        rows = len(next(iter(inputs.values())))
        blocks = range(0, rows, _BLOCK)
        parts = [
            runtime.run({name: array[at : at + _BLOCK] for name, array in inputs.items()}, [output.name])[output.name]
            for at in blocks
        ]
        found: Array = np.concatenate(parts)
        return found

    return run


def _on_holdout(work: Work, expected: Run, given: Run, trees: Ensemble | None, steps: Any) -> dict[str, Any]:
    rows = min(_ROWS, work.selection.rows)
    inputs = work.selection.take(rows)
    wrong, worst = _compare(expected(inputs), given(inputs), trees is not None)
    allowed = int(rows * _FLIPS) if trees is not None and steps is not None else 0
    if wrong.sum() > allowed:
        hint = "a step computes otherwise in float32: scale inputs to usual sizes, or serve the source variant"
        raise BuildError(
            f"{int(wrong.sum())} of {rows} holdout rows are answered otherwise than by the source model, the first is "
            f"row {int(np.flatnonzero(wrong)[0])}, by up to {worst:.3g}; {allowed} are allowed",
            hint="rounding before the trees moves rows over thresholds: trees need no scaling, leave it out"
            if trees is not None and steps is not None
            else hint,
        )
    return {"rows": rows, "wrong": int(wrong.sum()), "max_abs": worst}


def _at_thresholds(work: Work, expected: Run, given: Run, trees: Ensemble, takes_nan: bool) -> dict[str, Any]:
    """Compare on rows that lie on thresholds and one step to either side."""
    from tailcut.runtimes.tables import matrix

    tensors = work.manifest.deployment.model.inputs
    names = [tensor.name for tensor in tensors]
    background = matrix(work.selection.take(min(_ROWS, work.selection.rows)), names)
    integral, nan = _columns(tensors, takes_nan)
    made = probes(trees, background.astype(np.float32), integral, nan=nan)
    if not len(made.rows):
        return {"splits": made.splits, "rows": 0, "wrong": 0}
    inputs = split(made.rows, tensors)
    wrong, worst = _compare(expected(inputs), given(inputs), True)
    if wrong.any():
        raise BuildError(_said(made, wrong, worst, trees), hint="serve the source variant; and please report the model")
    return {"splits": made.splits, "looked_at": made.looked, "rows": len(made.rows), "wrong": 0, "max_abs": worst}


def _said(made: Probes, wrong: Bools, worst: float, trees: Ensemble) -> str:
    first = int(np.flatnonzero(wrong)[0])
    tree, node = int(made.tree[first]), int(made.node[first])
    return (
        f"{int(wrong.sum())} of {len(wrong)} rows at the trees' thresholds are answered otherwise than by the source "
        f"model, by up to {worst:.3g}; the first: column {int(made.feature[first])} = "
        f"{made.rows[first, made.feature[first]]!r} at threshold {trees.trees[tree].threshold[node]!r} (tree {tree})"
    )


def _compare(expected: Array, given: Array, trees: bool) -> tuple[Bools, float]:
    """Return which rows differ, and the largest difference.

    Raises:
        BuildError: other shapes.
    """
    if expected.shape != given.shape:
        raise BuildError(
            f"the ONNX model gives {list(given.shape)}, the source model {list(expected.shape)}",
            hint="serve the source variant; and please report the model",
        )
    source, other = (array.reshape(len(array), -1).astype(np.float64) for array in (expected, given))
    error = np.abs(source - other)
    limit = TREES_TOLERANCE * np.abs(source).max() if trees else ABSOLUTE + RELATIVE * np.abs(source)
    wrong: Bools = np.logical_not(np.all(error <= limit, axis=1))
    return wrong, float(np.nanmax(error, initial=0.0))


def _columns(tensors: tuple[Tensor, ...], takes_nan: bool) -> tuple[Bools, Bools]:
    """Return which columns hold whole numbers only, and which may be NaN."""
    integral: list[bool] = []
    nan: list[bool] = []
    for tensor in tensors:
        width = tensor.shape[1] if len(tensor.shape) == 2 else 1
        integral += [not tensor.datatype.startswith("FP")] * width
        nan += [takes_nan and tensor.allow_nan and tensor.datatype.startswith("FP")] * width
    return np.array(integral), np.array(nan)


def _takes_nan(model: Any) -> bool:
    if type(model).__module__.partition(".")[0] != "sklearn":
        return True
    from sklearn.utils import get_tags

    return bool(get_tags(model).input_tags.allow_nan)


def split(rows: Floats, tensors: tuple[Tensor, ...]) -> Arrays:
    """Cut a matrix into the input tensors that ``runtimes`` put side by side."""
    found: Arrays = {}
    at = 0
    for tensor in tensors:
        width = tensor.shape[1] if len(tensor.shape) == 2 else 1
        part = rows[:, at : at + width].astype(NUMPY_OF[tensor.datatype])
        found[tensor.name] = np.ascontiguousarray(part if len(tensor.shape) == 2 else part[:, 0])
        at += width
    return found
