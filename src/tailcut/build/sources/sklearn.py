"""Source "sklearn": a scikit-learn estimator or pipeline. Nothing of it is kept but rows and what it answered.

scikit-learn has no format but pickle, and loading that runs code: see ``runtimes.sklearn`` for what takes its place.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from tailcut.build import ensembles
from tailcut.build.recipes.base import Result
from tailcut.build.sources import _tables
from tailcut.build.sources.base import SourceWork
from tailcut.errors import BuildError


class SklearnSource:
    """A callable that gives a fitted estimator or pipeline."""

    kind = "sklearn"
    variant = "sklearn"
    runtime = "sklearn"
    suffix = ".npz"

    def matches(self, model: Any, path: Path | None) -> bool:
        """By its class; whoever has one has imported scikit-learn."""
        base = sys.modules.get("sklearn.base")
        return base is not None and isinstance(model, base.BaseEstimator)

    def trees(self, model: Any) -> bool:
        """By the class of the estimator, or of the pipeline's last step."""
        return ensembles.is_trees(_tables.final(model))

    def make(self, work: SourceWork, artifact: Path) -> Result:
        """Write probe rows of the selection split and their answers.

        Raises:
            BuildError: not fitted, no probabilities or predictions, or other tensors than the manifest's.
        """
        from tailcut.runtimes._matrix import matrix
        from tailcut.runtimes.sklearn import PROBE_ROWS, answers

        _tables.check_fitted(work.model)
        _check_answers(work.model)
        names = [tensor.name for tensor in work.manifest.deployment.model.inputs]
        rows = matrix(work.selection.take(min(PROBE_ROWS, work.selection.rows)), names)
        try:
            answered = answers(work.model, rows)
        except Exception as error:
            raise BuildError(
                f"the {type(work.model).__name__} fails on rows of the holdout, {list(rows.shape)} float32: "
                f"{type(error).__name__}: {str(error).partition(chr(10))[0]}",
                hint="it is given one float32 array, model.inputs side by side: fit it on columns by number, not name",
            ) from error
        np.savez(artifact, rows=rows, answers=answered)
        return Result(
            {
                "estimator": type(_tables.final(work.model)).__name__,
                "kept": "no estimator: scikit-learn's only format is pickle, which runs code when it is loaded; it is "
                "made by model.source, and checked against the probe rows in the artifact",
                "probe_rows": len(rows),
                "classes": _tables.classes(work.model),
                **_tables.check(work, self.runtime, artifact),
            }
        )


def _check_answers(model: Any) -> None:
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
