"""Boosted trees, run by their own library: what its runtimes share. The formats hold trees and numbers, never code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tailcut.common.tensors import Array, Arrays
from tailcut.errors import ArtifactError
from tailcut.models.runtimes.base import Openable
from tailcut.models.runtimes.checks import AGAIN, batch_failed, first_line, load_library, named_line
from tailcut.models.runtimes.tables import BoosterInput, check_one_output, shaped


class Booster(NamedTuple):
    """An opened model.

    Attributes:
        features: its number of columns.
        names: of its columns; None where it was fitted on an array.
        predict: (rows, columns) -> answers.
    """

    features: int
    names: Sequence[str] | None
    predict: Callable[[Array], Any]


class BoosterRuntime:
    """Runs a booster. Use ``open_runtime``.

    Setting of the variant: "classes", whether it answers with probabilities of classes.

    Args:
        library: its name; in lower case that of its package.
        open_model: opens the artifact with the imported package.
        doubles: whether whole numbers are given as float64.
    """

    def __init__(
        self, variant: Openable, library: str, open_model: Callable[[Any], Booster], *, doubles: bool = False
    ) -> None:
        package = library.lower()
        module = load_library(package, f"the {package} runtime needs the {package} package")
        self._output = check_one_output(variant)
        self._classes = bool(variant.settings.get("classes", False))
        self._name = variant.name
        try:
            booster = open_model(module)
        except Exception as error:  # the library's own class for whatever its parser met
            raise ArtifactError(
                f"{package} {module.__version__} cannot open {variant.artifact} (variant {variant.name!r}): "
                f"{first_line(error)}",
                hint=AGAIN,
            ) from error
        what = f"the {library} model {variant.artifact}"
        self._rows = BoosterInput(variant.inputs, booster.features, booster.names, what, doubles=doubles)
        self._predict: Any = booster.predict

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        """Run one batch; see ``Runtime.run``.

        Raises:
            InferenceError: the library refused the batch.
        """
        try:
            found = self._predict(self._rows(inputs))
        except Exception as error:
            raise batch_failed(self._name, inputs, named_line(error)) from error
        return {self._output.name: shaped(found, self._output, classes=self._classes)}

    def close(self) -> None:
        """Drop the trees."""
        self._predict = None
