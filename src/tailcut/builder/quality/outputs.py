"""Every output of a variant beside the source model's: the judged one, and those that no metric looks at."""

from __future__ import annotations

from typing import Literal

import numpy as np

from tailcut.builder.quality.reference import differs
from tailcut.common.tensors import Array, Bools, Doubles
from tailcut.gate.metrics import decide
from tailcut.manifest import Quality
from tailcut.registry.evidence import OutputComparison

Kind = Literal["classes", "numbers", "both"]
"""What an output holds: classes (whole numbers, text), numbers, or what may stand for a class and for a number: a
probability, logits, an embedding."""

LEAST_ROWS = 200
"""Rows from which on a variant whose every answer equals the source's counts as identical."""


def compare(source: Array, found: Array) -> OutputComparison:
    """Compare one output of a variant with the source model's.

    Args:
        source, found: (rows, ...) of the same rows.
    """
    wrong, worst = differs(source, found, centred=True)
    rows, equal = len(source), not wrong.any()
    if source.shape != found.shape:
        shapes = list(source.shape), list(found.shape)
        return OutputComparison(rows=rows, equal=equal, kind="both", shapes=shapes)
    if source.dtype.kind != "f":
        same = np.asarray(source == found).reshape(rows, -1).all(axis=1)
        agree, flipped = float(same.mean()), int((~same).sum())
        return OutputComparison(rows=rows, equal=equal, kind="classes", agree=agree, flipped=flipped)
    one: Doubles = source.astype(np.float64)
    other: Doubles = found.astype(np.float64)
    kind = kind_of(one)
    finite = np.isfinite(one) & np.isfinite(other)
    error = float(np.abs(one[finite] - other[finite]).mean()) if finite.any() else 0.0
    size = float(np.abs(one[finite]).mean()) if finite.any() else 0.0
    alike = decide(one) == decide(other) if kind != "numbers" else None
    return OutputComparison(
        rows=rows,
        equal=equal,
        kind=kind,
        max_abs=worst,
        mean_abs=error,
        relative_error=error / size if size else (0.0 if not error else float(np.finfo(np.float64).max)),
        not_finite=int((~_alike(one, other)).sum()),
        agree=None if alike is None else float(alike.mean()),
        flipped=None if alike is None else int((~alike).sum()),
    )


def kind_of(values: Doubles) -> Kind:
    """Tell what an output of floats holds, by its values.

    A probability is a number too: a risk of 0.02 that becomes 0.4 has the class that it had.
    """
    if values.ndim > 2:
        return "numbers"
    if values.ndim == 2 and values.shape[1] > 1:
        return "both"
    return "both" if bool(np.all((values >= 0) & (values <= 1) | np.isnan(values))) else "numbers"


def _alike(one: Doubles, other: Doubles) -> Bools:
    """Tell where both are finite, both NaN, or the same infinity."""
    both = np.isfinite(one) & np.isfinite(other)
    found: Bools = both | (np.isnan(one) & np.isnan(other)) | (one == other)
    return found


def refusal(name: str, found: OutputComparison, quality: Quality) -> str:
    """Say why an output that is not judged refuses a variant; empty where it does not."""
    if found.equal:
        return ""
    if found.shapes is not None:
        return f"output {name!r} has the shape {found.shapes[1]}, the source model's {found.shapes[0]}"
    if found.not_finite:
        return f"output {name!r} has {found.not_finite} values that are NaN or infinite in one of both models only"
    if found.agree is not None and found.agree < quality.other_agreement:
        return (
            f"output {name!r} names the source model's class on {found.agree:.2%} of {found.rows:,} rows, at "
            f"least {float(quality.other_agreement):.2%} are needed (quality.other_agreement)"
        )
    if found.relative_error is not None and found.relative_error > quality.other_error:
        return (
            f"output {name!r} has a relative error of {found.relative_error:.3g} over {found.rows:,} rows, at "
            f"most {quality.other_error:g} is allowed (quality.other_error)"
        )
    return ""
