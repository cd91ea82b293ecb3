"""From the exchanges of one variant to its part of the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailcut.parity.analysis.changes import explain
from tailcut.parity.analysis.comparing import (
    Difference,
    FieldComparison,
    ParityExchange,
    differences_in,
    figures_of,
    outcome_of,
)
from tailcut.parity.analysis.mapping import FieldPair
from tailcut.parity.analysis.tolerance import tolerance_of
from tailcut.parity.deployments import Chosen
from tailcut.report.parity.file import FieldParity, StatusDifference, ValueDifference, VariantParity

FIRST = 10
_SHORT = 12
"""Elements of a long list that are shown."""


class Sorted:
    """Exchanges by their outcome.

    Attributes:
        answered: by both sides.
        differing, equal: of these.
        statuses: answered by one side only, or failed by the deployment.
        uncompared: answered by both, with a row that has none of the fields on either side.
        refused: how many both refused.
        differences: values that differ, in the order of requests.
    """

    def __init__(self, exchanges: Sequence[ParityExchange], comparison: FieldComparison) -> None:
        self.exchanges = exchanges
        self.answered: list[ParityExchange] = []
        self.differing: list[ParityExchange] = []
        self.equal: list[ParityExchange] = []
        self.statuses: list[ParityExchange] = []
        self.differences: list[Difference] = []
        self.uncompared = self.refused = 0
        for one in exchanges:
            found = differences_in(one, comparison.pairs, comparison.tolerances)
            self.differences += found
            outcome = outcome_of(one, comparison.pairs, found)
            if outcome in {"equal", "differs"}:
                self.answered.append(one)
                (self.differing if outcome == "differs" else self.equal).append(one)
            elif outcome == "uncompared":
                self.uncompared += 1
            elif outcome == "refused":
                self.refused += 1
            else:
                self.statuses.append(one)


def variant_record(chosen: Chosen, found: Sorted, comparison: FieldComparison) -> VariantParity:
    """Make the report of a variant, without causes."""
    bodies = {one.number: one.request for one in found.exchanges}
    return VariantParity(
        variant=chosen.name,
        version=chosen.version,
        exact=chosen.exact,
        judged=chosen.judged,
        requests=len(found.exchanges),
        both_answered=len(found.answered),
        both_refused=found.refused,
        uncompared=found.uncompared,
        differing_requests=len(found.differing),
        status_differences=len(found.statuses),
        statuses=tuple(_status(one) for one in found.statuses[:FIRST]),
        fields=tuple(_field(found.answered, pair, comparison) for pair in comparison.pairs),
        differences=tuple(_difference(one, bodies[one.number]) for one in found.differences[:FIRST]),
    )


def _field(answered: Sequence[ParityExchange], pair: FieldPair, comparison: FieldComparison) -> FieldParity:
    tolerance = tolerance_of(pair.name, comparison.tolerances)
    figures = figures_of(answered, pair, tolerance)
    return FieldParity(
        output=pair.name,
        pilot=str(pair.theirs),
        matched=pair.why,
        tolerance=str(tolerance),
        rows=figures.rows,
        differing_rows=figures.differing,
        differing_requests=figures.requests,
        max_difference=figures.largest,
        mean_difference=figures.mean,
        relation=explain(figures.theirs, figures.ours, tolerance) if figures.differing else "",
    )


def _status(one: ParityExchange) -> StatusDifference:
    return StatusDifference(
        request=one.number,
        pilot_status=one.theirs.status,
        pilot_text=one.theirs.text,
        deployment_status=one.ours.status,
        deployment_text=one.ours.text,
        body=one.request,
    )


def _difference(one: Difference, body: Any) -> ValueDifference:
    return ValueDifference(
        request=one.number,
        row=one.row,
        output=one.name,
        pilot=shortened(one.theirs),
        deployment=shortened(one.ours),
        difference=one.size,
        body=body,
    )


def shortened(value: Any) -> Any:
    """Return a value as JSON has it, long lists cut."""
    if isinstance(value, list):
        return [*map(shortened, value[:_SHORT]), *(["..."] if len(value) > _SHORT else [])]
    return value if value is None or isinstance(value, (bool, int, float, str, dict)) else str(value)
