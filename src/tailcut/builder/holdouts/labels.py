"""Labels of the holdout as class numbers: which column of the judged output stands for which label.

An estimator says so itself (``classes_``). Of a torch module, an ONNX file or a bare booster only the manifest can
(``holdout.classes``, ``holdout.positive``), or the labels are the columns' numbers, 0 and 1 for a single score.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tailcut.common.scalars import EXACT, Scalar, is_missing, scalar_of
from tailcut.common.tensors import Array
from tailcut.errors import BuildError
from tailcut.manifest import HoldoutSettings as Section
from tailcut.registry.evidence import LabelCoding

FILE = "labels.json"
_SHOWN = 6
_MOST_CLASSES = 100

_WAY_OUT = 'name the classes of the outputs: [holdout] classes = ["no", "yes"], in the order of the output\'s columns'


class Coding(msgspec.Struct, frozen=True, kw_only=True):
    """Which label stands for which class of the judged output.

    Attributes:
        classes: labels in the order of the output's columns; of two, a single score is the second's. Empty: see
            ``positive``.
        positive: the label that a single score stands for; every other label is the negative class.
        origin: who says so.
    """

    classes: tuple[Scalar, ...] = ()
    positive: Scalar | None = None
    origin: str = ""


def coding_of(model: Sequence[Scalar] | None, section: Section) -> Coding | None:
    """Return the coding; None where labels are values, or the columns' own numbers.

    Args:
        model: the estimator's ``classes_``; None where the model has none.
        section: of the manifest.

    Raises:
        BuildError: the manifest says otherwise than the model.
    """
    declared = tuple(map(scalar_of, section.classes))
    known = tuple(model) if model is not None else declared
    if model is not None and declared and declared != known:
        raise BuildError(
            f"holdout.classes are {_listed(declared)}, the model's classes_ are {_listed(known)}",
            hint="leave holdout.classes out: the model names its own classes",
        )
    positive = None if section.positive is None else scalar_of(section.positive)
    if positive is None:
        origin = "the model's classes_" if model is not None else "holdout.classes"
        return Coding(classes=known, origin=origin) if known else None
    if not known:
        return Coding(positive=positive, origin="holdout.positive")
    if len(known) != 2 or known[1] != positive:
        raise BuildError(
            f"holdout.positive is {positive!r}; the classes are {_listed(known)}, and a single score is the "
            "probability of the second of two",
            hint="leave holdout.positive out, or give the output the shape [-1, 2] for the probabilities of both",
        )
    return Coding(classes=known, positive=positive, origin="the model's classes_" if model else "holdout.classes")


def numbered(labels: Array, coding: Coding | None) -> Array:
    """Return labels, (rows,), as class numbers; without a coding, numbers as they are, whole ones as integers.

    Raises:
        BuildError: a label that no class is, or text where nothing says which class it is.
    """
    if coding is None:
        return _uncoded(labels)
    distinct, places = _distinct(labels)
    numbers = _numbers(distinct, Counter(places.tolist()), coding)
    found: Array = np.array(numbers, dtype=np.int64)[places]
    return found


def describe(parts: Sequence[Array], coding: Coding | None) -> LabelCoding | None:
    """Return what the evidence keeps: the coding, and rows per label.

    Args:
        parts: labels as they were given, (rows,) each.
    """
    if not parts or coding is None:
        return None
    counts = Counter(str(scalar_of(label)) for labels in parts for label in labels.tolist())
    return LabelCoding(
        origin=coding.origin,
        classes=list(coding.classes),
        positive=coding.positive,
        rows=dict(sorted(counts.items())),
    )


def check_scores(coding: Coding | None, scores: Array, output: str) -> None:
    """Compare the number of classes with the judged output's columns.

    Args:
        scores: (rows,) or (rows, columns).

    Raises:
        BuildError: they differ.
    """
    if coding is None:
        return
    columns = scores.shape[1] if scores.ndim == 2 else 1
    expected = 2 if coding.positive is not None or columns == 1 else len(coding.classes)
    if columns not in {1, expected} or (columns == 1 and coding.classes and len(coding.classes) != 2):
        raise BuildError(
            f"there are {len(coding.classes) or 2} classes ({_listed(coding.classes) or repr(coding.positive)}), "
            f"output {output!r} has {columns} {'column' if columns == 1 else 'columns'}",
            hint="a single score stands for the second of two classes; more classes need one column each. Name the "
            "output that the labels belong to in holdout.output",
        )


def check_numbers(labels: Array, scores: Array, output: str) -> None:
    """Check labels that are class numbers: each must be a column of the output, or 0 or 1 for a single score.

    Raises:
        BuildError: a label that no output stands for.
    """
    columns = scores.shape[1] if scores.ndim == 2 else 2
    known = np.isin(labels, np.arange(columns))
    if known.all():
        return
    odd = np.unique(labels[~known])
    raise BuildError(
        f"{int((~known).sum())} of {len(labels)} labels are {_listed([scalar_of(each) for each in odd])}, and output "
        f"{output!r} has no class of that number: its classes are 0 to {columns - 1}",
        hint=f"{_WAY_OUT}; or judge it by a metric of values, such as mae",
    )


def whole(labels: Array) -> bool:
    """Tell whether labels may be classes: none of them has a fraction."""
    return labels.dtype.kind != "f" or bool((np.rint(labels) == labels).all())


def strata(labels: Array) -> Array:
    """Return the class of each row where labels are classes, else one class for all.

    Raises:
        BuildError: all labels are the same.
    """
    if labels.ndim != 1:
        return np.zeros(len(labels), dtype=np.int64)
    distinct, places = _distinct(labels)
    if len(distinct) == 1:
        raise BuildError(
            f"every one of the holdout's {len(labels)} labels is {labels[0]}, so quality cannot be judged",
            hint="use a holdout with every outcome",
        )
    return places if whole(labels) and len(distinct) <= _MOST_CLASSES else np.zeros(len(labels), dtype=np.int64)


def write(folder: Path, coding: Coding | None) -> None:
    """Keep the coding for the build's other steps."""
    (folder / FILE).write_bytes(msgspec.json.encode(coding))


