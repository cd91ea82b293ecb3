"""Feature rows -> the model's input arrays -> JSON values: the user's hooks, or the manifest's columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from tailcut.core.tensors import Array, Arrays
from tailcut.core.validation import InputSpec, check_rows
from tailcut.errors import BadRequest, HookError, TailcutError
from tailcut.manifest import Model

Rows = Sequence[Mapping[str, Any]]
Preprocess = Callable[[Rows], Arrays]
Postprocess = Callable[[Arrays], list[Any]]


def input_specs(model: Model) -> tuple[InputSpec, ...]:
    """Return what each input of the manifest must be."""
    return tuple(InputSpec(t.name, t.datatype, t.shape, allow_nan=t.allow_nan) for t in model.inputs)


class Assembly:
    """Turns feature rows into input arrays and output arrays into answers.

    Args:
        preprocess: the user's hook, or None to fill each input from its columns (or from its own name in the row).
        postprocess: the user's hook, or None to answer {output name: value} per row.
    """

    def __init__(self, model: Model, preprocess: Preprocess | None, postprocess: Postprocess | None) -> None:
        self.specs = input_specs(model)
        self._columns = {tensor.name: tensor.columns for tensor in model.inputs}
        self._preprocess = preprocess or self._from_columns
        self._postprocess = postprocess or _as_records

    def inputs(self, rows: Rows, *, from_client: bool) -> Arrays:
        """Return the model's inputs for ``rows``, checked against the manifest.

        Args:
            from_client: whether the client sent the rows (a failure is then the client's) or the feature sources did.

        Raises:
            BadRequest: the client's rows cannot be turned into inputs.
            HookError: the hook failed on rows that the client did not send.
        """
        try:
            arrays = self._preprocess(rows)
            given = {spec.name: self._checked(spec, arrays) for spec in self.specs}
            if check_rows({name: len(array) for name, array in given.items()}) != len(rows):
                raise HookError(f"preprocess turned {len(rows)} rows into {len(next(iter(given.values())))}")
        except HookError:
            raise
        except Exception as error:
            said = error.message if isinstance(error, TailcutError) else _said(error)
            if from_client:
                raise BadRequest(f"the rows cannot be turned into inputs: {said}", hint=self._rows_hint()) from error
            raise HookError(
                f"preprocess failed on feature rows: {said}",
                hint="run `tailcut check`; model.preprocess must take every row that the feature groups can yield",
            ) from error
        return given

    def answers(self, outputs: Arrays, rows: int) -> list[Any]:
        """Return one JSON value per row.

        Raises:
            HookError: the hook failed or returned another number of values.
        """
        try:
            values = self._postprocess(outputs)
        except Exception as error:
            raise HookError(f"postprocess failed: {_said(error)}", hint="run `tailcut check`") from error
        if len(values) != rows:
            raise HookError(
                f"postprocess returned {len(values)} values for {rows} rows", hint="return one JSON value per row"
            )
        return values

    def _checked(self, spec: InputSpec, arrays: Arrays) -> Array:
        array = arrays.get(spec.name)
        if array is None:
            raise HookError(
                f"preprocess returned no input {spec.name!r}", hint=f"return {[s.name for s in self.specs]}"
            )
        if array.dtype != spec.dtype:
            array = array.astype(spec.dtype)
        spec.check_shape(array.shape)
        spec.check_values(array)
        return array

    def _from_columns(self, rows: Rows) -> Arrays:
        arrays: Arrays = {}
        for spec in self.specs:
            columns = self._columns[spec.name]
            if columns:
                values: Any = [[row[column] for column in columns] for row in rows]
            else:
                values = [row[spec.name] for row in rows]
            array = np.array(values, dtype=spec.dtype)
            arrays[spec.name] = array.reshape(len(rows), *spec.tail) if spec.fixed else array
        return arrays

    def _rows_hint(self) -> str:
        columns = [name for spec in self.specs for name in (self._columns[spec.name] or (spec.name,))]
        return f"a row is an object with {', '.join(columns)}" if columns else "see model.preprocess"


def _as_records(outputs: Arrays) -> list[Any]:
    names = list(outputs)
    columns = [array.tolist() for array in outputs.values()]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _said(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"column {error.args[0]!r} is missing"
    return f"{type(error).__name__}: {error}"


def encode_answer(value: Any) -> bytes:
    """Return one answer as JSON, NumPy scalars and arrays included."""
    return msgspec.json.encode(value, enc_hook=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise NotImplementedError(f"postprocess returned {type(value).__name__}, which is not JSON")
