"""Source "sklearn": a scikit-learn estimator or pipeline, stored with skops where it holds no unknown types.

Of others nothing is stored but rows and what it answered to them: see ``runtimes.sklearn``. scikit-learn's own format
is pickle, and loading that runs code.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tailcut.builder import ensembles
from tailcut.builder.recipes.base import Result
from tailcut.builder.sources import _tables
from tailcut.builder.sources._categories import check_categories, check_missing_texts
from tailcut.builder.sources.base import SourceWork
from tailcut.common.tensors import Arrays
from tailcut.errors import ArtifactError, BuildError
from tailcut.manifest import Tensor
from tailcut.models.runtimes.live import own_types

_COMPARED_ROWS = 4096
"""Rows on which the stored estimator must give the same bits as the user's object."""


class SklearnSource:
    """A callable that gives a fitted estimator or pipeline."""

    kind = "sklearn"
    variant = "sklearn"
    runtime = "sklearn"
    suffix = ".skops"

    def matches(self, model: Any, path: Path | None) -> bool:
        """By its class: a scikit-learn estimator exists only where scikit-learn is imported."""
        base = sys.modules.get("sklearn.base")
        return base is not None and isinstance(model, base.BaseEstimator)

    def trees(self, model: Any) -> bool:
        """By the class of the estimator, or of the pipeline's last step."""
        return ensembles.is_trees(_tables.final(model))

    def make(self, work: SourceWork, artifact: Path) -> Result:
        """Write the estimator; where it cannot be stored, probe rows of the selection split and their answers.

        Raises:
            BuildError: not fitted, no probabilities or predictions, categories that no request can bring, or other
                tensors than the manifest's.
        """
        from tailcut.builder.sources import _skops
        from tailcut.models.runtimes.sklearn import PROBE_ROWS, answers, table_of, write_probes

        _tables.check_fitted(work.model)
        model = work.manifest.deployment.model
        _check_model(work.model, model.inputs)
        classes = _tables.classes(work.model)
        try:
            table = table_of(work.model, model.inputs)
        except ArtifactError as error:
            raise BuildError(error.message, hint=error.hint) from error
        rows = work.selection.take(min(PROBE_ROWS, work.selection.rows))
        try:
            answered = answers(work.model, table(rows), model.outputs[0])
        except Exception as error:
            raise _fails(work.model, rows, error) from error
        compared = table(work.selection.take(min(_COMPARED_ROWS, work.selection.rows)))
        code, why_not = _skops.store(
            work.model,
            rows,
            lambda estimator: answers(estimator, compared, model.outputs[0]),
            artifact,
            own_types(work.manifest),
        )
        if why_not:
            with artifact.open("wb") as file:
                write_probes(file, rows, answered)
        runtime = self.runtime if why_not else "skops"
        return Result(
            {
                "estimator": type(_tables.final(work.model)).__name__,
                "not_stored": why_not,
                "probe_rows": len(answered),
                "classes": classes,
                **_tables.check(work, runtime, artifact),
            },
            runtime=runtime,
            code=tuple(code),
        )


def _fails(model: Any, rows: Arrays, error: Exception) -> BuildError:
    given = {name: f"{array.dtype} {list(array.shape)}" for name, array in rows.items()}
    return BuildError(
        f"the {type(model).__name__} fails on rows of the holdout, {given}: "
        f"{type(error).__name__}: {str(error).partition(chr(10))[0]}",
        hint="an estimator that keeps the columns' names (feature_names_in_) gets a DataFrame with the inputs' names "
        "(or columns) and datatypes; another gets model.inputs side by side in one array. A first step of your own "
        "that needs a DataFrame must set self.feature_names_in_ = X.columns.to_numpy() in fit",
    )


def _check_model(model: Any, inputs: Sequence[Tensor]) -> None:
    check_categories(_tables.final(model))
    check_missing_texts(model, inputs)
    name = type(_tables.final(model)).__name__
    if hasattr(model, "classes_") and not hasattr(model, "predict_proba"):
        raise BuildError(
            f"the {name} has no predict_proba, so its answers are classes without probabilities",
            hint="wrap it: sklearn.calibration.CalibratedClassifierCV(...), or use a classifier with probabilities",
        )
    if not hasattr(model, "predict") or getattr(model, "_estimator_type", None) in {"clusterer", "outlier_detector"}:
        raise BuildError(
            f"the {name} is neither a classifier nor a regressor", hint="end the pipeline with one, or export to ONNX"
        )
