"""The scikit-learn runtime: the live estimator that model.source gives, checked against what the build saw of it.

For estimators that cannot be stored (see ``runtimes.skops`` for the others): scikit-learn's own format is pickle, which
runs code when it is loaded. The artifact is an .npz of probe rows and the answers that the built estimator gave: as a
state dict needs its module, it needs model.source, and it tells whether that still gives the same model (one that is
fitted anew without a fixed random_state does not).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from tailcut.common.tensors import Array, Arrays
from tailcut.errors import ArtifactError
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes.base import Openable, OpenOptions
from tailcut.models.runtimes.checks import AGAIN, batch_failed, named_line, source_for
from tailcut.models.runtimes.tables import EstimatorTable, check_one_output, column_names, shaped

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

    def __init__(self, variant: Openable, options: OpenOptions) -> None:
        self._output = check_one_output(variant)
        self._name = variant.name
        self._estimator: Any = self._opened(variant, options)
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
            raise batch_failed(self._name, inputs, named_line(error)) from error

    def close(self) -> None:
        """Drop the estimator."""
        self._estimator = None

    def _opened(self, variant: Openable, options: OpenOptions) -> Any:
        return source_for(variant, options, "a test of the estimator")()

    def _probes(self, artifact: Path) -> tuple[Arrays, Array]:
        with artifact.open("rb") as file:
            return read_probes(file)

    def _check_probes(self, artifact: Path) -> None:
        try:
            rows, expected = self._probes(artifact)
        except Exception as error:
            raise ArtifactError(
                f"cannot read the probe rows {artifact} (variant {self._name!r}): {error}", hint=AGAIN
            ) from error
        try:
            given = answers(self._estimator, self._table(rows), self._output)
        except Exception as error:
            raise ArtifactError(
                f"{self._origin} gave a {type(self._estimator).__name__} that fails on the rows of the build: "
                f"{named_line(error)}",
                hint=f"make {self._origin} return the fitted estimator of the build, or run `tailcut build` again",
            ) from error
        if given.shape != expected.shape or not np.allclose(given, expected, rtol=_RELATIVE, atol=_RELATIVE):
            raise ArtifactError(
                f"{self._origin} gives another {type(self._estimator).__name__} than the build had: it answers its "
                f"{len(given)} probe rows differently",
                hint=self._differs_hint,
            )


def table_of(estimator: Any, tensors: Sequence[TensorSpec]) -> EstimatorTable:
    """Return what turns inputs into the form that the estimator was fitted on.

    Raises:
        ArtifactError: see ``given_names`` and ``EstimatorTable``.
    """
    names = given_names(estimator, tensors)
    return EstimatorTable(tensors, names, f"the {type(estimator).__name__}", flat=takes_documents(estimator, tensors))


def takes_documents(estimator: Any, tensors: Sequence[TensorSpec]) -> bool:
    """Say whether an estimator takes texts as (rows,), as vectorizers do, and the only input is one of them."""
    if len(tensors) != 1 or tensors[0].datatype != "BYTES" or len(tensors[0].shape) != 1:
        return False
    steps = getattr(estimator, "steps", None)
    if steps:
        return any(takes_documents(step, tensors) for step in _at_work(steps)[:1])
    if (inner := _inner(estimator)) is not None:
        return takes_documents(inner, tensors)
    if not hasattr(estimator, "__sklearn_tags__"):
        return False
    tags = estimator.__sklearn_tags__().input_tags
    return bool(tags.string and not tags.two_d_array)


def given_names(estimator: Any, tensors: Sequence[TensorSpec]) -> list[str] | None:
    """Return the columns of the DataFrame that an estimator is called with, in its order; None where it gets an array.

    Raises:
        ArtifactError: neither the first step nor the first behind it that keeps names says in which order training had
            the inputs' columns, so that they could be exchanged without an error.
    """
    names, first = fitted_names(estimator), _without_names(estimator)
    if first is None:
        return names
    inputs = column_names(tensors)
    if names is not None and all(name in names for name in inputs):
        return names
    if len(inputs) == 1 or not any(inputs):
        return None
    whose = "it" if first is estimator else f"its first step, a {type(first).__name__},"
    raise ArtifactError(
        f"the {type(estimator).__name__} does not say in which order it was fitted on the {len(inputs)} columns of "
        f"model.inputs: {whose} keeps no feature_names_in_",
        hint=f"let fit of {type(first).__name__} set self.feature_names_in_ = X.columns.to_numpy(), then it is called "
        "with a DataFrame of these columns; or, if it was fitted on an array, give all columns, in the order of "
        "training, in one tensor of shape [-1, columns] without columns = [...]",
    )


def fitted_names(estimator: Any) -> list[str] | None:
    """Return the columns of the DataFrame that an estimator was fitted on; None where it was an array.

    A Pipeline knows the names of its first step that is no "passthrough". A step that keeps no names, as those of the
    user do, hands a DataFrame on more often than not: then the step behind it tells them.
    """
    steps = getattr(estimator, "steps", None)
    if steps:
        for step in _at_work(steps):
            if (found := fitted_names(step)) is not None or _without_names(step) is None:
                return found
        return None
    found = getattr(estimator, "feature_names_in_", None)
    if found is None and (inner := _inner(estimator)) is not None:
        return fitted_names(inner)
    if found is None or list(found) == [f"Column_{place}" for place in range(len(found))]:  # LightGBM's, of an array
        return None
    return [str(name) for name in found]


def _without_names(estimator: Any) -> Any:
    """Return what takes the rows first, if it does not tell an array from a DataFrame; None where it does.

    What scikit-learn validates keeps the number of columns, and the names of a DataFrame. An estimator that keeps
    neither may have been fitted on either.
    """
    steps = getattr(estimator, "steps", None)
    if steps:
        first = next(iter(_at_work(steps)), None)
        return None if first is None else _without_names(first)
    if hasattr(estimator, "feature_names_in_") or hasattr(estimator, "n_features_in_"):
        return None
    inner = _inner(estimator)
    return estimator if inner is None else _without_names(inner)


def _at_work(steps: Sequence[tuple[str, Any]]) -> list[Any]:
    return [step for _, step in steps if step is not None and step != "passthrough"]


def _inner(estimator: Any) -> Any:
    """Return the fitted estimator that a search, or a model of a transformed target, passes its rows on to."""
    return getattr(estimator, "best_estimator_", getattr(estimator, "regressor_", None))


def answers(estimator: Any, rows: Any, output: TensorSpec) -> Array:
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
