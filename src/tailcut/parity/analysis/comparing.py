"""The outcome of one request on both sides, and the figures over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from tailcut.parity.analysis.mapping import FieldPair
from tailcut.parity.analysis.paths import MISSING, values_at
from tailcut.parity.analysis.tolerance import Tolerance, compare, tolerance_of

Outcome = Literal["equal", "differs", "uncompared", "refused", "status"]
"""equal: both answered, within the tolerance; uncompared: of a row neither answer has any of the fields; refused: both
refused; status: one answered, or the deployment failed."""


class ParityReply(NamedTuple):
    """A reply.

    Attributes:
        status: HTTP status; 0 where there was none.
        body: decoded JSON; None where it is none.
        text: the beginning of the body, or why there was no reply.
    """

    status: int
    body: Any
    text: str

    @property
    def answered(self) -> bool:
        """Whether it is an answer."""
        return 200 <= self.status < 300 and self.body is not None


class ParityExchange(NamedTuple):
    """One request on both sides.

    Attributes:
        number: of the request, from 1.
        path: where the pilot's went; empty: the pilot's own path.
        request: the pilot's, decoded.
        asked: the deployment's, decoded.
        rows: how many rows it has.
        theirs, ours: the replies.
    """

    number: int
    path: str
    request: Any
    asked: Any
    rows: int
    theirs: ParityReply
    ours: ParityReply


class FieldComparison(NamedTuple):
    """The fields that are compared, and their tolerances by the name of the output."""

    pairs: Sequence[FieldPair]
    tolerances: Mapping[str, Tolerance]


class Difference(NamedTuple):
    """One value that differs.

    Attributes:
        number: of the request, from 1.
        row: within the request, from 0.
        name: of the output.
        theirs, ours: the values.
        size: absolute difference; None where they are no numbers.
    """

    number: int
    row: int
    name: str
    theirs: Any
    ours: Any
    size: float | None


class FieldFigures(NamedTuple):
    """One field over all requests that both sides answered.

    Attributes:
        rows, differing: compared, and those that differ; a row where both sides lack the field is not compared.
        requests: with a row that differs.
        largest, mean: absolute difference of numbers over all compared rows; None where they are no numbers.
        theirs, ours: all values, compared row by row.
    """

    rows: int
    differing: int
    requests: int
    largest: float | None
    mean: float | None
    theirs: list[Any]
    ours: list[Any]


def outcome_of(exchange: ParityExchange, pairs: Sequence[FieldPair], differences: Sequence[Difference]) -> Outcome:
    """Judge one request.

    Both refused is agreement, whatever the status, unless the deployment failed (5xx or no reply).

    Args:
        exchange: the request.
        pairs: fields that are compared.
        differences: as ``differences_in`` lists them.
    """
    theirs, ours = exchange.theirs, exchange.ours
    if theirs.answered and ours.answered:
        if differences:
            return "differs"
        return "equal" if _all_compared(exchange, pairs) else "uncompared"
    if not theirs.answered and 400 <= ours.status < 500:
        return "refused"
    return "status"


def differences_in(
    exchange: ParityExchange, pairs: Sequence[FieldPair], tolerances: Mapping[str, Tolerance]
) -> list[Difference]:
    """List the values of one request that differ; none where one side did not answer."""
    if not (exchange.theirs.answered and exchange.ours.answered):
        return []
    found = []
    for pair in pairs:
        tolerance = tolerance_of(pair.name, tolerances)
        for row, (theirs, ours) in enumerate(zip(*sides_of(exchange, pair), strict=True)):
            gap = compare(theirs, ours, tolerance)
            if not gap.equal:
                found.append(Difference(exchange.number, row, pair.name, theirs, ours, gap.size))
    return found


def figures_of(exchanges: Sequence[ParityExchange], pair: FieldPair, tolerance: Tolerance) -> FieldFigures:
    """Work out the figures of a field.

    Args:
        exchanges: those that both sides answered.
        pair: the field.
        tolerance: of its numbers.
    """
    theirs: list[Any] = []
    ours: list[Any] = []
    sizes: list[float] = []
    differing = requests = 0
    for exchange in exchanges:
        sides = zip(*sides_of(exchange, pair), strict=True)
        rows = [(one, other) for one, other in sides if not one is other is MISSING]
        gaps = [compare(one, other, tolerance) for one, other in rows]
        sizes += [gap.size for gap in gaps if gap.size is not None]
        unequal = sum(not gap.equal for gap in gaps)
        differing += unequal
        requests += unequal > 0
        theirs += [one for one, _ in rows]
        ours += [other for _, other in rows]
    return FieldFigures(
        rows=len(ours),
        differing=differing,
        requests=requests,
        largest=max(sizes, default=None),
        mean=sum(sizes) / len(sizes) if sizes else None,
        theirs=theirs,
        ours=ours,
    )


def _all_compared(exchange: ParityExchange, pairs: Sequence[FieldPair]) -> bool:
    """Whether each row has a field that at least one side gives."""
    sides = [sides_of(exchange, pair) for pair in pairs]
    return all(any(not theirs[row] is ours[row] is MISSING for theirs, ours in sides) for row in range(exchange.rows))


def sides_of(exchange: ParityExchange, pair: FieldPair) -> tuple[list[Any], list[Any]]:
    """Return the values of a field in both replies, one per row."""
    theirs = values_at(exchange.theirs.body, pair.theirs, exchange.rows)
    items = exchange.ours.body.get("predictions") if isinstance(exchange.ours.body, Mapping) else None
    if not isinstance(items, list) or len(items) != exchange.rows:
        return theirs, [MISSING] * exchange.rows
    return theirs, [values_at(item, pair.ours, 1)[0] for item in items]
