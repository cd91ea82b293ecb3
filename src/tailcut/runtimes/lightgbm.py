"""The LightGBM runtime: a text model, run by LightGBM itself. The format holds trees and numbers, never code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tailcut.core.tensors import Arrays
from tailcut.errors import ArtifactError, InferenceError, MissingExtra
from tailcut.runtimes._matrix import check_one_output, columns, matrix
from tailcut.runtimes.base import Openable


class LightGBMRuntime:
    """An opened LightGBM model. Use ``open_runtime``."""

    def __init__(self, variant: Openable, *, threads: int) -> None:
        try:
            import lightgbm
        except ImportError as error:
            raise MissingExtra(
                f"the lightgbm runtime needs the lightgbm package: {error}", hint="pip install 'tailcut[trees]'"
            ) from error
        self._output = check_one_output(variant).name
        self._names = [tensor.name for tensor in variant.inputs]
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
        given, wanted = columns(variant.inputs), self._booster.num_feature()
        if given != wanted:
            raise ArtifactError(
                f"the LightGBM model {variant.artifact} has {wanted} features, model.inputs have {given} columns",
                hint="make model.inputs agree with the model, then run `tailcut build` again",
            )

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        """Run one batch; see ``Runtime.run``.

        Raises:
            InferenceError: lightgbm refused the batch.
        """
        try:
            found = self._booster.predict(
                matrix(inputs, self._names), num_threads=self._threads, validate_features=False
            )
        except Exception as error:
            raise InferenceError(
                f"variant {self._name!r} failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}",
                hint="the other batches are not affected; try the same rows one at a time",
            ) from error
        return {self._output: np.ascontiguousarray(found, dtype=np.float32)}

    def close(self) -> None:
        """Drop the trees."""
        self._booster = None
