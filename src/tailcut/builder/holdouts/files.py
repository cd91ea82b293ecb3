"""Holdouts from files: .parquet, .csv or .npz, with the columns that the manifest names.

An input tensor takes the columns that its ``columns`` name; one without takes the column (or .npz array) of its own
name. Where the source is a Hugging Face folder the columns "text" and "text_pair" go through its tokenizer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tailcut.builder.holdouts import tables
from tailcut.builder.holdouts.holdout import Holdout
from tailcut.common.scalars import EXACT, is_missing
from tailcut.common.tensors import NUMPY_OF, Array, Arrays
from tailcut.errors import BuildError, ManifestError
from tailcut.manifest import Manifest, TensorSpec
from tailcut.manifest.keys import nearest

SUFFIXES = (".parquet", ".csv", ".npz")


def is_file(reference: str) -> bool:
    """Tell whether ``holdout.source`` is a path of such a file (else it is a callable)."""
    return reference.lower().endswith(SUFFIXES)


def check_path(manifest: Manifest) -> Path:
    """Return the path of the file that ``holdout.source`` names.

    Raises:
        ManifestError: there is none.
    """
    path = (manifest.directory / manifest.deployment.holdout.source).resolve()
    if not path.is_file():
        near = sorted(each.name for each in path.parent.glob("*") if each.suffix in SUFFIXES)[:5]
        raise ManifestError(
            f"holdout.source: there is no file {path}",
            hint=f"the folder has {', '.join(near)}" if near else "relative paths start at the manifest's folder",
        )
    return path


def load(manifest: Manifest) -> Holdout:
    """Read the file that ``holdout.source`` names.

    Raises:
        ManifestError: no such file.
        BuildError: unreadable, empty, a column missing, or values of another type.
    """
    settings = manifest.deployment.holdout
    path = check_path(manifest)
    columns = _read(manifest, path)
    rows = len(next(iter(columns.values()))) if columns else 0
    if not rows:
        raise BuildError(f"the holdout {path} has no rows", hint="add labelled rows; a few thousand judge well")
    inputs, padding = _inputs(manifest, columns, path)
    labels = np.asarray(_column(columns, settings.labels, "holdout.labels", path)) if settings.labels else None
    named = {
        **dict.fromkeys(settings.slices, "holdout.slices"),
        **({settings.group: "holdout.group"} if settings.group else {}),
    }
    slices = {name: _column(columns, name, key, path) for name, key in named.items()}
    return Holdout(inputs=inputs, labels=labels, slices=slices, padding=padding)


def _read(manifest: Manifest, path: Path) -> Arrays:
    """Return the columns by name: NumPy arrays."""
    try:
        columns = tables.read(path)
        texts = _texts_of(manifest) & columns.keys()
        labels = manifest.deployment.holdout.labels
        if labels in columns and columns[labels].dtype.kind == "O":
            # Labels with a text are texts in all rows: a class "None" is no gap.
            texts |= tables.text_columns(path, columns, [labels])
        return columns | tables.as_text(path, texts)
    except ImportError as error:
        raise BuildError(
            f"reading {path.suffix} needs the package {error.name!r}", hint="pip install pandas pyarrow"
        ) from error
    except Exception as error:  # pandas, pyarrow, zipfile and NumPy each raise their own
        said = str(error).strip().partition("\n")[0]
        raise BuildError(
            f"cannot read the holdout {path}: {type(error).__name__}: {said}",
            hint=f"it must be a {path.suffix[1:]} file; arrays in an .npz hold numbers or text, not objects",
        ) from error


def _texts_of(manifest: Manifest) -> set[str]:
    """Return the columns that the manifest takes as text: of BYTES inputs, slices, and labels with classes of text."""
    settings, inputs = manifest.deployment.holdout, manifest.deployment.model.inputs
    texts = {name for each in inputs if each.datatype == "BYTES" for name in each.columns or (each.name,)}
    numbers = {name for each in inputs if each.datatype != "BYTES" for name in each.columns or (each.name,)}
    classes = (*settings.classes, settings.positive)
    labels = {settings.labels} if any(isinstance(each, str) for each in classes) else set()
    return (texts | labels | {*settings.slices, settings.group}) - numbers


def _column(columns: Arrays, name: str, key: str, path: Path) -> Any:
    if name not in columns:
        close = nearest(name, list(columns))
        names = ", ".join(list(columns)[:12]) + (", ..." if len(columns) > 12 else "")
        raise BuildError(
            f"{key}: the holdout {path.name} has no column {name!r}",
            hint=f"did you mean {close}?" if close else f"it has {names}",
        )
    return columns[name]


def _inputs(manifest: Manifest, columns: Arrays, path: Path) -> tuple[Arrays, str]:
    from tailcut import text

    tensors = manifest.deployment.model.inputs
    if text.FIELD in columns and not any(tensor.name in columns or tensor.columns for tensor in tensors):
        preprocess = text.preprocess_of(manifest)
        if preprocess is not None:
            fields = [name for name in text.fields_of(preprocess) if name in columns]
            values = zip(*(columns[name].tolist() for name in fields), strict=True)
            return preprocess([dict(zip(fields, row, strict=True)) for row in values]), "attention_mask"
    return {tensor.name: _input(tensor, columns, path) for tensor in tensors}, ""


def _input(tensor: TensorSpec, columns: Arrays, path: Path) -> Array:
    if tensor.columns:
        key = f"model.inputs {tensor.name!r}, columns"
        parts = [_values(tensor, _column(columns, name, key, path), name) for name in tensor.columns]
        joined = np.stack(parts, axis=1)
        return joined[:, 0] if len(tensor.shape) == 1 and len(parts) == 1 else joined
    found = _column(columns, tensor.name, "model.inputs", path)
    array = _values(tensor, found, tensor.name)
    return array[:, None] if array.ndim == 1 and tensor.shape[1:] == (1,) else array


def _values(tensor: TensorSpec, values: Any, name: str) -> Array:
    """Return a column in the tensor's datatype (floats as they are); refuse what the datatype cannot hold."""
    wanted = NUMPY_OF[tensor.datatype]
    array = np.asarray(values)
    if tensor.datatype == "BYTES":
        return _texts(array, name)
    if array.dtype.kind == "O":
        array = tables.numbers_of(array)
    if array.dtype.kind == "O":
        array = _plain(array, name)
    if array.dtype.kind not in "biuf":
        raise BuildError(
            f"column {name!r} of the holdout holds {array.dtype}, {tensor.name!r} is {tensor.datatype}",
            hint="convert it to numbers as in production, or build the holdout with a callable",
        )
    if wanted.kind == "f" and array.dtype.kind in "iuf":
        return array  # ``datatypes`` rounds it, and keeps what it was
    if wanted.kind != "f":
        _check_held(tensor, array, name)
    return np.ascontiguousarray(array.astype(wanted))


