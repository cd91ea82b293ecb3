"""Whose fault it is when a preprocess or postprocess hook fails, and what either side is told.

A hook's own words may hold anything (a password in a connection string), so they go to the log and the command line
only. What a hook wants a client to read it raises as ``tailcut.errors.BadRequest``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from reprlib import repr as shown
from typing import Any

import numpy as np

from tailcut.common.json_values import to_builtins
from tailcut.common.user_frames import place
from tailcut.errors import BadRequest, HookError, TailcutError, WrongFields

_LONGEST_SHOWN = 500


def said(error: BaseException) -> str:
    """Return what an exception says and where it was raised; it may quote a client's rows, so it is cut."""
    text = error.explained if isinstance(error, TailcutError) else f"{type(error).__name__}: {error}"
    text = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
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
                if any(_equal(key, value) for each in rows for value in each.values()):
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


def postprocess_failed(error: BaseException) -> HookError:
    """Return the error for a postprocess hook that raised."""
    return HookError(
        f"postprocess failed ({type(error).__name__})",
        hint="fix model.postprocess; `tailcut check` runs it on one row",
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


def _equal(key: object, value: object) -> bool:
    return type(key) is type(value) and key == value
