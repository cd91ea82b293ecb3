"""The LightGBM runtime: a text model, run by LightGBM itself. The format holds trees and numbers, never code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tailcut.common.tensors import Arrays
from tailcut.errors import ArtifactError, InferenceError, MissingExtra
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes.base import Openable, OpenOptions
from tailcut.models.runtimes.tables import BoosterInput, check_one_output, column_names, shaped


class LightGBMRuntime:
    """An opened LightGBM model. Use ``open_runtime``.

    Setting of the variant: "classes", whether it answers with probabilities of classes.
    """

    def __init__(self, variant: Openable, *, threads: int) -> None:
        try:
            import lightgbm
        except ImportError as error:
            raise MissingExtra(
                f"the lightgbm runtime needs the lightgbm package: {error}", hint="pip install 'tailcut[trees]'"
            ) from error
        self._output = check_one_output(variant)
        self._classes = bool(variant.settings.get("classes", False))
        self._name = variant.name
        self._threads = threads
        try:
            self._booster: Any = lightgbm.Booster(model_file=str(variant.artifact))
        except Exception as error:  # lightgbm's own class for whatever its parser met
            raise ArtifactError(
                f"lightgbm {lightgbm.__version__} cannot open {variant.artifact} (variant {variant.name!r}): "
                f"{str(error).strip().partition(chr(10))[0]}",
                hint="run `tailcut build` again, or promote another version",
            ) from error
        names = fitted_names(self._booster, variant.inputs)
        what = f"the LightGBM model {variant.artifact}"
        self._rows = BoosterInput(variant.inputs, self._booster.num_feature(), names, what)

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        """Run one batch; see ``Runtime.run``.

        Raises:
            InferenceError: lightgbm refused the batch.
        """
        try:
            rows = self._rows(inputs)
            if rows.dtype.kind in "iu":
                rows = rows.astype(np.float64)  # of an array of integers LightGBM would make float32
            found = self._booster.predict(rows, num_threads=self._threads, validate_features=False)
        except Exception as error:
            raise InferenceError(
                f"variant {self._name!r} failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}",
                hint="the other batches are not affected; try the same rows one at a time",
            ) from error
        return {self._output.name: shaped(found, self._output, classes=self._classes)}

    def close(self) -> None:
        """Drop the trees."""
        self._booster = None


def fitted_names(booster: Any, tensors: Sequence[TensorSpec]) -> list[str] | None:
    """Return the column names that a booster was fitted on, in its order; None where it was fitted on an array.

    LightGBM keeps spaces in names as underscores: a name comes back as the manifest writes it.
    """
    kept: list[str] = booster.feature_name()
    if kept == [f"Column_{place}" for place in range(len(kept))]:
        return None
    written = {name.replace(" ", "_"): name for name in column_names(tensors) if name is not None}
    return [written.get(name, name) for name in kept]


def open_variant(variant: Openable, options: OpenOptions) -> LightGBMRuntime:
    """Open a variant of this runtime; see ``open_runtime``."""
    return LightGBMRuntime(variant, threads=options.threads)
