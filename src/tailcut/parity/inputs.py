"""The model's inputs on both sides: those that the pilot hands to its model, and those that the deployment makes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailcut.common.json_values import encode
from tailcut.errors import TailcutError
from tailcut.parity.analysis.changes import EXACT
from tailcut.parity.analysis.columns import ColumnDifference, Columns, ModelCallInputs, compare_columns, joined, matched
from tailcut.parity.analysis.comparing import Exchange
from tailcut.parity.analysis.tolerance import compare, is_missing
from tailcut.parity.pilots import Pilot
from tailcut.parity.replica import Replica, Row
from tailcut.profiler.recording.model_inputs import ModelCall
from tailcut.report.parity.file import ColumnParity, InputsParity

_MOST_VALUES = 200_000
"""Images reach it after a request or two: comparing more would take minutes and say nothing new."""


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
        call = joined([_call(one) for one in calls], exchange.rows)
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
    feeding = _features_of([one.name for one in found], seen, replica) if found else {}
    return InputsParity(
        model=seen.model,
        rows=len(seen.rows),
        columns=len(seen.ours),
        differing=tuple(_column(one, feeding.get(one.name, ())) for one in found),
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


def _call(call: ModelCall) -> ModelCallInputs:
    return ModelCallInputs(call.model, call.named, call.placed)


def _column(found: ColumnDifference, features: Sequence[str]) -> ColumnParity:
    return ColumnParity(
        column=found.name,
        features=tuple(features),
        rows=found.rows,
        differing_rows=found.differing,
        max_difference=found.largest,
        change=found.change,
        first=found.values,
    )


def _unmatched(calls: Sequence[ModelCall], ours: dict[str, Columns]) -> str:
    if not calls:
        return "the pilot called no model of torch, onnxruntime, scikit-learn, LightGBM, XGBoost, CatBoost or OpenVINO"
    last = calls[-1]
    theirs = [*last.named, *(f"[{len(values)} rows]" for values in last.placed)]
    return (
        f"the pilot's input of {last.model} ({', '.join(theirs)}) does not have the form of the deployment's inputs"
        f" ({', '.join(ours)})"
    )
