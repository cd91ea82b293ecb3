"""Recipe "onnx" for models on tables: LightGBM, XGBoost and scikit-learn, compared with the source variant.

Trees, linear models and the usual steps of scikit-learn are written by tailcut itself (see ``tables``), the rest by
skl2onnx. Converters were tried first: onnxmltools 1.16 rounds LightGBM's thresholds to the nearest float32, which sends
rows on more than half of them the other way; it fails on XGBoost's dart; skl2onnx 1.20 fails on HistGradientBoosting
and computes linear models in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tailcut.builder.host_capabilities import HostCapabilities
from tailcut.builder.recipes.base import Result, Subject, Work, missing
from tailcut.common.tensors import Array, Arrays
from tailcut.errors import BuildError
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes.live import source_of

KINDS = frozenset({"sklearn", "lightgbm", "xgboost"})
"""Kinds of source that this makes the variant "onnx" of; others are ``recipes.onnx``'s."""

_ROWS = 4096
_SAMPLE = 64
_BLOCK = 512
_REFUSED = 64

Run = Callable[[Arrays], Array]


def why_not(subject: Subject, here: HostCapabilities) -> str:
    """Say which package is missing."""
    return missing(here, "onnx", extra="trees-build")


def make(work: Work) -> Result:
    """Write the ONNX file and compare it with the source variant on holdout rows, at edges and at every threshold.

    Raises:
        BuildError: a step cannot be converted exactly; names every such step and why.
    """
    from tailcut.builder.tables import model as tables
    from tailcut.builder.tables import thresholds

    held = work.manifest.deployment.model
    output = held.outputs[0]
    model = _model(work)
    sample = work.selection.take(min(_SAMPLE, work.selection.rows))
    made = tables.convert(model, held.inputs, output, sample)
    if made.failures:
        raise _refused(work, made.failures)
    made.save(work.path)
    rows = work.selection.take(min(_ROWS, work.selection.rows))
    expected = _runner(work.open(work.base), output)
    given = _runner(work.open_file(work.path, "onnxruntime"), output)
    answers = expected(rows)
    try:
        found = {
            "holdout": _on_holdout(rows, answers, given, made.single),
            "edges": _at_edges(held.inputs, rows, expected, given, answers, made.single),
            **thresholds.compare(model, held.inputs, output, rows, expected=expected, given=given, single=made.single),
        }
    except BuildError as error:
        raise _refused(work, (error.message,)) from None
    return Result({"opset": dict(made.opsets), "nodes": made.nodes, "float32": made.single, **found})


def _refused(work: Work, failures: tuple[str, ...]) -> BuildError:
    return BuildError(
        f"the model has no exact ONNX form: {'; '.join(failures)}",
        hint=f"the {work.base.name!r} variant serves it unchanged; or move this step into the preprocess hook",
    )


def _model(work: Work) -> Any:
    """Open the source model: natively from the artifact, or live where there is none."""
    if work.base.runtime == "lightgbm":
        import lightgbm

        return lightgbm.Booster(model_file=work.base.path)
    if work.base.runtime == "xgboost":
        import xgboost

        return xgboost.Booster(model_file=work.base.path)
    live = source_of(work.manifest, work.base.runtime)
    assert live is not None
    if work.base.runtime == "skops":
        from tailcut.models.runtimes.skops import load

        return load(Path(work.base.path), live())
    return live()


def _runner(runtime: Any, output: TensorSpec) -> Run:
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


def _on_holdout(inputs: Arrays, source: Array, given: Run, single: bool) -> dict[str, object]:
    other = given(inputs)
    if source.shape != other.shape:
        raise BuildError(
            f"the ONNX model gives {list(other.shape)}, but the source model {list(source.shape)}",
            hint="serve the source variant; and please report the model",
        )
    from tailcut.builder.tables.comparing import wrong_rows

    wrong, worst = wrong_rows(source, other, single=single)
    if wrong.any():
        raise BuildError(
            f"{int(wrong.sum())} of {len(source)} holdout rows get other answers than from the source model, the "
            f"first is row {int(np.flatnonzero(wrong)[0])}, by up to {worst:.3g}",
            hint="serve the source variant; and please report the model",
        )
    return {"rows": len(source), "wrong": 0, "max_abs": worst}


def _at_edges(
    tensors: Sequence[TensorSpec], background: Arrays, expected: Run, given: Run, answers: Array, single: bool
) -> dict[str, object]:
    """Compare on rows at the edges of the inputs; what the source refuses has no answer here either."""
    from tailcut.builder.tables.comparing import wrong_rows
    from tailcut.builder.tables.edges import answered, edges

    made = edges(tensors, background)
    size = float(np.nanmax(np.abs(answers), initial=0.0))
    taken, source = answered(expected, made.inputs)
    asked, other = answered(given, {name: array[taken] for name, array in made.inputs.items()})
    places = np.flatnonzero(taken)
    if not asked.all():
        said = made.said[int(places[np.flatnonzero(~asked)[0]])]
        raise BuildError(f"{int((~asked).sum())} rows that the source answers fail in ONNX, the first: {said}")
    if len(source):
        wrong, _ = wrong_rows(source, other, single=single, size=size)
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            raise BuildError(
                f"{int(wrong.sum())} of {len(wrong)} rows at the edges of the inputs are answered otherwise than by "
                f"the source model, the first: {made.said[int(places[first])]}: {other[first]}, not {source[first]}"
            )
    refused = np.flatnonzero(~taken)
    for row in refused[:: max(len(refused) // _REFUSED, 1)]:
        alone, found = answered(given, {name: array[row : row + 1] for name, array in made.inputs.items()})
        if alone.all() and np.isfinite(found).all():
            raise BuildError(f"ONNX answers a row that the source refuses: {made.said[row]}")
    return {"rows": len(made.said), "refused": len(refused), "wrong": 0}
