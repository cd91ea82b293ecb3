"""Sketches of reference columns: of bounded size, whatever the rows, and enough to compare later rows with.

A sketch parts the values of a column into cells. Numbers: about twenty quantile ranges, a value that is frequent has a
cell of its own; below and above what the reference has seen are cells, too. Categories: the most frequent ones, the
rest, those never seen. The last cell is what is missing (NaN, an empty text).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isnan
from typing import Literal

import msgspec
import numpy as np

from tailcut.common.tensors import Array, Doubles
from tailcut.errors import ArtifactError
from tailcut.manifest import TensorSpec

QUANTILES = 20
"""Ranges of equal share that the values of a column of numbers are parted into."""
TOP = 32
"""Categories that have a cell of their own."""
KNOWN = 1024
"""Categories whose names are kept, so that new ones can be told from rare ones."""
CODES = 64
"""Integers of at most so many different values are categories (codes), of more they are numbers."""

Role = Literal["input", "output"]
LARGEST = float(np.finfo(np.float64).max) / 2
"""Numbers beyond count as this one, infinity too: a cell cannot begin behind infinity."""
_NAME = 64
"""Characters of a category's name that are kept; texts are told apart by them."""


class Sketch(msgspec.Struct, frozen=True, kw_only=True):
    """One column of the reference.

    Attributes:
        role: whether it goes into the model or comes out.
        name: of the column.
        edges: of numbers: the lower end of each cell but the first (-infinity), ascending; empty for categories.
        categories: of categories: those with a cell of their own, the most frequent first.
        others: known categories without one; ``all_known`` tells whether they are all of them.
        counts: reference rows per cell. Numbers: ``len(edges) + 1``; categories: each, the rest, never seen.
        missing: reference rows without a value.
        effective_rows: rows that the estimate is worth, where rows of the reference belong together; at most all.
    """

    role: Role
    name: str
    counts: tuple[int, ...]
    missing: int
    effective_rows: float
    edges: tuple[float, ...] = ()
    categories: tuple[int | str, ...] = ()
    others: tuple[int | str, ...] = ()
    all_known: bool = True

    @property
    def rows(self) -> int:
        """Reference rows."""
        return sum(self.counts) + self.missing

    @property
    def is_numeric(self) -> bool:
        """Whether it holds numbers."""
        return bool(self.edges)

    @property
    def cells(self) -> int:
        """Number of cells, the last of which is "missing"."""
        return len(self.counts) + 1

    def labels(self) -> tuple[str, ...]:
        """Name each cell for people, (cells,)."""
        if not self.is_numeric:
            named = tuple(str(each) for each in self.categories)
            return (*named, "(other)", "(unseen)", "(missing)")
        shown = [f"{edge:.4g}" for edge in self.edges]
        inner = [f"{low} to {high}" for low, high in pairwise(shown)]
        return (f"below {shown[0]}", *inner, f"above {shown[-1]}", "(missing)")


def sketch(role: Role, name: str, values: Array, effective_rows: float | None = None) -> Sketch:
    """Sketch one column.

    Args:
        role: see ``Sketch``.
        name: of the column.
        values: (rows,) of numbers, booleans or texts; at least one row.
        effective_rows: see ``Sketch``; by default all rows.

    Raises:
        ValueError: no rows.
    """
    if not len(values):
        raise ValueError(f"column {name!r} of the reference has no rows; a sketch needs at least one")
    effective = float(len(values) if effective_rows is None else min(effective_rows, len(values)))
    if is_coded(values):
        return _of_categories(role, name, values, effective)
    return _of_numbers(role, name, values.astype(np.float64), effective)


def is_coded(values: Array) -> bool:
    """Tell whether a column's values are categories: texts, booleans, or integers of few different values."""
    kind = values.dtype.kind
    return kind not in "fiu" or (kind in "iu" and len(np.unique(values)) <= CODES)


def plain_category(value: object) -> int | str:
    """Return a category as a sketch keeps it: a whole number, or the begin of a text; missing is ""."""
    if isinstance(value, bool | int | np.integer | np.bool_):
        return int(value)
    if value is None or (isinstance(value, float) and isnan(value)):
        return ""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text[:_NAME]


def _of_numbers(role: Role, name: str, values: Doubles, effective: float) -> Sketch:
    gone = np.isnan(values)
    known = np.clip(values[~gone], -LARGEST, LARGEST)
    edges = _edges(known) if len(known) else np.zeros(1)
    counts = np.bincount(np.searchsorted(edges, known, "right"), minlength=len(edges) + 1)
    return Sketch(
        role=role,
        name=name,
        edges=tuple(edges.tolist()),
        counts=tuple(counts.tolist()),
        missing=int(gone.sum()),
        effective_rows=effective,
    )


def _edges(known: Doubles) -> Doubles:
    """Return the lower ends of the cells: quantiles, and a cell for each value that as many rows have as a range."""
    levels = np.linspace(0, 1, QUANTILES + 1)
    at = np.quantile(known, levels, method="inverted_cdf")
    values, times = np.unique(at, return_counts=True)
    frequent = values[times > 1]
    # The largest value still belongs to the reference's range: "above" begins behind it.
    return np.unique([*values[:-1], *np.nextafter(frequent, np.inf), np.nextafter(values[-1], np.inf), values[-1]])


