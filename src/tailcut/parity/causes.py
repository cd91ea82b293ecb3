"""Why answers differ: the model's inputs on both sides, and answers that move."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tailcut.common.json_values import encode
from tailcut.errors import TailcutError
from tailcut.manifest.subject import Subject
from tailcut.parity.analysis.changes import EXACT
from tailcut.parity.analysis.columns import Columns, compare_columns, joined, matched
from tailcut.parity.analysis.comparing import Comparison, Exchange, sides_of
from tailcut.parity.analysis.tolerance import compare, is_missing, tolerance_of
from tailcut.parity.asking import Asker
from tailcut.parity.pilots import Pilot
from tailcut.parity.replica import Replica, Row, open_replica
from tailcut.parity.results import Sorted
from tailcut.profiler.recording.model_inputs import ModelCall
from tailcut.report.parity.file import InputsParity, VariantParity

_DIFFERING, _EQUAL = 40, 20
"""Requests that causes are looked for in."""
_MOVING = (
    "answers change with time or at random: pin the clock and the seeds of both sides (see "
    "docs/how-to/parity.md), else random differences are reported"
)
_MOST_VALUES = 200_000
"""Images reach it after a request or two: comparing more would take minutes and say nothing new."""


def diagnose(
    record: VariantParity,
    found: Sorted,
    comparison: Comparison,
    pilot: Pilot,
    asker: Asker,
    subject: Subject,
    variant: str,
    tell: Callable[[str], None],
) -> VariantParity:
    """Look for the causes of what differs.

    Args:
        record: of the variant, without causes.
        found: its exchanges.
        comparison: what counts as equal.
        pilot: that is still there to be asked.
        asker: of the variant.
        subject: the deployment, with caches off.
        variant: its name; empty: the manifest's own.
        tell: hears what is being done.
    """
    if not record.judged or not (found.differing or pilot.inputs):
        return record
    differing = _distinct(found.differing, _DIFFERING)
    sample = [*differing, *_distinct(found.equal, _EQUAL)]
    unsteady = _unsteady(differing, pilot, asker, comparison)
    notes = [f"{unsteady} of {len(differing)} requests that differ: {_MOVING}"] if unsteady else []
    tell("looking for causes")
    inputs: InputsParity | None = None
    if pilot.inputs is not None:
        try:
            with open_replica(subject, variant or subject.manifest.deployment.serve.variant) as replica:
                seen = see_inputs(pilot, replica, sample)
                inputs = inputs_record(seen, replica, [one.number for one in differing])
        except TailcutError as error:
            notes.append(f"causes were not looked for: {error.message}")
    return msgspec.structs.replace(
        record,
        unsteady=unsteady,
        inputs=inputs,
        notes=(*record.notes, *notes),
    )


def _unsteady(exchanges: Sequence[Exchange], pilot: Pilot, asker: Asker, comparison: Comparison) -> int:
    """Count the requests that the pilot, or the deployment, answers otherwise when they are sent again."""
    count = 0
    for one in exchanges:
        theirs = pilot.asker.ask(encode(one.request), one.path)
        ours = asker.ask(encode(one.asked))
        count += not _same_replies(one, one._replace(theirs=theirs, ours=ours), comparison)
    return count


def _same_replies(before: Exchange, after: Exchange, comparison: Comparison) -> bool:
    if not (after.theirs.answered and after.ours.answered):
        return False
    for pair in comparison.pairs:
        tolerance = tolerance_of(pair.name, comparison.tolerances)
        for first, second in zip(sides_of(before, pair), sides_of(after, pair), strict=True):
            if not compare(first, second, tolerance).equal:
                return False
    return True


def _distinct(exchanges: Sequence[Exchange], most: int) -> list[Exchange]:
    """Take the first exchanges whose requests differ."""
    found: dict[bytes, Exchange] = {}
    for one in exchanges:
        found.setdefault(encode([one.path, one.request]), one)
    return list(found.values())[:most]


# -- Inputs of the model ----------------------------------------------------------------------------------------------


@dataclass
class SeenInputs:
    """Rows of requests with the columns of both sides.

    Attributes:
        model: the pilot's call.
        rows: feature rows of the deployment.
        requests: number of each row's request.
        theirs, ours: columns with the same names.
        left_out: numbers of the requests whose inputs were not compared.
        problem: why the last of them was not; empty where there is none.
    """

    model: str = ""
    rows: list[Row] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    theirs: Columns = field(default_factory=dict)
    ours: Columns = field(default_factory=dict)
    left_out: list[int] = field(default_factory=list)
    problem: str = ""

    def add(self, number: int, rows: Sequence[Row], theirs: Columns, ours: Columns) -> None:
        """Take in one request."""
        self.rows += rows
        self.requests += [number] * len(rows)
        for name, values in ours.items():
            self.ours.setdefault(name, []).extend(values)
            self.theirs.setdefault(name, []).extend(theirs[name])

    def leave_out(self, number: int, why: str) -> None:
        """Count one request that is not compared."""
        self.left_out.append(number)
        self.problem = why


def see_inputs(pilot: Pilot, replica: Replica, exchanges: Sequence[Exchange]) -> SeenInputs:
    """Ask the pilot once more, one request after the other, and make the deployment's inputs of each.

    Args:
        pilot: whose model calls can be seen.
        replica: of the deployment.
        exchanges: requests that both sides answered.
    """
    take = pilot.inputs
    seen = SeenInputs()
    if take is None:
        seen.problem = "the pilot is a URL or a command: give --pilot module:app to compare the inputs of its model"
        return seen
    size = 0
    for exchange in exchanges:
        if size > _MOST_VALUES:
            seen.leave_out(exchange.number, f"earlier requests have {size} values, enough to compare")
            continue
        take()
        pilot.asker.ask(encode(exchange.request), exchange.path)
        calls = take()
        try:
            rows = replica.feature_rows(exchange.asked)
            ours = replica.columns(rows)
        except TailcutError as error:
            seen.leave_out(exchange.number, f"the deployment's inputs could not be computed here: {error.message}")
            continue
        call = joined(calls, exchange.rows)
        theirs = matched(call, ours) if call is not None else None
        if call is None or theirs is None:
            seen.leave_out(exchange.number, _unmatched(calls, ours))
            continue
        seen.model = call.model
        every = {name: values for columns in ours.values() for name, values in columns.items()}
        size += _count(list(every.values()))
        seen.add(exchange.number, rows, theirs, every)
    return seen


def inputs_record(seen: SeenInputs, replica: Replica, differing: Collection[int]) -> InputsParity:
    """Compare the columns and name the features that fill those that differ.

    Args:
        seen: what was seen of both sides.
        replica: of the deployment.
        differing: numbers of the requests whose answers differ.
    """
    found = compare_columns(seen.theirs, seen.ours, seen.requests)
    feeding = _features_of([one.column for one in found], seen, replica) if found else {}
    return InputsParity(
        model=seen.model,
        rows=len(seen.rows),
        columns=len(seen.ours),
        differing=tuple(msgspec.structs.replace(one, features=feeding.get(one.column, ())) for one in found),
        left_out=len(seen.left_out),
        left_out_differing=len(set(seen.left_out) & set(differing)),
        problem=seen.problem,
    )


def _features_of(names: Sequence[str], seen: SeenInputs, replica: Replica) -> dict[str, tuple[str, ...]]:
    """Find the features that fill each column: a feature does where a change of it changes the column."""
    rows = seen.rows[:8]
    before = _columns(replica, rows)
    if before is None:
        return {}
    found: dict[str, list[str]] = {name: [] for name in names}
    for feature in dict.fromkeys(name for row in rows for name in row):
        touched: set[str] = set()
        for change in _probes([row.get(feature) for row in seen.rows]):
            after = _columns(replica, [{**row, feature: change(row.get(feature))} for row in rows])
            if after is not None:
                touched |= {name for name in names if _differ(before[name], after[name])}
        for name in touched:
            found[name].append(feature)
    return {name: tuple(features) for name, features in found.items()}


def _probes(values: Sequence[Any]) -> list[Callable[[Any], Any]]:
    """Changes that show whether a feature matters."""
    texts = [value for value in values if isinstance(value, str)]
    if texts:
        others = list(dict.fromkeys(texts))
        return [lambda x: next((one for one in others if one != x), "tailcut"), lambda x: f"{x or ''} tailcut"]
    return [lambda x: 1.0 if is_missing(x) or not isinstance(x, (int, float)) else x + 1, lambda _: None]


def _columns(replica: Replica, rows: Sequence[Row]) -> Columns | None:
    try:
        found = replica.columns(rows)
    except TailcutError:
        return None
    return {name: values for columns in found.values() for name, values in columns.items()}


def _count(value: Any) -> int:
    return sum(_count(one) for one in value) if isinstance(value, list) else 1


def _differ(before: Sequence[Any], after: Sequence[Any]) -> bool:
    return any(not compare(one, other, EXACT).equal for one, other in zip(before, after, strict=True))


def _unmatched(calls: Sequence[ModelCall], ours: dict[str, Columns]) -> str:
    if not calls:
        return "the pilot called no model of torch, onnxruntime, scikit-learn, LightGBM, XGBoost, CatBoost or OpenVINO"
    last = calls[-1]
    theirs = [*last.named, *(f"[{len(values)} rows]" for values in last.placed)]
    return (
        f"the pilot's input of {last.model} ({', '.join(theirs)}) does not have the form of the deployment's inputs"
        f" ({', '.join(ours)})"
    )
