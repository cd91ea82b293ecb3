"""The scikit-learn runtime: the live estimator that model.source gives, checked against what the build saw of it.

scikit-learn has no format but pickle, which runs code when it is loaded, so no estimator is ever kept. The artifact is
an .npz of probe rows and the answers that the built estimator gave: as a state dict needs its module, it needs
model.source, and it tells whether that still gives the same model (one that is fitted anew without a fixed
random_state does not).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tailcut.core.tensors import Arrays
from tailcut.errors import ArtifactError, InferenceError
from tailcut.runtimes._matrix import Matrix, check_one_output, columns, matrix
from tailcut.runtimes.base import Openable

PROBE_ROWS = 32
_RELATIVE = 1e-5


class SklearnRuntime:
    """An estimator or pipeline. Use ``open_runtime``. ``threads`` does not reach into scikit-learn: it is the
    estimator's own n_jobs that counts.
    """

    def __init__(self, variant: Openable, *, source: Callable[[], Any]) -> None:
        self._output = check_one_output(variant).name
        self._names = [tensor.name for tensor in variant.inputs]
        self._name = variant.name
        self._estimator: Any = source()
        columns(variant.inputs)
        self._check_probes(variant.artifact)

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        """Run one batch; see ``Runtime.run``.

        Raises:
            InferenceError: the estimator raised.
        """
        try:
            return {self._output: answers(self._estimator, matrix(inputs, self._names))}
        except Exception as error:
            raise InferenceError(
                f"variant {self._name!r} failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}",
                hint="the other batches are not affected; try the same rows one at a time",
            ) from error

    def close(self) -> None:
        """Drop the estimator."""
        self._estimator = None

    def _check_probes(self, artifact: Path) -> None:
        try:
            with np.load(artifact, allow_pickle=False) as kept:
                rows, expected = kept["rows"], kept["answers"]
        except Exception as error:
            raise ArtifactError(
                f"cannot read the probe rows {artifact} (variant {self._name!r}): {error}",
                hint="run `tailcut build` again, or promote another version",
            ) from error
        try:
            given = answers(self._estimator, rows)
        except Exception as error:
            raise ArtifactError(
                f"model.source gave a {type(self._estimator).__name__} that fails on the rows of the build: "
                f"{type(error).__name__}: {str(error).partition(chr(10))[0]}",
                hint="make model.source return the fitted estimator of the build, or run `tailcut build` again",
            ) from error
        if given.shape != expected.shape or not np.allclose(given, expected, rtol=_RELATIVE, atol=_RELATIVE):
            raise ArtifactError(
                f"model.source gives another {type(self._estimator).__name__} than the build had: it answers its "
                f"{len(rows)} probe rows differently",
                hint="fix random_state, or load the fitted estimator from a file instead of fitting it; or build again",
            )


def answers(estimator: Any, rows: Matrix) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return probabilities of class 1 (rows,) of two classes, (rows, classes) of more, else predictions.

    (rows, 1) predictions become (rows,).
    """
    with warnings.catch_warnings():
        # Trained on a table with column names, served on arrays: the order is the manifest's.
        warnings.filterwarnings("ignore", message=".*does not have valid feature names.*")
        found = estimator.predict_proba(rows) if hasattr(estimator, "predict_proba") else estimator.predict(rows)
    array = np.ascontiguousarray(found, dtype=np.float32)
    if hasattr(estimator, "predict_proba") and array.ndim == 2 and array.shape[1] == 2:
        return np.ascontiguousarray(array[:, 1])
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