def _of_categories(role: Role, name: str, values: Array, effective: float) -> Sketch:
    # Unsigned numbers beyond INT64 wrap, here as in ``cells``: a category is compared, not calculated with.
    plain = values.astype(np.int64) if values.dtype.kind == "u" else values
    counted: Counter[int | str] = Counter()
    for value, times in Counter(plain.tolist()).items():
        counted[plain_category(value)] += times
    missing = counted.pop("", 0)
    ordered = sorted(counted, key=lambda each: (-counted[each], str(each)))
    top, others = ordered[:TOP], ordered[TOP:]
    rest = sum(counted[each] for each in others)
    return Sketch(
        role=role,
        name=name,
        categories=tuple(top),
        others=tuple(others[: KNOWN - TOP]),
        all_known=len(ordered) <= KNOWN,
        counts=(*(counted[each] for each in top), rest, 0),
        missing=missing,
        effective_rows=effective,
    )


def effective_rows(groups: Array | None, rows: int) -> float:
    """Return what a reference is worth whose rows hang together, in rows that do not.

    Kish's effective number n^2 / sum of squared sizes (Survey Sampling, 1965): as if all rows of a group were alike.

    Args:
        groups: (rows,) of the group of each row, such as its entity or its day; None where each row stands for itself.
        rows: of the reference.
    """
    if groups is None:
        return float(rows)
    _, sizes = np.unique(groups, return_counts=True)
    return rows**2 / float(np.square(sizes, dtype=np.float64).sum())


# -- Columns of tensors, and the reference of a version ----------------------------------------------------------------


MOST = 256
"""Columns of one tensor that are watched one by one."""


def columns_of(role: Role, spec: TensorSpec, array: Array) -> dict[str, Array]:
    """Return the columns of one tensor of a batch, (rows,) each, by name: what is watched.

    A tensor of (rows,) is one column, one of (rows, d) is d columns; one with more columns than are watched is summed
    up per row, by mean and standard deviation. With a free dimension (tokens) padding is in the values, and differs
    from batch to batch: of integers it is watched how many elements of a row are not zero, of other values nothing.

    Args:
        role: whether it goes into the model or comes out.
        spec: of the tensor.
        array: (rows, ...).
    """
    flat = array.reshape(len(array), -1)
    width = flat.shape[1]
    if -1 in spec.shape[1:]:
        if role == "output" or flat.dtype.kind not in "iu":
            return {}
        # As a float: a length is a number, however few different ones there are.
        return {f"{spec.name}.nonzero": np.count_nonzero(flat, axis=1).astype(np.float64)}
    if width > MOST:
        wide = None if flat.dtype.hasobject else flat.astype(np.float64)
        return {} if wide is None else {f"{spec.name}.mean": wide.mean(1), f"{spec.name}.std": wide.std(1)}
    names: Sequence[str] = spec.columns
    if len(names) != width:
        names = [spec.name] if width == 1 else [f"{spec.name}[{place}]" for place in range(width)]
    return dict(zip(names, flat.T, strict=True))


NAME = "drift"
"""Name of the file beside a version's artifacts; see ``Registry.file``."""

FORM = 1


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """What a version's inputs and outputs were like on the holdout.

    Attributes:
        form: number of the form; a reader refuses a later one.
        inputs: sketches of input columns.
        outputs: variant -> sketches of its output columns.
    """

    form: int = FORM
    inputs: tuple[Sketch, ...]
    outputs: dict[str, tuple[Sketch, ...]] = {}

    def of(self, variant: str) -> tuple[Sketch, ...]:
        """Return the sketches of inputs and of one variant's outputs."""
        return (*self.inputs, *self.outputs.get(variant, ()))


def sketches_of(
    role: Role, specs: Sequence[TensorSpec], arrays: Mapping[str, Array], groups: Array | None = None
) -> tuple[Sketch, ...]:
    """Sketch every column of tensors.

    Args:
        role: whether they go into the model or come out.
        specs: of the tensors; those without an array are left out.
        arrays: name -> (rows, ...).
        groups: (rows,) of what rows belong to that hang together; None where each row stands for itself.
    """
    found = []
    for spec in specs:
        if spec.name not in arrays:
            continue
        array = arrays[spec.name]
        worth = effective_rows(None if groups is None else groups[: len(array)], len(array))
        found += [sketch(role, name, values, worth) for name, values in columns_of(role, spec, array).items()]
    return tuple(found)


def encode(reference: Reference) -> bytes:
    """Write a reference as JSON; the same one gives the same bytes."""
    return msgspec.json.encode(reference)


def decode(content: bytes) -> Reference:
    """Read what ``encode`` wrote.

    Raises:
        ArtifactError: it is something else, or of a later form.
    """
    hint = "run `tailcut build` again, which sketches the holdout anew"
    try:
        found = msgspec.json.decode(content, type=Reference)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ArtifactError(f"the drift reference cannot be read: {error}", hint=hint) from error
    if found.form > FORM:
        raise ArtifactError(
            f"the drift reference has form {found.form}, but this tailcut reads up to {FORM}",
            hint=f"upgrade tailcut, or {hint}",
        )
    return found
