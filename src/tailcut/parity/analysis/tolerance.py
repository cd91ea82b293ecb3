"""How far two answers may be apart and still count as equal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from tailcut.errors import ManifestError
from tailcut.parity.analysis.paths import MISSING

ABSOLUTE, RELATIVE = 1e-5, 1e-4
"""float32 carries 24 bits, about 7 digits (1.2e-7). Kernels that add thousands of products in another order lose up to
three of them: 1e-4 of the value. Values near 0 are differences of larger ones: 1e-5."""


class Tolerance(msgspec.Struct, frozen=True):
    """Two numbers are equal within ``absolute + relative * |pilot's number|``.

    Args:
        absolute, relative: at least 0.
        of_integers: whether two integers are, too; else they are compared exactly, as labels, ids and codes must be.
    """

    absolute: float = ABSOLUTE
    relative: float = RELATIVE
    of_integers: bool = False

    def holds(self, theirs: float, ours: float) -> bool:
        """Whether two numbers are equal within it; infinity equals itself, NaN nothing (see ``is_missing``)."""
        if math.isinf(theirs) or math.isinf(ours):
            return theirs == ours
        return abs(theirs - ours) <= self.absolute + self.relative * abs(theirs)

    def __str__(self) -> str:
        return f"{self.absolute:g} + {self.relative:g} of the value"


DEFAULT = Tolerance()


class Gap(NamedTuple):
    """The outcome of comparing two values.

    Attributes:
        equal: within the tolerance.
        size: largest absolute difference of their numbers; None where they are not both numbers.
    """

    equal: bool
    size: float | None


def parse_tolerance(text: str) -> tuple[str, Tolerance]:
    """Read ``field=1e-4`` or ``field=1e-4,1e-3`` (absolute, relative; one number is both). No field: all of them.

    Integers are compared within the tolerance of a field that is named, not within the one of all.

    Raises:
        ManifestError: a number is missing, negative or not finite.
    """
    name, equals, numbers = text.rpartition("=")
    parts = numbers.split(",")
    try:
        values = [float(part) for part in parts]
    except ValueError:
        values = []
    if len(values) not in {1, 2} or not all(0 <= value < math.inf for value in values) or (equals and not name):
        raise ManifestError(
            f"the tolerance is {text!r}", hint="write FIELD=ABSOLUTE,RELATIVE such as risk=1e-4,1e-3, or one number"
        )
    return name, Tolerance(values[0], values[-1], of_integers=bool(name))


def tolerance_of(name: str, given: Mapping[str, Tolerance]) -> Tolerance:
    """Return the tolerance of a field: its own, else the one for all, else the default."""
    return given.get(name, given.get("", DEFAULT))


def compare(theirs: Any, ours: Any, tolerance: Tolerance = DEFAULT) -> Gap:
    """Compare two values of replies: numbers within the tolerance, lists by their elements, all else exactly.

    null and NaN are one value. Text that is a number is compared as one where the other side is a number. Integers are
    compared exactly, unless the tolerance is of them, too.

    Args:
        theirs: the pilot's.
        ours: the deployment's.
        tolerance: of numbers.
    """
    if theirs is MISSING or ours is MISSING:
        return Gap(theirs is ours, None)
    if isinstance(theirs, list) and isinstance(ours, list):
        return _compare_lists(theirs, ours, tolerance)
    if is_missing(theirs) or is_missing(ours):
        return Gap(is_missing(theirs) and is_missing(ours), None)
    if isinstance(theirs, str) and isinstance(ours, str):
        return Gap(theirs == ours, None)
    one, other = (None, None) if tolerance.of_integers else (_as_integer(theirs), _as_integer(ours))
    if one is not None and other is not None:
        return Gap(one == other, as_number(abs(one - other)))
    return _compare_numbers(theirs, ours, tolerance)


def is_missing(value: Any) -> bool:
    """Whether a value stands for one that is not known: null or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def as_number(value: Any) -> float | None:
    """Return a number, a boolean, or text that is a number, as a float; None for anything else.

    An integer beyond the range of float is infinity, as its text is.
    """
    if isinstance(value, (bool, int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None


def _as_integer(value: Any) -> int | None:
    """Return an integer, a boolean, or text that is an integer; None for anything else."""
    if isinstance(value, float):
        return None
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _compare_numbers(theirs: Any, ours: Any, tolerance: Tolerance) -> Gap:
    first, second = as_number(theirs), as_number(ours)
    if first is None or second is None:
        return Gap(theirs == ours, None)
    return Gap(tolerance.holds(first, second), 0.0 if first == second else abs(first - second))


def _compare_lists(theirs: Sequence[Any], ours: Sequence[Any], tolerance: Tolerance) -> Gap:
    if len(theirs) != len(ours):
        return Gap(False, None)
    gaps = [compare(one, other, tolerance) for one, other in zip(theirs, ours, strict=True)]
    sizes = [gap.size for gap in gaps if gap.size is not None]
    return Gap(all(gap.equal for gap in gaps), max(sizes, default=None) if gaps else 0.0)
