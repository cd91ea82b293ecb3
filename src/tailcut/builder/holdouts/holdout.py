"""The holdout: rows that no training step saw, the judge of every variant.

Of rows without labels a variant can be compared with the source model only, not with the truth.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tailcut.builder.holdouts.arrays import save as save_arrays
from tailcut.builder.holdouts.labels import Coding, checked, numbered, strata
from tailcut.common.tensors import DATATYPE_OF, Array, Arrays, Bools
from tailcut.errors import BuildError
from tailcut.manifest import TensorSpec
from tailcut.registry.padding import trimmed

LEAST_ROWS = 10
"""A holdout of fewer rows is not split: neither part could say anything."""

_SLICE_HINT = "give labels and slices one value per input row"


@dataclass(frozen=True)
class Holdout:
    """Rows, as the model takes them.

    Attributes:
        inputs: input name -> (rows, ...).
        labels: (rows,) of classes (numbers, text or booleans) or values; None where they are not known. Objects of one
            type are taken, and numbers and booleans among them get a datatype.
        slices: slice name -> (rows,) of the group that each row belongs to; optional.
        padding: name of the input, (rows, tokens) of 0 and 1, that tells values from padding; "take" then cuts off
            what is padding in all its rows, as serving would not have padded so far. Empty: nothing is padding.
        numbers: (rows,) of row numbers in the holdout that these rows are a part of; None where they are all of it.
        raw: inputs as they were given, where the manifest's datatype is another; name -> (rows, ...).
        given: (rows,) labels as they were given, where ``labels`` number the classes; see ``build.labels``.

    Raises:
        BuildError: no rows, no inputs, different numbers of rows, a label that is missing, or labels of several types.
    """

    inputs: Arrays
    labels: Array | None = None
    slices: Arrays = field(default_factory=dict)
    padding: str = ""
    numbers: Array | None = None
    raw: Arrays = field(default_factory=dict)
    given: Array | None = None

    def __post_init__(self) -> None:
        if not self.inputs:
            raise BuildError("the holdout has no inputs", hint="give one array per tensor of model.inputs")
        if self.padding and self.padding not in self.inputs:
            raise BuildError(
                f"the holdout's padding is {self.padding!r}, its inputs are {sorted(self.inputs)}",
                hint="name the input that is 1 where there is a value, such as attention_mask",
            )
        first, rows = "", 0
        for what, array in self._parts():
            if not isinstance(array, np.ndarray) or array.ndim == 0:
                raise BuildError(
                    f"the holdout's {what} is a {type(array).__name__}, expected an array with a row per example",
                    hint="make one with numpy.asarray(...)",
                )
            first, rows = (first, rows) if first else (what, len(array))
            if len(array) != rows:
                have = "have" if first == "labels" else "has"
                raise BuildError(
                    f"the holdout's {what} has {len(array)} rows, its {first} {have} {rows}", hint=_SLICE_HINT
                )
        if not rows:
            raise BuildError("the holdout has no rows", hint="add labelled rows; a few thousand judge well")
        if self.labels is not None:
            object.__setattr__(self, "labels", checked(self.labels))  # the dataclass is frozen

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.inputs.values())))

    @property
    def truth(self) -> Array:
        """The labels.

        Raises:
            BuildError: there are none.
        """
        if self.labels is None:
            raise BuildError(
                "the holdout has no labels, so variants can only be compared with the source model",
                hint="name their column in holdout.labels, or remove quality budgets that need labels",
            )
        return self.labels

    def number(self, place: int) -> int:
        """Return the number of a row as whoever made the holdout counts, from 0."""
        return place if self.numbers is None else int(self.numbers[place])

    def _parts(self) -> list[tuple[str, Array]]:
        inputs = [(f"input {name!r}", array) for name, array in self.inputs.items()]
        slices = [(f"slice {name!r}", array) for name, array in self.slices.items()]
        labels = [("labels", self.labels)] if self.labels is not None else []
        return [*labels, *inputs, *slices]

    def check(self, tensors: Sequence[TensorSpec]) -> None:
        """Compare the inputs with the manifest's tensors.

        Raises:
            BuildError: an input is missing or extra, or has another datatype or shape, NaN where none may be, or
                values outside of the manifest's limits.
        """
        names = [tensor.name for tensor in tensors]
        if set(names) != set(self.inputs):
            raise BuildError(
                f"the holdout's inputs are {sorted(self.inputs)}, the manifest's model.inputs are {sorted(names)}",
                hint="make holdout.source return exactly the tensors of model.inputs",
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
                raise _not_finite(array, tensor.name, self.number)
            if (beyond := _beyond(array, tensor)).any():
                raise BuildError(
                    f"input {tensor.name!r}: {int(beyond.sum())} of the holdout's {self.rows} rows are outside of the "
                    f"limits that model.inputs gives it (row {self.number(int(beyond.argmax()))} is the first)",
                    hint="such requests are refused: widen min, max or values in model.inputs, or leave these rows out",
                )

    def take(self, rows: int, start: int = 0) -> Arrays:
        """Return ``rows`` input rows from ``start`` on, going round where there are fewer; see ``padding``."""
        return self.at((start + np.arange(rows)) % self.rows)

    def at(self, places: Array) -> Arrays:
        """Return the input rows at ``places``, (wanted,) of row numbers; see ``padding``."""
        found = {name: array[places] for name, array in self.inputs.items()}
        return trimmed(found, self.padding)

    def subset(self, places: Array) -> Holdout:
        """Return the holdout of the rows at ``places``, (wanted,) of row numbers."""
        return Holdout(
            inputs={name: array[places] for name, array in self.inputs.items()},
            labels=None if self.labels is None else self.labels[places],
            slices={name: array[places] for name, array in self.slices.items()},
            padding=self.padding,
            numbers=places if self.numbers is None else self.numbers[places],
            raw={name: array[places] for name, array in self.raw.items()},
            given=None if self.given is None else self.given[places],
        )

    def coded(self, coding: Coding | None) -> Holdout:
        """Return the holdout with its labels as class numbers; ``given`` keeps them as they were.

        Raises:
            BuildError: see ``labels.numbered``.
        """
        if self.labels is None or self.labels.ndim != 1:
            return self
        return replace(self, labels=numbered(self.labels, coding), given=self.labels)

    def split(self, selection_share: float, seed: int = 0, *, group: str = "") -> tuple[Holdout, Holdout]:
        """Part the rows into a selection and a confirmation split.

        The same data and seed give the same parts. Each class is in both parts by its share where labels are classes;
        with a ``group`` no value of it is in both parts.

        Args:
            selection_share: of the rows, between 0 and 1.
            seed: for another split of the same data.
            group: name of the slice whose rows hang together; empty: each row stands for itself.

        Returns:
            (selection, confirmation), each in the order of the rows.

        Raises:
            BuildError: fewer than LEAST_ROWS rows, labels that are all the same, no such slice, or one group only.
        """
        if not 0 < selection_share < 1:
            raise BuildError(
                f"holdout.selection is {selection_share}, it must be between 0 and 1",
                hint="0.3 leaves 70 % of the rows for the verdict",
            )
        if self.rows < LEAST_ROWS:
            raise BuildError(
                f"the holdout has {self.rows} rows, the minimum is {LEAST_ROWS}",
                hint="add labelled rows; a few thousand judge well",
            )
        classes = np.zeros(self.rows, dtype=np.int64) if self.labels is None else strata(self.labels)
        digest = hashlib.sha256(f"{self.digest()} {seed}".encode()).digest()
        rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
        whole = self._whole_groups(group, selection_share, rng) if group else None
        chosen = _by_class(classes, selection_share, rng) if whole is None else whole
        return self.subset(np.flatnonzero(chosen)), self.subset(np.flatnonzero(~chosen))

    def _whole_groups(self, group: str, share: float, rng: np.random.Generator) -> Bools:
        """Choose whole groups of about ``share`` of the rows, at least one and never all; (rows,)."""
        if group not in self.slices:
            raise BuildError(
                f"holdout.group is {group!r}, the holdout's slices are {sorted(self.slices)}",
                hint="give the column of that name in Holdout(slices=...)",
            )
        names, places, sizes = np.unique(self.slices[group].astype("U"), return_inverse=True, return_counts=True)
        if names.size < 2:
            raise BuildError(
                f"every row of the holdout has {group} {names[0]}: there is only one group",
                hint="leave holdout.group empty, or use a holdout with several groups",
            )
        order = rng.permutation(names.size)
        before = np.cumsum(sizes[order]) - sizes[order]
        wanted = order[(before < share * self.rows) & (np.arange(names.size) < names.size - 1)]
        return np.isin(places, wanted)

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
        groups = (("input", self.inputs), ("slice", self.slices), ("raw", self.raw))
        arrays = {f"{group}/{name}": array for group, named in groups for name, array in named.items()}
        if self.labels is not None:
            arrays["labels"] = self.labels
        if self.padding:
            arrays["padding"] = np.array(self.padding)
        if self.numbers is not None:
            arrays["numbers"] = self.numbers
        save_arrays(path, arrays)

    @staticmethod
    def load(path: Path) -> Holdout:
        """Read what ``save`` wrote."""
        with np.load(path, allow_pickle=False) as arrays:
            named = {name: arrays[name] for name in arrays.files}
        padding = str(named["padding"]) if "padding" in named else ""
        labels, numbers = named.get("labels"), named.get("numbers")
        inputs = {
            name: array.astype(np.object_) if array.dtype.kind == "U" else array
            for name, array in _group(named, "input").items()
        }
        return Holdout(inputs, labels, _group(named, "slice"), padding, numbers, _group(named, "raw"))


def _group(named: Arrays, group: str) -> Arrays:
    return {name.removeprefix(f"{group}/"): each for name, each in named.items() if name.startswith(f"{group}/")}


def _beyond(array: Array, tensor: TensorSpec) -> Bools:
    """Tell which rows have a value outside of the manifest's limits; NaN has none, shape (rows,)."""
    flat: Any = array.reshape(len(array), -1)
    found: Any = np.zeros(flat.shape, np.bool_)
    if tensor.min is not None:
        found |= flat < tensor.min
    if tensor.max is not None:
        found |= flat > tensor.max
    if tensor.values:
        texts = {value.encode() for value in tensor.values if isinstance(value, str)}
        known = {*tensor.values, *texts}
        found |= np.array([value not in known for value in flat.ravel().tolist()], np.bool_).reshape(flat.shape)
    rows: Bools = (found & (flat == flat)).any(axis=1)  # noqa: PLR0124 -- NaN is beyond no limit
    return rows


def _not_finite(array: Array, name: str, number: Callable[[int], int]) -> BuildError:
    bad = np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(axis=1))
    values = array[bad[0]].ravel()
    return BuildError(
        f"the holdout's input {name!r} holds {values[~np.isfinite(values)][0]} in row {number(int(bad[0]))} "
        f"({bad.size} of {len(array)} rows have NaN or infinity), which the manifest does not allow",
        hint="fill the gaps as in production, or set allow_nan = true on that tensor",
    )


def _by_class(classes: Array, share: float, rng: np.random.Generator) -> Bools:
    """Choose ``share`` of the rows of each class; of a class with two rows or more both parts have one. (rows,)"""
    chosen = np.zeros(len(classes), dtype=np.bool_)
    for each in np.unique(classes):
        places = rng.permutation(np.flatnonzero(classes == each))
        least = 1 if len(places) > 1 else 0
        chosen[places[: max(least, min(len(places) - least, round(len(places) * share)))]] = True
    return chosen