def known(folder: Path) -> bool:
    """Tell whether the model's classes are known yet: whether ``write`` was called."""
    return (folder / FILE).exists()


def read(folder: Path) -> Coding | None:
    """Read what ``write`` kept."""
    return msgspec.json.decode((folder / FILE).read_bytes(), type=Coding | None) if known(folder) else None


def _uncoded(labels: Array) -> Array:
    if labels.dtype.kind == "b":
        return labels.astype(np.int64)
    if labels.dtype.kind in "USO":
        raise BuildError(
            f"the holdout's labels are text ({_listed(sorted({str(each) for each in labels.tolist()}))}), but the "
            "model does not name the classes of its outputs",
            hint=_WAY_OUT,
        )
    if labels.dtype.kind == "f" and whole(labels) and bool((np.abs(labels) < EXACT).all()):
        return labels.astype(np.int64)  # 1.0 is the class 1
    return labels


def _distinct(labels: Array) -> tuple[list[Scalar], Array]:
    """Return distinct labels in order, objects in that of their text, and the place of each row's label, (rows,)."""
    if labels.dtype.kind != "O":
        values, places = np.unique(labels, return_inverse=True)
        return [scalar_of(value) for value in values], places
    plain = [scalar_of(label) for label in labels.tolist()]
    order = {label: place for place, label in enumerate(sorted(dict.fromkeys(plain), key=str))}
    return list(order), np.array([order[label] for label in plain], dtype=np.int64)


def _numbers(labels: Sequence[Scalar], rows: Counter[int], coding: Coding) -> list[int]:
    """Return the class number of each distinct label."""
    if not coding.classes:
        if coding.positive not in labels:
            raise BuildError(
                f"holdout.positive is {coding.positive!r}, but no label is: they are {_listed(labels)}",
                hint="name one of the labels, with the same spelling and type",
            )
        return [int(label == coding.positive) for label in labels]
    numbers = {label: number for number, label in enumerate(coding.classes)}
    unknown = [place for place, label in enumerate(labels) if label not in numbers]
    if unknown:
        raise BuildError(
            f"labels {_listed([labels[place] for place in unknown])} ({sum(rows[place] for place in unknown)} rows) "
            f"are none of the classes {_listed(coding.classes)} ({coding.origin})",
            hint="give labels with the spelling and type of the classes, and no rows of other classes",
        )
    return [numbers[label] for label in labels]


