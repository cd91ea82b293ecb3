"""The holdout: labelled rows that no training step saw, the judge of every variant."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tailcut.core.tensors import DATATYPE_OF, Array, Arrays
from tailcut.errors import BuildError
from tailcut.manifest import Tensor

_SLICE_HINT = "give a label and every slice one value per input row"


@dataclass(frozen=True)
class Holdout:
    """Labelled rows, as the model takes them.

    Attributes:
        inputs: input name -> (rows, ...).
        labels: (rows,) of 0 and 1, class numbers or values.
        slices: slice name -> (rows,) of the group that each row belongs to; optional.

    Raises:
        BuildError: no rows, no inputs, different numbers of rows, or a label that is NaN or no number.
    """

    inputs: Arrays
    labels: Array
    slices: Arrays = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.inputs:
            raise BuildError("the holdout has no inputs", hint="give one array per tensor of model.inputs")
        for what, array in self._parts():
            if not isinstance(array, np.ndarray) or array.ndim == 0:
                raise BuildError(
                    f"the holdout's {what} is a {type(array).__name__}, expected an array with a row per example",
                    hint="numpy.asarray(...) makes one",
                )
            if len(array) != len(self.labels):
                raise BuildError(
                    f"the holdout's {what} has {len(array)} rows, its labels have {len(self.labels)}", hint=_SLICE_HINT
                )
        if not len(self.labels):
            raise BuildError("the holdout has no rows", hint="a few thousand labelled rows judge well")
        self._check_labels()

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.labels)

    def _parts(self) -> list[tuple[str, Array]]:
        inputs = [(f"input {name!r}", array) for name, array in self.inputs.items()]
        slices = [(f"slice {name!r}", array) for name, array in self.slices.items()]
        return [("labels", self.labels), *inputs, *slices]

    def _check_labels(self) -> None:
        if self.labels.dtype.kind not in "biuf":
            raise BuildError(
                f"the holdout's labels are {self.labels.dtype}, expected numbers", hint="number the classes from 0"
            )
        if self.labels.dtype.kind == "f":
            bad = np.flatnonzero(~np.isfinite(self.labels.reshape(self.rows, -1)).all(axis=1))
            if bad.size:
                raise BuildError(
                    f"{bad.size} of {self.rows} labels are NaN or infinite, the first in row {bad[0]}",
                    hint="leave out the rows whose outcome is not known",
                )

    def check(self, tensors: Sequence[Tensor]) -> None:
        """Compare the inputs with the manifest's tensors.

        Raises:
            BuildError: an input is missing or extra, or has another datatype or shape, or NaN where none may be.
        """
        names = [tensor.name for tensor in tensors]
        if set(names) != set(self.inputs):
            raise BuildError(
                f"the holdout's inputs are {sorted(self.inputs)}, the manifest's model.inputs are {sorted(names)}",
                hint="make holdout.source give exactly the tensors of model.inputs",
            )
        for tensor in tensors:
            array = self.inputs[tensor.name]
            datatype = DATATYPE_OF.get(array.dtype, str(array.dtype))
            fits = len(array.shape) == len(tensor.shape) and all(
                want in (-1, have) for want, have in zip(tensor.shape, array.shape, strict=True)
            )
            if datatype != tensor.datatype or not fits:
                raise BuildError(
                    f"the holdout's input {tensor.name!r} is {datatype} {list(array.shape)}, "
                    f"the manifest says {tensor.datatype} {list(tensor.shape)} (-1 is a free dimension)",
                    hint="convert it with astype and reshape, or correct model.inputs",
                )
            if array.dtype.kind == "f" and not tensor.allow_nan and not np.isfinite(array).all():
                raise BuildError(
                    f"the holdout's input {tensor.name!r} holds NaN or infinity, which the manifest does not allow",
                    hint="fill the gaps as production does, or set allow_nan = true on that tensor",
                )

    def take(self, rows: int, start: int = 0) -> Arrays:
        """Return ``rows`` input rows from ``start`` on, going round where there are fewer."""
        places = (start + np.arange(rows)) % self.rows
        return {name: np.ascontiguousarray(array[places]) for name, array in self.inputs.items()}

    def digest(self) -> str:
        """SHA-256 of names, datatypes, shapes and values: the data that the evidence rests on."""
        sha = hashlib.sha256()
        for what, array in sorted(self._parts(), key=lambda part: part[0]):
            sha.update(f"{what} {array.dtype.str} {array.shape}\n".encode())
            plain = array.astype("U") if array.dtype.kind == "O" else array
            sha.update(np.ascontiguousarray(plain).tobytes())
        return sha.hexdigest()

    def save(self, path: Path) -> None:
        """Write as .npz without pickle; text in slices becomes fixed-width Unicode."""
        groups = (("input", self.inputs), ("slice", self.slices))
        arrays = {f"{group}/{name}": array for group, named in groups for name, array in named.items()}
        arrays["labels"] = self.labels
        plain = {name: array.astype("U") if array.dtype.kind == "O" else array for name, array in arrays.items()}
        with path.open("wb") as file:
            np.savez(file, **plain)  # type: ignore[arg-type]  # the stub takes any keyword for allow_pickle

    @staticmethod
    def load(path: Path) -> Holdout:
        """Read what ``save`` wrote."""
        with np.load(path, allow_pickle=False) as arrays:
            named = {name: arrays[name] for name in arrays.files}
        inputs = {name[6:]: array for name, array in named.items() if name.startswith("input/")}
        slices = {name[6:]: array for name, array in named.items() if name.startswith("slice/")}
        return Holdout(inputs=inputs, labels=named["labels"], slices=slices)
