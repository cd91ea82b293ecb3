"""The scikit-learn runtime: the live estimator that model.source gives, checked against what the build saw of it.

For estimators that cannot be stored (see ``runtimes.skops`` for the others): scikit-learn's own format is pickle, which
runs code when it is loaded. The artifact is an .npz of probe rows and the answers that the built estimator gave: as a
state dict needs its module, it needs model.source, and it tells whether that still gives the same model (one that is
fitted anew without a fixed random_state does not).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from tailcut.common.tensors import Array, Arrays
from tailcut.errors import ArtifactError, InferenceError
from tailcut.manifest import Tensor
from tailcut.models.runtimes.base import Openable, OpenOptions
from tailcut.models.runtimes.checks import source_for
from tailcut.models.runtimes.tables import Table, check_one_output, shaped

PROBE_ROWS = 32
_RELATIVE = 1e-5
_INPUT = "input/"
_ANSWERS = "answers"


class SklearnRuntime:
    """An estimator or pipeline. Use ``open_runtime``.

    ``threads`` does not reach into scikit-learn: the estimator's own n_jobs counts.
    """

    _origin: ClassVar[str] = "model.source"
    _differs_hint: ClassVar[str] = "fix random_state, load the fitted estimator from a file, or build again"

    def __init__(self, variant: Openable, *, source: Callable[[], Any]) -> None:
        self._output = check_one_output(variant)
        self._name = variant.name
        self._estimator: Any = source()
        self._table = table_of(self._estimator, variant.inputs)
        self._check_probes(variant.artifact)

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        """Run one batch; see ``Runtime.run``.

        Raises:
            InferenceError: the estimator raised.
        """
        try:
            return {self._output.name: answers(self._estimator, self._table(inputs), self._output)}
        except Exception as error:
            raise InferenceError(
                f"variant {self._name!r} failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}",
                hint="the other batches are not affected; try the same rows one at a time",
            ) from error

    def close(self) -> None:
        """Drop the estimator."""
        self._estimator = None

    def _probes(self, artifact: Path) -> tuple[Arrays, Array]:
        with artifact.open("rb") as file:
            return read_probes(file)

    def _check_probes(self, artifact: Path) -> None:
        try:
            rows, expected = self._probes(artifact)
        except Exception as error:
            raise ArtifactError(
                f"cannot read the probe rows {artifact} (variant {self._name!r}): {error}",
                hint="run `tailcut build` again, or promote another version",
            ) from error
        try:
            given = answers(self._estimator, self._table(rows), self._output)
        except Exception as error:
            raise ArtifactError(
                f"{self._origin} gave a {type(self._estimator).__name__} that fails on the rows of the build: "
                f"{type(error).__name__}: {str(error).partition(chr(10))[0]}",
                hint=f"make {self._origin} return the fitted estimator of the build, or run `tailcut build` again",
            ) from error
        if given.shape != expected.shape or not np.allclose(given, expected, rtol=_RELATIVE, atol=_RELATIVE):
            raise ArtifactError(
                f"{self._origin} gives another {type(self._estimator).__name__} than the build had: it answers its "
                f"{len(given)} probe rows differently",
                hint=self._differs_hint,
            )


def table_of(estimator: Any, tensors: Sequence[Tensor]) -> Table:
    """Return what turns inputs into the form that the estimator was fitted on.

    Raises:
        ArtifactError: see ``Table``.
    """
    return Table(tensors, fitted_names(estimator), f"the {type(estimator).__name__}")


def fitted_names(estimator: Any) -> list[str] | None:
    """Return the columns of the DataFrame that an estimator was fitted on; None where it was an array.

    A Pipeline knows the names of its first step that is no "passthrough".
    """
    steps = getattr(estimator, "steps", None)
    if steps:
        return next((fitted_names(step) for _, step in steps if step is not None and step != "passthrough"), None)
    found = getattr(estimator, "feature_names_in_", None)
    if found is None or list(found) == [f"Column_{place}" for place in range(len(found))]:  # LightGBM's, of an array
        return None
    return [str(name) for name in found]


def answers(estimator: Any, rows: Any, output: Tensor) -> Array:
    """Return a classifier's probabilities, else predictions, in the form of the output; see ``tables.shaped``."""
    classes = hasattr(estimator, "predict_proba")
    with warnings.catch_warnings():
        # Fitted on a DataFrame, asked with one wide tensor: the columns' order is the manifest's.
        warnings.filterwarnings("ignore", message=".*does not have valid feature names.*")
        found = estimator.predict_proba(rows) if classes else estimator.predict(rows)
    return shaped(found, output, classes=classes)


def write_probes(file: BinaryIO, rows: Mapping[str, Array], answered: Array) -> None:
    """Keep rows and what the estimator answered, without pickle; text as fixed-width Unicode."""
    plain = {f"{_INPUT}{name}": array.astype("U") if array.dtype.hasobject else array for name, array in rows.items()}
    np.savez(file, **{_ANSWERS: answered}, **plain)  # type: ignore[arg-type]  # the stub takes any keyword for allow_pickle


def read_probes(file: BinaryIO) -> tuple[Arrays, Array]:
    """Read what ``write_probes`` wrote: rows by input name, and the answers."""
    with np.load(file, allow_pickle=False) as kept:
        arrays = {name: kept[name] for name in kept.files}
    rows = {
        name.removeprefix(_INPUT): array.astype(object) if array.dtype.kind == "U" else array
        for name, array in arrays.items()
        if name != _ANSWERS
    }
    return rows, arrays[_ANSWERS]


def open_variant(variant: Openable, options: OpenOptions) -> SklearnRuntime:
    """Open the estimator that ``options.source`` makes."""
    return SklearnRuntime(variant, source=source_for(variant, options, "a test of the estimator"))
