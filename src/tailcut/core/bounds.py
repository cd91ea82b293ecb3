"""Limits of an input's values that the model itself has."""

from __future__ import annotations

import msgspec


class Bound(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of the values of one input tensor, or of some of its columns, that the model itself has.

    Attributes:
        input: name of the tensor.
        columns: positions in the flattened row (the dimensions behind the first) that it is about; empty: all.
        min: smallest value allowed, included; None: no limit. NaN is not its business (allow_nan is).
        max: largest value allowed, included; None: no limit.
        values: the only values allowed; None: any.
        max_length: most characters of a text, or the largest size of a free dimension of a tensor of numbers; None:
            any.
        why: what has this limit, for errors and comments, such as "embedding e.weight has 50 rows".
    """

    input: str
    columns: tuple[int, ...] = ()
    min: float | int | None = None
    max: float | int | None = None
    values: tuple[int | float | str | bool, ...] | None = None
    max_length: int | None = None
    why: str = ""