def _listed(labels: Sequence[Any]) -> str:
    shown = ", ".join(repr(label) for label in labels[:_SHOWN])
    return shown + (f", ... ({len(labels)} in all)" if len(labels) > _SHOWN else "")


# -- Types -------------------------------------------------------------------------------------------------------------


_TYPES = {
    "boolean": (bool, np.bool_),
    "number": (int, float, np.integer, np.floating),
    "text": (str, bytes),
}
"""Of label objects; the first that fits counts, as a Python boolean is an integer, too."""


def checked(labels: Array) -> Array:
    """Refuse labels that cannot be classes or values, and give objects of numbers or booleans a datatype.

    Args:
        labels: (rows,) or (rows, columns).

    Returns:
        booleans, numbers or fixed-width text as they are; of objects booleans as bool, numbers as int64, uint64 or
        float64, and text as objects of str.

    Raises:
        BuildError: of another type or of several types, of shape (rows, 1), missing in a row, or out of range.
    """
    if labels.dtype.kind not in "biufUSO":
        raise _wrong_type(str(labels.dtype))
    if labels.ndim == 2 and labels.shape[1] == 1:
        raise BuildError(
            f"the holdout's labels have shape {list(labels.shape)}, expected one per row: ({len(labels)},)",
            hint='write labels.ravel(), or take the column by name: frame["y"], not frame[["y"]]',
        )
    if labels.dtype.kind == "O":
        flat = labels.ravel().tolist()
        _refuse_missing(np.array([is_missing(each) for each in flat]).reshape(labels.shape))
        labels = _typed(flat).reshape(labels.shape)
    if labels.dtype.kind == "f":
        _refuse_missing(~np.isfinite(labels))
    return labels


def _wrong_type(found: str) -> BuildError:
    return BuildError(
        f"the holdout's labels are {found}, expected numbers, text or booleans",
        hint="give classes as text, numbers or booleans, and values as numbers",
    )


def _refuse_missing(missing: Array) -> None:
    """Raise BuildError where a label, (rows, ...) of booleans, is missing."""
    rows = np.flatnonzero(missing.reshape(len(missing), -1).any(axis=1))
    if rows.size:
        raise BuildError(
            f"{rows.size} of {len(missing)} labels are NaN, infinite or missing, the first in row {rows[0]}",
            hint="leave out rows without a known outcome",
        )


def _typed(labels: Sequence[Any]) -> Array:
    """Return label objects, flat, as an array of their type."""
    types = [_type_of(each) for each in labels]
    counts = Counter(types)
    if odd := counts.keys() - _TYPES:
        raise _wrong_type(f"of type {', '.join(sorted(odd))}")
    if len(counts) > 1:
        found = "; ".join(f"{name} in {rows}, such as {labels[types.index(name)]!r}" for name, rows in counts.items())
        raise BuildError(
            f"the holdout's {len(labels)} labels are of several types: {found}",
            hint="give all labels as text, all as numbers or all as booleans, of the same type as the classes",
        )
    return _text(labels) if "text" in counts else _numeric(labels)


def _type_of(label: Any) -> str:
    return next((name for name, types in _TYPES.items() if isinstance(label, types)), type(label).__name__)


def _text(labels: Sequence[Any]) -> Array:
    try:
        return np.array([scalar_of(each) for each in labels], dtype=np.object_)
    except UnicodeDecodeError as error:
        raise BuildError(
            f"the holdout's labels hold {error.object!r}, which is not UTF-8", hint="decode the labels to text"
        ) from error


def _numeric(labels: Sequence[Any]) -> Array:
    """Return numbers or booleans as an array; refuse numbers that would not stay what they are."""
    plain = [each.item() if isinstance(each, np.generic) else each for each in labels]
    array: Array = np.array(plain)
    if array.dtype.kind not in "biuf" or array.tolist() != plain:
        raise BuildError(
            f"the holdout's labels hold integers from {min(plain)} to {max(plain)}, more than 64 bits hold",
            hint="give such labels as text",
        )
    return array
