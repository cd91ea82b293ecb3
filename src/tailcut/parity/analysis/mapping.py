"""Which field of the pilot's replies belongs to which output of the deployment."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tailcut.errors import ManifestError
from tailcut.parity.analysis.paths import (
    MISSING,
    FieldPath,
    leaves,
    output_name,
    output_path,
    parse_path,
    predictions_of,
)
from tailcut.parity.analysis.tolerance import as_number, compare, is_missing

_LONGEST_LIST = 64
"""Lists up to this long are looked into for the one value that the other side gives."""
_CORRELATED = 0.8
_LEAST_ROWS = 4
"""Fewer rows correlate by chance."""

Column = list[Any]
"""One value per row, over all requests that were looked at; ``MISSING`` where a reply has none."""


class Answered(NamedTuple):
    """A request that both sides answered.

    Attributes:
        theirs: the pilot's reply, decoded.
        ours: the deployment's reply, decoded.
        rows: how many rows the request had.
    """

    theirs: Any
    ours: Any
    rows: int


class Pair(NamedTuple):
    """Two fields that are compared.

    Attributes:
        theirs: path in the pilot's reply.
        ours: path in one prediction of the deployment.
        why: how the pair came about.
    """

    theirs: FieldPath
    ours: FieldPath
    why: str

    @property
    def name(self) -> str:
        """Name of the output."""
        return output_name(self.ours)


Step = Callable[[FieldPath, Column, Mapping[FieldPath, Column], Mapping[FieldPath, Column]], Pair | None]
"""Finds the pilot's field of an output: its path and column, the pilot's columns that are left, the deployment's."""


def parse_pair(text: str) -> Pair:
    """Read ``pilot.path=output``.

    Raises:
        ManifestError: it is no pair of paths.
    """
    theirs, equals, ours = text.rpartition("=")
    if not equals or not theirs or not ours:
        raise ManifestError(f"the mapping is {text!r}", hint="write PILOT.PATH=OUTPUT, such as scores[].late=risk")
    return Pair(parse_path(theirs), output_path(ours), "given")


def guess_pairs(answered: Sequence[Answered]) -> list[Pair]:
    """Pair the fields of both sides: by name, then the only one of its kind that is left, then by their values.

    Args:
        answered: the first requests that both sides answered.
    """
    every = (_their_columns(answered), _our_columns(answered))
    whole = (_whole(every[0]), _whole(every[1]))
    pairs: list[Pair] = []
    for step in (_by_name, _by_kind, _by_values):
        for theirs, ours in (whole, every):
            pairs += _paired(step, theirs, ours, pairs)
    return pairs


def unmatched(pairs: Sequence[Pair], answered: Sequence[Answered]) -> tuple[list[str], list[str]]:
    """Return the pilot's fields and the deployment's outputs that no pair has."""
    left = [path for path in _their_columns(answered) if not any(_within(pair.theirs, path) for pair in pairs)]
    rest = [path for path in _our_columns(answered) if not any(_within(pair.ours, path) for pair in pairs)]
    return [str(path) for path in left], [output_name(path) for path in rest]


def _paired(
    step: Step, theirs: Mapping[FieldPath, Column], ours: Mapping[FieldPath, Column], before: Sequence[Pair]
) -> list[Pair]:
    """Pair by one step those columns that are in no pair yet."""
    taken = {pair.theirs for pair in before}
    left = {path: column for path, column in theirs.items() if path not in taken}
    pairs: list[Pair] = []
    for path, column in ours.items():
        if any(pair.ours == path for pair in before):
            continue
        found = step(path, column, left, ours)
        if found is not None:
            left.pop(found.theirs, None)
            pairs.append(found)
    return pairs


def _by_name(
    path: FieldPath, column: Column, theirs: Mapping[FieldPath, Column], _: Mapping[FieldPath, Column]
) -> Pair | None:
    wanted = _plain_name(path.name)
    found = [one for one, values in theirs.items() if _plain_name(one.name) == wanted and _kind(values) != "other"]
    same = [one for one in found if _alike(_kind(theirs[one]), _kind(column))]
    return Pair(same[0], path, "same name") if wanted and len(same) == 1 else None


def _by_kind(
    path: FieldPath, column: Column, theirs: Mapping[FieldPath, Column], ours: Mapping[FieldPath, Column]
) -> Pair | None:
    kind = _kind(column)
    mates = [one for one, values in ours.items() if _alike(_kind(values), kind)]
    found = [one for one, values in theirs.items() if _alike(_kind(values), kind)]
    if len(mates) == 1 and len(found) == 1 and kind != "other":
        return Pair(found[0], path, f"the only {kind} on both sides")
    return None