def _check_held(tensor: TensorSpec, array: Array, name: str) -> None:
    """Refuse numbers, (rows, ...), that an integer datatype or BOOL does not hold: astype would wrap them around."""
    given: Any = array
    if tensor.datatype == "BOOL":
        held = (given == 0) | (given == 1)
    else:
        limits = np.iinfo(NUMPY_OF[tensor.datatype].str)
        held = (given >= limits.min) & (given <= limits.max)
        if array.dtype.kind == "f":
            held &= (np.rint(given) == given) & (np.abs(given) < EXACT)
    bad = np.flatnonzero(~held.reshape(len(array), -1).all(axis=1))
    if bad.size:
        value = given[bad[0]][~held[bad[0]]].ravel()[0] if array.ndim > 1 else given[bad[0]]
        raise BuildError(
            f"column {name!r} of the holdout holds {value} in row {bad[0]}, {tensor.name!r} is "
            f"{tensor.datatype} ({bad.size} such rows)",
            hint="fill the gaps as in production, or declare a datatype that holds all values, such as FP32",
        )


def _texts(array: Array, name: str) -> Array:
    """Return text as objects: bytes as UTF-8, a number as its digits, a missing value as it is."""
    found = np.empty(array.size, np.object_)
    try:
        found[:] = [value if is_missing(value) else _text(value) for value in array.ravel().tolist()]
    except UnicodeDecodeError as error:
        raise BuildError(
            f"column {name!r} of the holdout holds {error.object!r}, which is not UTF-8",
            hint="decode the column to text before it is written",
        ) from error
    return found.reshape(array.shape)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _plain(array: Array, name: str) -> Array:
    """Make lists of numbers in a column (embeddings, token ids) one array."""
    try:
        return np.stack([np.asarray(value) for value in array.tolist()])
    except ValueError as error:
        raise BuildError(
            f"column {name!r} of the holdout holds lists of different lengths", hint="pad them as in production"
        ) from error
