"""The XGBoost runtime: a UBJSON model, run by XGBoost itself. The format holds trees and numbers, never code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailcut.common.tensors import Arrays
from tailcut.errors import ArtifactError, InferenceError, MissingExtra
from tailcut.models.runtimes.base import Openable, OpenOptions
from tailcut.models.runtimes.tables import BoosterInput, check_one_output, shaped


class XGBoostRuntime:
    """An opened XGBoost model. Use ``open_runtime``.

    Setting of the variant: "classes", whether it answers with probabilities of classes.
    """

    def __init__(self, variant: Openable, *, threads: int) -> None:
        try:
            import xgboost
        except ImportError as error:
            raise MissingExtra(
                f"the xgboost runtime needs the xgboost package: {error}", hint="pip install 'tailcut[trees]'"
            ) from error
        self._output = check_one_output(variant)
        self._classes = bool(variant.settings.get("classes", False))
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
        what = f"the XGBoost model {variant.artifact}"
        self._rows = BoosterInput(variant.inputs, booster.num_features(), booster.feature_names, what)
        self._booster: Any = booster

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        """Run one batch; see ``Runtime.run``.

        Raises:
            InferenceError: xgboost refused the batch.
        """
        try:
            found = self._booster.inplace_predict(self._rows(inputs), validate_features=False)
        except Exception as error:
            raise InferenceError(
                f"variant {self._name!r} failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}",
                hint="the other batches are not affected; try the same rows one at a time",
            ) from error
        return {self._output.name: shaped(found, self._output, classes=self._classes)}

    def close(self) -> None:
        """Drop the trees."""
        self._booster = None


def open_variant(variant: Openable, options: OpenOptions) -> XGBoostRuntime:
    """Open a variant of this runtime; see ``open_runtime``."""
    return XGBoostRuntime(variant, threads=options.threads)
