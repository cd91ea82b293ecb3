"""Whether an array is what the manifest says an input is. Every refusal names the input, the value and the limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import isfinite
from reprlib import repr as shown
from typing import Any

import numpy as np

from tailcut.common.bounds import Bound, Limits
from tailcut.common.tensors import NUMPY_OF, Array
from tailcut.errors import BadRequest, InferenceError, TooLarge

_LARGEST_SIZE = 2**31 - 1

_FEW = 16

_HALF_BYTES = 2
"""BLAS has no FP16, so that its detour through NumPy's own loop is no gain there."""


class InputSpec:
    """What one input must be.

    Args:
        shape: with -1 for the batch (first) and for every free dimension.
        allow_nan: whether NaN and infinity pass, and missing texts.
        bounds: of its values.

    Attributes:
        limits: the bounds, compiled; None where there are none.
    """

    __slots__ = (
        "_last",
        "_tail_list",
        "allow_nan",
        "datatype",
        "dtype",
        "fixed",
        "is_float",
        "limits",
        "must_be_finite",
        "name",
        "shape",
        "tail",
        "tail_size",
    )

    def __init__(
        self,
        name: str,
        datatype: str,
        shape: Sequence[int],
        *,
        allow_nan: bool = False,
        bounds: Sequence[Bound] = (),
    ) -> None:
        self.name = name
        self.datatype = datatype
        self.dtype = NUMPY_OF[datatype]
        self.shape = tuple(shape)
        self.tail = self.shape[1:]
        self._tail_list = list(self.tail)
        self._last: list[int] | None = None
        self.fixed = -1 not in self.tail
        self.tail_size = int(np.prod(self.tail)) if self.fixed else -1
        self.is_float = datatype in {"FP16", "FP32", "FP64"}
        self.allow_nan = allow_nan
        self.must_be_finite = self.is_float and not allow_nan
        self.limits = Limits(name, datatype, self.shape, bounds, allow_nan=allow_nan) if bounds else None

    def check_shape(self, shape: Sequence[int]) -> None:
        """Refuse a shape with another rank, another fixed dimension, or no rows."""
        if self.fixed and shape[0:1] and shape[0] >= 1 and list(shape[1:]) == self._tail_list:
            return
        if shape == self._last:
            return
        wanted = self.shape
        if len(shape) == len(wanted):
            for want, have in zip(wanted, shape, strict=True):
                if have < 1 or want not in (have, -1):
                    break
            else:
                self._last = list(shape)  # most clients send the same again
                return
        small = next((have for have in shape if have < 1), None)
        why = "-1 is free, at least 1" if small is None else f"-1 stands for any size of at least 1, not for {small}"
        raise BadRequest(
            f"input {self.name!r} has shape {shown(list(shape))}, expected {list(wanted)} ({why})",
            hint="the first dimension is the batch; a single row needs shape "
            + str([1, *(max(d, 1) for d in self.tail)]),
        )

    def check_size(self, shape: Sequence[int], max_rows: int) -> None:
        """Refuse a shape that is right but too large, before anything is made of it.

        Raises:
            TooLarge: more than ``max_rows`` rows.
            BadRequest: a dimension of 2**31 or more.
        """
        if max(shape) > _LARGEST_SIZE:
            raise BadRequest(
                f"input {self.name!r} has shape {shown(list(shape))}, the limit per dimension is {_LARGEST_SIZE}",
                hint="make data and shape agree",
            )
        if shape[0] > max_rows:
            raise TooLarge(
                f"input {self.name!r} has {shape[0]} rows, the limit is {max_rows}",
                hint="send fewer rows at once, or raise batching.max_queue_rows",
            )

    def check_values(self, array: Array) -> None:
        """Refuse NaN and infinity where the model cannot take them."""
        if not self.must_be_finite:
            return
        if not all_finite(array):
            place = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
            value = "NaN (in JSON null)" if np.isnan(array[place]) else "infinity"
            raise BadRequest(
                f"input {self.name!r} holds {value} in row {place[0]}, which this model does not accept",
                hint="send a number, or set allow_nan = true for this input if the model handles NaN",
            )


def limits_of(specs: Iterable[InputSpec]) -> tuple[tuple[str, Limits], ...]:
    """Return the limits of the inputs that have any, by name."""
    return tuple((spec.name, spec.limits) for spec in specs if spec.limits is not None)


def all_finite(array: Array) -> bool:
    """Return whether a floating point array holds neither NaN nor infinity."""
    # As below, without NumPy's fixed cost of a microsecond.
    if array.size <= _FEW and isfinite(sum(array.ravel().tolist())):
        return True
    if array.dtype.itemsize > _HALF_BYTES:
        # NaN and infinity make the sum of squares NaN or infinite, and BLAS has it in a fifth of the time of
        # isfinite().all() at 64 values; large finite values may too, so then the values are looked at one by one.
        # vdot, because dot warns where large finite values overflow.
        flat: Any = array
        if isfinite(np.vdot(flat, flat)):
            return True
    return bool(np.isfinite(array).all())


def not_finite(output: str) -> InferenceError:
    """Return the error for an output that holds NaN or infinity where neither is an answer."""
    return InferenceError(
        f"the model returned NaN or infinity in output {output!r}",
        hint="check the inputs of the request; set allow_nan = true for this output if such values are valid",
    )


def check_rows(rows_by_input: dict[str, int]) -> int:
    """Return the number of rows that all inputs agree on, or refuse."""
    rows = set(rows_by_input.values())
    if len(rows) != 1:
        listed = ", ".join(f"{name}: {count}" for name, count in rows_by_input.items())
        raise BadRequest(
            f"inputs have different numbers of rows ({listed})", hint="send the same number of rows in every input"
        )
    return rows.pop()


def check_names(given: Sequence[str], wanted: Sequence[str], what: str) -> None:
    """Refuse missing, unknown or repeated names."""
    if len(set(given)) != len(given):
        repeated = Counter(given).most_common(1)[0][0]
        raise BadRequest(f"{what} {shown(repeated)} is given twice", hint=f"send each {what} once")
    missing = [name for name in wanted if name not in given]
    unknown = [name for name in given if name not in wanted]
    if missing or unknown:
        said = [f"{what} {missing[0]!r} is missing"] if missing else []
        said += [f"{what} {shown(unknown[0])} is unknown"] if unknown else []
        raise BadRequest("; ".join(said), hint=f"this model's {what}s are: {', '.join(wanted)}")
