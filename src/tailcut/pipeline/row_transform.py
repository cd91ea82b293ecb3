"""Feature rows -> the model's input arrays -> JSON values: the user's hooks, or the manifest's columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite, prod
from reprlib import repr as shown
from typing import Any

import numpy as np

from tailcut.common.json_values import encode, to_builtins
from tailcut.common.tensors import Array, Arrays
from tailcut.common.texts import texts_of
from tailcut.common.user_frames import place
from tailcut.common.validation import InputSpec, all_finite, check_rows, not_finite
from tailcut.errors import BadRequest, HookError, InferenceError, TailcutError, WrongFields
from tailcut.manifest import Model
from tailcut.models.value_limits import PathLimits, input_specs
from tailcut.pipeline.value_conversion import converted

Rows = Sequence[Mapping[str, Any]]
Preprocess = Callable[[Rows], Arrays]
Postprocess = Callable[[Arrays], list[Any]]

_LONGEST_SHOWN = 500

_TRIED_FIELDS = 500
"""Fields of a refused request that are tried one by one: some two milliseconds."""


class RowTransform:
    """Turns feature rows into input arrays and output arrays into answers.

    Args:
        preprocess: the user's hook, or None to fill each input from its columns (or from its own name in the row).
        postprocess: the user's hook, or None to answer {output name: value} per row.
        fields: that a client's row may have where ``preprocess`` is not the user's; empty: any. Without a preprocess
            they are the columns of the inputs, and ``model.fields``.
    """

    def __init__(
        self,
        model: Model,
        preprocess: Preprocess | None,
        postprocess: Postprocess | None,
        *,
        fields: Sequence[str] = (),
    ) -> None:
        self.specs = input_specs(model)
        self._columns = {tensor.name: tensor.columns for tensor in model.inputs}
        filling = columns_of(model)
        declared = tuple(field.name for field in model.fields if field.name not in filling)
        self._fields = tuple(fields) if preprocess else (*filling, *declared)
        self._required = 1 if preprocess else len(filling)
        self._finite = [tensor.name for tensor in model.outputs if not tensor.allow_nan]
        self._hook = preprocess
        self._postprocess = postprocess or _as_records
        self._checks_answers = postprocess is not None
        self._nan_answers = any(tensor.allow_nan for tensor in model.outputs)

    def inputs(self, rows: Rows, *, from_client: bool) -> Arrays:
        """Return the model's inputs for ``rows``, checked against the manifest.

        Args:
            from_client: whether the client sent the rows (what is wrong with them is then the client's fault) or the
                feature sources did.

        Raises:
            BadRequest: the client's rows cannot be turned into inputs.
            HookError: the hook failed, or rows that the client did not send cannot be turned into inputs.
        """
        if from_client and self._fields:
            for place, row in enumerate(rows):
                if len(row) > self._required:
                    self._check_fields(row, place)
        try:
            arrays = self._from_columns(rows, from_client) if self._hook is None else self._hook(rows)
        except (Exception, SystemExit) as error:  # a hook that wants to exit must not take the server along
            if self._hook is None:
                raise self._unfit_rows(error, from_client) from error
            raise preprocess_failed(error, rows, from_client=from_client) from error
        try:
            given = {spec.name: self._checked(spec, arrays) for spec in self.specs}
            if check_rows({name: len(array) for name, array in given.items()}) != len(rows):
                raise HookError(
                    f"preprocess turned {len(rows)} rows into {len(next(iter(given.values())))}",
                    hint="return one row per feature row in each input",
                )
        except HookError:
            raise
        except Exception as error:
            raise self._unfit_rows(error, from_client) from error
        return given

    def _check_fields(self, row: Mapping[str, Any], place: int) -> None:
        """Refuse a field that nothing reads: it is misspelt, or meant to change the answer."""
        for name in row:
            if name not in self._fields:
                raise WrongFields(
                    f"row {place} has the unknown field {shown(name)}", hint=f"its fields are {', '.join(self._fields)}"
                )

    def _unfit_rows(self, error: BaseException, from_client: bool) -> TailcutError:
        """Return the error for values that the inputs do not take."""
        said = error.message if isinstance(error, TailcutError) else _said(error)
        if from_client:
            kind = WrongFields if isinstance(error, WrongFields) else BadRequest
            return kind(f"the rows cannot be turned into inputs: {said}", hint=self._rows_hint())
        if isinstance(error, _WidthMisfit):
            return HookError(
                f"feature rows cannot be turned into inputs: {error.message}",
                hint="correct the shape or the columns of the input, or what the feature groups answer",
            )
        return HookError(
            "feature rows cannot be turned into inputs",
            hint="run `tailcut check --entity`; the model must accept every row of the feature groups",
            detail=said,
        )

    def answers(self, outputs: Arrays, rows: int) -> list[Any]:
        """Return one JSON value per row.

        Raises:
            InferenceError: an output holds NaN or infinity where the manifest does not allow it; without a hook, bytes
                that are no text.
            HookError: the hook failed or returned another number of values.
        """
        for name in self._finite:
            array = outputs.get(name)
            if array is not None and array.dtype.kind == "f" and not all_finite(array):
                raise not_finite(name)
        try:
            values = self._postprocess(outputs)
        except (Exception, SystemExit) as error:
            if isinstance(error, InferenceError) and not self._checks_answers:
                raise  # there is no hook to blame
            raise HookError(
                f"postprocess failed ({type(error).__name__})",
                hint="fix model.postprocess; `tailcut check` runs it on one row",
                detail=said(error),
            ) from error
        if not isinstance(values, list | tuple | np.ndarray):
            raise HookError(
                f"postprocess returned {type(values).__name__}", hint="return a list with one JSON value per row"
            )
        if len(values) != rows:
            raise HookError(
                f"postprocess returned {len(values)} values for {rows} rows", hint="return one JSON value per row"
            )
        if self._checks_answers:
            check_answers(list(values), nan=self._nan_answers)
        return list(values)

    def _checked(self, spec: InputSpec, arrays: Arrays) -> Array:
        array = arrays.get(spec.name) if isinstance(arrays, Mapping) else None
        if not isinstance(array, np.ndarray):
            seen = type(arrays).__name__ if not isinstance(arrays, Mapping) else f"no input {spec.name!r}"
            if array is not None:
                seen = f"{type(array).__name__} for input {spec.name!r}"
            names = ", ".join(each.name for each in self.specs)
            raise HookError(f"preprocess returned {seen}", hint=f"return a dict of NumPy arrays: {names}")
        if array.dtype != spec.dtype or array.dtype.hasobject:
            array = converted(array, spec)
        self._check_shape(spec, array)
        spec.check_values(array)
        return array

    def _check_shape(self, spec: InputSpec, array: Array) -> None:
        try:
            spec.check_shape(array.shape)
        except BadRequest as error:
            if self._hook is None:
                raise
            raise HookError(f"preprocess: {error.message}", hint=error.hint) from None  # no client chose the shape

    def _from_columns(self, rows: Rows, from_client: bool) -> Arrays:
        try:
            return {spec.name: self._filled(spec, rows, from_client) for spec in self.specs}
        except Exception as error:
            self._refuse_field(rows, from_client)
            raise error from None

    def _filled(self, spec: InputSpec, rows: Rows, from_client: bool) -> Array:
        columns = self._columns[spec.name]
        if columns:
            if _has_vectors(spec, columns):
                values: Any = [[each for column in columns for each in _flat(row[column])] for row in rows]
                try:
                    return _in_shape(converted(values, spec), (len(rows), *spec.tail), spec)
                except BadRequest as error:
                    raise _width_misfit(spec, columns, rows) or error from None
            shape = (len(rows), len(columns))
            try:
                array = _in_shape(converted([[row[column] for column in columns] for row in rows], spec), shape, spec)
            except BadRequest:
                if from_client:
                    raise
                # Vectors of one value, as a model has them; looked for only now: most rows have none.
                values = [[_single(row[column]) for column in columns] for row in rows]
                array = _in_shape(converted(values, spec), shape, spec)
            return array.reshape(len(rows), *spec.tail) if spec.fixed else array
        array = converted([row[spec.name] for row in rows], spec)
        return _in_shape(array, (len(rows), *spec.tail), spec) if spec.fixed else array

    def _refuse_field(self, rows: Rows, from_client: bool) -> None:
        """Name the first field of a row that is missing, or that no input takes; of the first rows only.

        Each field is tried alone, on the event loop: a bad request must not hold others up.

        Raises:
            BadRequest: there is such a field.
        """
        fields = max(self._required, len(self.specs))
        for number, row in enumerate(rows[: max(_TRIED_FIELDS // fields, 1)]):
            for spec in self.specs:
                columns = self._columns[spec.name]
                for name in columns or (spec.name,):
                    if name not in row:
                        raise WrongFields(f"row {number}: the field {name!r} is missing")
                    try:
                        array = converted([row[name]], spec)
                        if columns and _has_vectors(spec, columns):
                            continue  # how long each is, is nowhere said
                        if columns and not from_client and array.size == 1:
                            continue
                        if columns or spec.fixed:
                            _in_shape(array, (1,) if columns else (1, *spec.tail), spec)
                    except BadRequest as error:
                        raise BadRequest(
                            f"row {number}: the field {name!r}: {error.message}", hint=error.hint
                        ) from None

    def _rows_hint(self) -> str:
        if self._hook is not None:
            return "send rows as objects with the fields that model.preprocess reads"
        return f"a row is an object with {', '.join(self._fields[: self._required])}"


def _has_vectors(spec: InputSpec, columns: Sequence[str]) -> bool:
    """Whether some of an input's columns are vectors: it takes more values than it has columns."""
    return spec.fixed and prod(spec.tail) > len(columns)


class _WidthMisfit(BadRequest):
    """The columns of an input have more or fewer values than it takes. Its text has no values of a row."""


def _width_misfit(spec: InputSpec, columns: Sequence[str], rows: Rows) -> _WidthMisfit | None:
    """Return the error for the first of a few rows whose columns have another width than their input."""
    takes = prod(spec.tail)
    for number, row in enumerate(rows[: max(_TRIED_FIELDS // takes, 1)]):
        widths = {name: _count(row[name]) for name in columns}
        if (given := sum(map(widths.__getitem__, columns))) != takes:
            seen = ", ".join(f"{name!r} {width}" for name, width in [*widths.items()][:8])
            return _WidthMisfit(
                f"row {number}: input {spec.name!r} takes {takes} values per row, its columns have {given}: {seen}"
            )
    return None


def _count(value: Any) -> int:
    return sum(map(_count, value)) if isinstance(value, list | tuple) else 1


def _flat(value: Any) -> Sequence[Any]:
    """Return the values of a column, whether it is a vector or not."""
    return value if isinstance(value, list | tuple) else (value,)


def _single(value: Any) -> Any:
    """Return the value of a vector of one, as a model with an output of shape [-1, 1] gives; others as they are."""
    while isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    return value


def _in_shape(array: Array, shape: tuple[int, ...], spec: InputSpec) -> Array:
    """Return an input's values in its shape; a row's may be flat, or a bare number where the input takes one value.

    Raises:
        BadRequest: they have another shape.
    """
    rows, *tail = shape
    flat = (rows, prod(tail)) if len(tail) > 1 else shape
    bare = (rows,) if prod(tail) == 1 else shape
    if array.shape not in (shape, flat, bare):
        expected = f"a list of shape {tail}" if tail else "one value"
        seen = f"a list of shape {list(array.shape[1:])}" if array.ndim > 1 else "one value"
        raise BadRequest(f"input {spec.name!r} takes {expected} per row, got {seen}")
    return array if array.shape == shape else array.reshape(shape)


def columns_of(model: Model) -> tuple[str, ...]:
    """Return the fields that fill the inputs of a model without a preprocess hook, each once."""
    return tuple(dict.fromkeys(name for tensor in model.inputs for name in (tensor.columns or (tensor.name,))))


def limited_inputs(transform: RowTransform, limits: PathLimits | None, rows: Rows, *, from_client: bool) -> Arrays:
    """Return the inputs of rows as a request's are made: held to the limits before and after.

    Raises:
        BadRequest, FeatureUnavailable, HookError: see ``RowTransform.inputs`` and ``PathLimits``.
    """
    if limits is None:
        return transform.inputs(rows, from_client=from_client)
    check = limits.check_rows if from_client else limits.check_fetched
    check(rows)
    inputs = transform.inputs(rows, from_client=from_client)
    limits.check_inputs(inputs, from_client=from_client)
    return inputs


def _as_records(outputs: Arrays) -> list[Any]:
    names = list(outputs)
    columns = [
        (np.array(texts_of(array), object).reshape(array.shape) if array.dtype.hasobject else array).tolist()
        for array in outputs.values()
    ]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _said(error: BaseException) -> str:
    if isinstance(error, KeyError):
        return f"column {error.args[0]!r} is missing"
    return _cut(f"{type(error).__name__}: {error}")  # it may quote the client's rows


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def encode_answer(value: Any) -> bytes:
    """Return answers as JSON, NumPy scalars and arrays included; NaN is null, infinity 1e999.

    Raises:
        HookError: postprocess returned something that JSON does not have.
    """
    try:
        return encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError) as error:
        raise HookError(
            f"postprocess returned a value that JSON cannot hold: {error}",
            hint="return numbers, text, lists and objects only",
        ) from error


# -- Errors of hooks ---------------------------------------------------------------------------------------------------


# Errors of preprocess and postprocess: the status (client's fault or the hook's) and the message for each side. The
# text of an exception may hold anything, such as a password in a connection string, so only the log and the command
# line show it. To show a message to the client, a hook raises ``tailcut.errors.BadRequest``.


def said(error: BaseException) -> str:
    """Return what an exception says and where it was raised; it may quote a client's rows, so it is cut."""
    text = error.explained if isinstance(error, TailcutError) else f"{type(error).__name__}: {error}"
    text = _cut(text)
    where = place(error)
    return f"{text} ({where})" if where else text


def preprocess_failed(error: BaseException, rows: Sequence[Mapping[str, Any]], *, from_client: bool) -> TailcutError:
    """Return the error for a preprocess hook that raised.

    On rows of a client: what it raised as BadRequest is the client's, and so are a field that a row lacks (KeyError)
    and a value that the hook refuses (ValueError, as validators raise). Anything else is a bug in the hook.
    """
    kind = type(error).__name__
    if not from_client:
        return HookError(
            f"preprocess failed on feature rows ({kind})",
            hint="run `tailcut check --entity`; model.preprocess must accept every row of the feature groups",
            detail=said(error),
        )
    if isinstance(error, BadRequest):
        fields = isinstance(error, WrongFields)
        return (WrongFields if fields else BadRequest)(
            error.message, hint=error.hint or "correct the rows", detail=error.detail
        )
    if isinstance(error, KeyError) and error.args:
        key = error.args[0]
        for number, row in enumerate(rows):
            if key not in row:
                if any(type(key) is type(value) and key == value for each in rows for value in each.values()):
                    break
                return WrongFields(
                    f"row {number} has no field {shown(key)}",
                    hint="send rows as objects with the fields that model.preprocess reads",
                )
    if isinstance(error, KeyError | ValueError):
        return BadRequest(
            f"preprocess refuses the rows ({kind})",
            hint="correct the rows; the server's log has the reason under this incident; a hook that raises "
            "tailcut.errors.BadRequest shows it here",
            detail=said(error),
        )
    return HookError(
        f"preprocess failed ({kind})",
        hint="find the reason in the server's log by this incident; to refuse a row, raise tailcut.errors.BadRequest",
        detail=said(error),
    )


def check_answers(values: Sequence[Any], *, nan: bool) -> None:
    """Refuse what a postprocess hook must not answer.

    Args:
        nan: whether NaN and infinity are answers here.

    Raises:
        HookError: an answer holds a set, whose order means nothing, bytes, which JSON does not have, or NaN or infinity
            where these are no answers.
    """
    for number, value in enumerate(values):
        try:
            wrong = _wrong(value, nan)
        except RecursionError:
            return  # encoding says so
        if wrong:
            raise HookError(
                f"postprocess returned {wrong} in the answer for row {number}",
                hint="return numbers, text, lists and dicts; use None for a missing number, and decode bytes",
            )


def _wrong(value: Any, nan: bool) -> str:
    if isinstance(value, list | tuple) and set(map(type, value)) == {float} and isfinite(sum(value)):
        return ""  # long lists of numbers are common, and this is quick
    if isinstance(value, set | frozenset):
        return f"a {type(value).__name__}"
    if isinstance(value, bytes | bytearray | memoryview):
        return "bytes"
    if isinstance(value, float | np.floating) or (isinstance(value, np.ndarray) and value.dtype.kind == "f"):
        return "" if nan or np.isfinite(value).all() else "NaN or infinity"
    return next((wrong for each in _parts(value) if (wrong := _wrong(each, nan))), "")


def _parts(value: Any) -> Iterable[Any]:
    """Return the values inside a value; none where it is a plain one."""
    if value is None or isinstance(value, str | int | float):
        return ()
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, np.generic | np.ndarray):
        return (value.tolist(),) if value.dtype.kind in "OS" else ()
    try:
        plain = to_builtins(value)
    except (TypeError, NotImplementedError):
        return ()  # encoding says so
    return () if plain is value else (plain,)
