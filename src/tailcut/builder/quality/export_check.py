"""Check of an export: it gives the outputs of what it was made from, at several batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tailcut.builder.holdouts import run as holdout_run
from tailcut.builder.holdouts.holdout import Holdout
from tailcut.common.tensors import DATATYPE_OF, Array, Arrays
from tailcut.errors import BuildError
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes import Runtime

ABSOLUTE = 1e-4
RELATIVE = 1e-3
"""A value may differ by ABSOLUTE + RELATIVE * |source|: float32 kernels add up in another order, nothing more."""

BATCH_ROWS = (1, 3, 8)
"""None of them is the example's batch: a dimension that was baked in shows."""

Run = Callable[[Arrays], Arrays]


def check(source: Run, exported: Run, holdout: Holdout, outputs: Sequence[TensorSpec]) -> dict[str, object]:
    """Run both models on the holdout's first rows at every batch size and compare all outputs.

    Returns:
        for people: the tolerance, and per batch size and output the largest differences.

    Raises:
        BuildError: another datatype or shape, NaN or infinity on one side only, or a value out of tolerance.
    """
    found = []
    for rows in BATCH_ROWS:
        inputs = holdout.take(rows)
        expected, given = source(inputs), exported(inputs)
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in inputs.items())
        for tensor in outputs:
            where = f"output {tensor.name!r} at batch {rows} ({shapes})"
            worst, relative = compare(expected[tensor.name], given[tensor.name], tensor, where)
            found.append({"rows": rows, "output": tensor.name, "max_abs": worst, "max_rel": relative})
    return {"absolute": ABSOLUTE, "relative": RELATIVE, "found": found}


def check_outputs(runtime: Runtime, holdout: Holdout, outputs: Sequence[TensorSpec]) -> None:
    """Hold what the source model gives against ``model.outputs``.

    Raises:
        BuildError: another number, datatype or shape; the server would promise clients what no variant gives.
    """
    rows = BATCH_ROWS[1]
    found = holdout_run.run(runtime, holdout, np.arange(rows) % holdout.rows, [tensor.name for tensor in outputs])
    for tensor in outputs:
        array = found[tensor.name]
        datatype = DATATYPE_OF.get(array.dtype, str(array.dtype))
        wanted = (rows, *tensor.shape[1:])
        fits = len(wanted) == array.ndim and all(
            want in (-1, have) for want, have in zip(wanted, array.shape, strict=True)
        )
        if datatype != tensor.datatype or not fits:
            raise BuildError(
                f"output {tensor.name!r} of the source model is {datatype} {list(array.shape)} for {rows} rows, "
                f"the manifest says {tensor.datatype} {list(tensor.shape)} (the first dimension is the batch)",
                hint="correct model.outputs, or reshape in the model",
            )


def compare(expected: Array, given: Array, tensor: TensorSpec, where: str) -> tuple[float, float]:
    """Return the largest absolute and relative difference of one output; ``where`` begins the error's text."""
    if DATATYPE_OF.get(expected.dtype) != tensor.datatype:
        raise BuildError(
            f"{where}: the source model gives {expected.dtype}, the manifest says {tensor.datatype}",
            hint="correct the datatype in model.outputs",
        )
    if expected.shape != given.shape or expected.dtype != given.dtype:
        raise BuildError(
            f"{where}: the source model gives {expected.dtype} {list(expected.shape)}, "
            f"the exported one {given.dtype} {list(given.shape)}",
            hint="the exporter fixed a dimension: derive shapes from the input tensors, not from Python numbers",
        )
    source, other = expected.astype(np.float64), given.astype(np.float64)
    if not np.array_equal(np.isfinite(source), np.isfinite(other)) or not np.isfinite(source).all():
        raise BuildError(
            f"{where}: NaN or infinity in {int((~np.isfinite(source)).sum())} values of the source model "
            f"and {int((~np.isfinite(other)).sum())} of the exported one",
            hint="look for divisions, logarithms and masks of -inf in the model",
        )
    error = np.abs(source - other)
    worst = float(error.max(initial=0.0))
    relative = float((error / np.maximum(np.abs(source), 1e-12)).max(initial=0.0))
    if (error > ABSOLUTE + RELATIVE * np.abs(source)).any():
        raise BuildError(
            f"{where}: differs from the source model by {worst:.3g} absolute, {relative:.3g} relative, "
            f"allowed is {ABSOLUTE:g} + {RELATIVE:g} * |value|",
            hint="an operator was exported incorrectly, or the model is random: call eval() and fix every seed",
        )
    return worst, relative