def _by_values(
    path: FieldPath, column: Column, theirs: Mapping[FieldPath, Column], _: Mapping[FieldPath, Column]
) -> Pair | None:
    """Take the field whose values are equal most often, else those that rise and fall with ours."""
    pairs = [
        (score, one, other)
        for other, mine in _spread({path: column})
        for one, values in _spread(theirs)
        if (score := _likeness(values, mine)) is not None
    ]
    if not pairs:
        return None
    (share, correlation), one, other = max(pairs, key=lambda found: found[0])
    why = f"equal in {share:.0%} of the rows" if share >= 0.5 else f"correlation {correlation:.2f}"
    return Pair(one, other, why)


def _likeness(theirs: Column, ours: Column) -> tuple[float, float] | None:
    """Return the share of equal rows and the correlation; None where neither speaks for a pair."""
    both = [
        (one, other)
        for one, other in zip(theirs, ours, strict=True)
        if not (is_missing(one) or is_missing(other) or one is MISSING or other is MISSING)
    ]
    if len(both) < _LEAST_ROWS or len({str(other) for _, other in both}) < 2:
        return None
    share = sum(compare(one, other).equal for one, other in both) / len(both)
    numbers = [
        (one, other)
        for one, other in ((as_number(one), as_number(other)) for one, other in both)
        if one is not None and other is not None
    ]
    correlated = correlation(numbers) if len(numbers) == len(both) else 0.0
    return (share, correlated) if share >= 0.5 or correlated >= _CORRELATED else None


def correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Pearson's correlation of pairs of finite numbers; 0 where one side does not vary."""
    pairs = [pair for pair in pairs if math.isfinite(pair[0]) and math.isfinite(pair[1])]
    if not pairs:
        return 0.0
    first, second = (sum(side) / len(pairs) for side in zip(*pairs, strict=True))
    top = sum((one - first) * (other - second) for one, other in pairs)
    below = math.sqrt(sum((one - first) ** 2 for one, _ in pairs) * sum((other - second) ** 2 for _, other in pairs))
    return top / below if below > 0 else 0.0


def _their_columns(answered: Sequence[Answered]) -> dict[FieldPath, Column]:
    return _columns([leaves(one.theirs, one.rows) for one in answered], answered)


def _our_columns(answered: Sequence[Answered]) -> dict[FieldPath, Column]:
    return _columns([predictions_of(one.ours, one.rows) for one in answered], answered)


def _columns(found: Sequence[dict[FieldPath, list[Any]]], answered: Sequence[Answered]) -> dict[FieldPath, Column]:
    """Put the values of all requests below one another, ``MISSING`` where a reply lacks a path."""
    columns: dict[FieldPath, Column] = {path: [] for one in found for path in one}
    for one, asked in zip(found, answered, strict=True):
        for path, column in columns.items():
            column.extend(one.get(path, [MISSING] * asked.rows))
    return columns


def _whole(columns: Mapping[FieldPath, Column]) -> dict[FieldPath, Column]:
    """Return the columns that no reply lacks."""
    return {path: column for path, column in columns.items() if all(value is not MISSING for value in column)}


def _spread(columns: Mapping[FieldPath, Column]) -> Iterator[tuple[FieldPath, Column]]:
    """Yield each column, and of columns of short lists each element's."""
    for path, column in columns.items():
        yield path, column
        lengths = {len(value) if isinstance(value, list) else -1 for value in column if value is not MISSING}
        if len(lengths) == 1 and 0 < (length := lengths.pop()) <= _LONGEST_LIST:
            for place in range(length):
                yield path.under(place), [value if value is MISSING else value[place] for value in column]


def _kind(column: Column) -> str:
    values = [value for value in column if not is_missing(value) and value is not MISSING]
    if not values:
        return "other"
    if all(isinstance(value, list) for value in values):
        return "list"
    if all(isinstance(value, bool) for value in values):
        return "boolean"
    if all(as_number(value) is not None for value in values):
        return "number"
    return "text" if all(isinstance(value, str) for value in values) else "other"


def _alike(first: str, second: str) -> bool:
    return first == second or {first, second} == {"boolean", "number"}


def _plain_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _within(outer: FieldPath, path: FieldPath) -> bool:
    """Whether one of two paths begins with the other."""
    length = min(len(outer.steps), len(path.steps))
    return outer.steps[:length] == path.steps[:length]
