"""Brings the manifest's budget, the user's own metrics and the scores to the statistical gate."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tailcut import gate
from tailcut.builder.holdouts.holdout import Holdout
from tailcut.builder.quality import outputs
from tailcut.common.metric_names import AGREEMENT
from tailcut.common.tensors import Array, Arrays
from tailcut.errors import BuildError
from tailcut.gate import OwnRows, QualityVerdict
from tailcut.gate.metrics import are_distributions, decide
from tailcut.manifest import Manifest, resolve

DEFAULT_BUDGET = 0.004
"""0.4 points of accuracy, of the cosine to the source model's vectors, or of agreement with its decisions."""


def budget_of(manifest: Manifest, holdout: Holdout, source: Array) -> dict[str, float]:
    """Return the manifest's budget; without one accuracy (or, of vectors without classes, cosine) may drop 0.4 points.

    Args:
        source: the source model's scores.

    Raises:
        BuildError: no budget, and scores for which no default makes sense.
    """
    budget = dict(manifest.deployment.quality.budget)
    if budget:
        return budget
    if gate.are_decisions(source, holdout.labels, {}):
        return {"accuracy": DEFAULT_BUDGET}
    if holdout.labels is None and are_distributions(source, 1e-2):
        return {AGREEMENT: DEFAULT_BUDGET}
    if source.ndim == 2:
        return {"cosine": DEFAULT_BUDGET}
    judged, outputs = manifest.deployment.judged, manifest.deployment.model.outputs
    others = ", ".join(tensor.name for tensor in outputs if tensor.name != judged)
    another = f"; if the labels belong to another output ({others}), name it in holdout.output" if others else ""
    raise BuildError(
        f"quality.budget is empty, and the judged output {judged!r} holds values, for which no default budget exists",
        hint=f"set the maximum loss in the label's unit: [quality] budget = {{ mae = 0.1 }}{another}",
    )


def standard(budget: Mapping[str, float], manifest: Manifest) -> dict[str, float]:
    """Leave out the user's own metrics, and agreement: they are no function of labels and scores alone."""
    others = {AGREEMENT, *manifest.deployment.quality.metrics}
    return {name: limit for name, limit in budget.items() if name not in others}


def judge(
    manifest: Manifest, holdout: Holdout, answers: Mapping[str, Arrays], *, source: str, uses: int
) -> dict[str, QualityVerdict]:
    """Judge every variant but the source; verdicts by name.

    Args:
        holdout: the confirmation split.
        answers: every output of every variant, the source's included.
        source: name of the source variant.
        uses: other sets of variants that the split has judged before.
    """
    quality, group = manifest.deployment.quality, manifest.deployment.holdout.group
    scores = {name: found[manifest.deployment.judged] for name, found in answers.items()}
    budget = budget_of(manifest, holdout, scores[source])
    others = {name: found for name, found in scores.items() if name != source}
    own = {name: _own(name, manifest, holdout, scores, source) for name in quality.metrics if name in budget}
    if AGREEMENT in budget:
        decided = decide(scores[source])
        agreed = {name: (decide(found) == decided).astype(np.float64) for name, found in others.items()}
        own[AGREEMENT] = OwnRows(np.ones(holdout.rows), agreed)
    return gate.judge(
        others,
        scores[source],
        holdout.labels,
        {name: values for name, values in holdout.slices.items() if name != group},
        budget,
        confidence=quality.confidence,
        slice_budget=quality.slice_budget,
        uses=uses,
        own_metrics=own,
        groups=holdout.slices[group] if group else None,
        identical={name for name in others if _is_identical(answers[source], answers[name])},
    )


def _is_identical(source: Arrays, found: Arrays) -> bool:
    """Tell whether every output is equal to the source's up to rounding, on rows enough to say so."""
    compared = [outputs.compare(source[name], found[name]) for name in source]
    return all(each.equal and each.rows >= outputs.LEAST_ROWS for each in compared)


def _own(name: str, manifest: Manifest, holdout: Holdout, scores: Mapping[str, Array], source: str) -> OwnRows:
    """Call the user's metric on every variant's scores, with the labels as given, booleans as 0 and 1."""
    reference = manifest.deployment.quality.metrics[name]
    function = resolve(reference, manifest)
    labels = holdout.labels if holdout.given is None else holdout.given
    if labels is not None and labels.dtype.kind == "b":
        labels = labels.astype(np.int64)  # NumPy neither negates nor subtracts booleans
    values = {}
    for variant, found in scores.items():
        rows = np.asarray(function(labels, found), dtype=np.float64)
        if rows.shape != (holdout.rows,):
            raise BuildError(
                f"quality.metrics.{name}: {reference} returned an array of shape {list(rows.shape)} "
                f"for {holdout.rows} rows",
                hint="return one value per row; higher is better",
            )
        values[variant] = rows
    return OwnRows(values[source], {variant: rows for variant, rows in values.items() if variant != source})
