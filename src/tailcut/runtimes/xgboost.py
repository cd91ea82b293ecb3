"""The XGBoost runtime: a UBJSON model, run by XGBoost itself. The format holds trees and numbers, never code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tailcut.core.tensors import Arrays
from tailcut.errors import ArtifactError, InferenceError, MissingExtra
from tailcut.runtimes._matrix import check_one_output, columns, matrix
from tailcut.runtimes.base import Openable


class XGBoostRuntime:
    """An opened XGBoost model. Use ``open_runtime``."""

    def __init__(self, variant: Openable, *, threads: int) -> None:
        try:
            import xgboost
        except ImportError as error:
            raise MissingExtra(
                f"the xgboost runtime needs the xgboost package: {error}", hint="pip install 'tailcut[trees]'"
            ) from error
        self._output = check_one_output(variant).name
        self._names = [tensor.name for tensor in variant.inputs]
        self._name = variant.name
        try:
            booster: Any = xgboost.Booster({"nthread": threads, "verbosity": 0})
            booster.load_model(bytearray(variant.artifact.read_bytes()))
            # The file brings the threads of the machine that trained it.
            booster.set_param({"nthread": threads, "verbosity": 0})
        except Exception as error:  # xgboost's own class for whatever its parser met
            raise ArtifactError(
                f"xgboost {xgboost.__version__} cannot open {variant.artifact} (variant {variant.name!r}): "
                f"{str(error).strip().partition(chr(10))[0]}",
                hint="run `tailcut build` again, or promote another version",
            ) from error
        given, wanted = columns(variant.inputs), booster.num_features()
        if given != wanted:
            raise ArtifactError(
                f"the XGBoost model {variant.artifact} has {wanted} features, model.inputs have {given} columns",
                hint="make model.inputs agree with the model, then run `tailcut build` again",
            )
        self._booster: Any = booster

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        """Run one batch; see ``Runtime.run``.

        Raises:
            InferenceError: xgboost refused the batch.
        """
        try:
            found = self._booster.inplace_predict(matrix(inputs, self._names), validate_features=False)
        except Exception as error:
            raise InferenceError(
                f"variant {self._name!r} failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}",
                hint="the other batches are not affected; try the same rows one at a time",
            ) from error
        return {self._output: np.ascontiguousarray(found, dtype=np.float32)}

    def close(self) -> None:
        """Drop the trees."""
        self._booster = None
