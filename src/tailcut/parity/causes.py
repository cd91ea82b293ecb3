"""Causes of differences that only answers show: changes of features that make the deployment give the pilot's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tailcut.errors import TailcutError
from tailcut.parity.analysis.comparing import Exchange, sides_of
from tailcut.parity.analysis.explaining import Cause, search, trials
from tailcut.parity.analysis.mapping import Pair
from tailcut.parity.analysis.paths import values_at
from tailcut.parity.analysis.tolerance import Tolerance, compare, tolerance_of
from tailcut.parity.replica import Replica, Row


@dataclass(frozen=True)
class Case:
    """One row of a request that both sides answered.

    Attributes:
        row: the deployment's feature row.
        theirs, ours: values of each pair.
        differs: whether they differ.
    """

    row: Row
    theirs: tuple[Any, ...]
    ours: tuple[Any, ...]
    differs: bool


@dataclass(frozen=True)
class Comparison:
    """The fields that are compared, and their tolerances."""

    pairs: Sequence[Pair]
    tolerances: Mapping[str, Tolerance]

    def equal(self, theirs: Sequence[Any], ours: Sequence[Any]) -> bool:
        """Whether all fields of a row are equal."""
        return all(
            compare(one, other, tolerance_of(pair.name, self.tolerances)).equal
            for pair, one, other in zip(self.pairs, theirs, ours, strict=True)
        )

    def of_answer(self, answer: Any) -> tuple[Any, ...]:
        """Return the values of the fields in one prediction."""
        return tuple(values_at(answer, pair.ours, 1)[0] for pair in self.pairs)


def make_cases(replica: Replica, exchanges: Sequence[Exchange], comparison: Comparison) -> tuple[list[Case], int]:
    """Make a case of each row whose served answer this process gives, too.

    Returns:
        the cases, and how many rows were left out because their answer is another one here and now: features that
        change with time.
    """
    cases: list[Case] = []
    left_out = 0
    for exchange in exchanges:
        try:
            rows = replica.feature_rows(exchange.asked)
            answers = replica.answers(rows) if rows else []
        except TailcutError:
            left_out += exchange.rows
            continue
        sides = [sides_of(exchange, pair) for pair in comparison.pairs]
        for place, (row, answer) in enumerate(zip(rows, answers, strict=False)):
            theirs = tuple(side[0][place] for side in sides)
            ours = tuple(side[1][place] for side in sides)
            if not comparison.equal(ours, comparison.of_answer(answer)):
                left_out += 1
                continue
            cases.append(Case(row, theirs, ours, not comparison.equal(theirs, ours)))
    return cases, left_out


def explain_answers(replica: Replica, cases: Sequence[Case], comparison: Comparison) -> list[Cause]:
    """Find the change of one feature that gives the pilot's answers.

    Args:
        replica: of the deployment.
        cases: rows that differ, and some that do not.
        comparison: what counts as equal.
    """
    features = list(dict.fromkeys(name for case in cases for name in case.row))

    def judge(rows: Sequence[Row], places: Sequence[int]) -> list[bool] | None:
        try:
            answers = replica.answers(rows)
        except TailcutError:
            return None
        return [
            comparison.equal(cases[place].theirs, comparison.of_answer(answer))
            for place, answer in zip(places, answers, strict=True)
        ]

    rows = [case.row for case in cases]
    return search(rows, [case.differs for case in cases], trials(rows, features), judge)
