"""Parity: what is said of the model's inputs where those of some requests cannot be seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from tailcut.parity import run
from tailcut.parity.analysis.comparing import ParityExchange, ParityReply
from tailcut.parity.asking import Asker
from tailcut.parity.run import Pilot, Replica, inputs_record, see_inputs
from tailcut.profiler.recording.model_inputs import ModelCall
from tailcut.report.parity.document import reasons
from tailcut.report.parity.file import InputsParity, VariantParity

OK = ParityReply(200, {}, "")
OTHER_FORM = ModelCall(model="M.predict", placed=([[1.0, 2.0, 3.0]],))


class Application:
    """A pilot that hands x to its model; where x is below 0, its fallback hands something of another form to it."""

    def __init__(self, shift: float = 0.0) -> None:
        self.shift = shift
        self.x: float | None = None

    def ask(self, body: bytes, path: str) -> ParityReply:
        self.x = float(body.decode().partition(":")[2].rstrip("}]"))
        return OK

    def take(self) -> tuple[ModelCall, ...]:
        x, self.x = self.x, None
        if x is None:
            return ()
        return (OTHER_FORM if x < 0 else ModelCall(model="M.predict", placed=([[x + self.shift, 0.0]],)),)


class Ours:
    """A deployment whose model takes x and 0."""

    def feature_rows(self, asked: Any) -> list[dict[str, Any]]:
        return [dict(row) for row in asked["rows"]]

    def columns(self, rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[Any]]]:
        return {"x": {"x": [float(row["x"] or 0) for row in rows], "zero": [0.0 for _ in rows]}}


def looked_at(values: Sequence[float], differing: Sequence[int], shift: float = 0.0) -> InputsParity:
    """What is kept of the inputs of one request per value, of which those with these numbers differ."""
    application, ours = Application(shift), cast("Replica", Ours())
    exchanges = []
    for number, value in enumerate(values, 1):
        body = {"rows": [{"x": value}]}
        exchanges.append(ParityExchange(number, "", body["rows"][0], body, 1, OK, OK))
    pilot = Pilot("app", cast("Asker", application), application.take)
    return inputs_record(see_inputs(pilot, ours, exchanges), ours, differing)


def said(found: InputsParity, differing: Sequence[int]) -> str:
    return "\n".join(reasons(VariantParity(variant="v", differing_requests=len(differing), inputs=found)))


EQUAL, FROM_THE_MODEL = "the model's inputs are equal", "come from the model"


def test_where_the_inputs_of_requests_that_differ_were_not_seen_the_model_is_not_blamed() -> None:
    found = looked_at([-1, -2, 5, -3], differing=[1, 2, 3])
    assert (found.equal, found.left_out, found.left_out_differing, found.rows) == (False, 3, 2, 1)
    text = said(found, [1, 2, 3])
    assert FROM_THE_MODEL not in text
    assert "the inputs of 3 requests (2 of them differ) were not compared: the pilot's input of M.predict" in text


def test_where_all_inputs_of_requests_that_differ_are_equal_the_model_is_blamed() -> None:
    found = looked_at([1, 2, 5, -3], differing=[1, 2])
    assert (found.equal, found.left_out, found.left_out_differing) == (True, 1, 0)
    text = said(found, [1, 2])
    assert EQUAL in text
    assert FROM_THE_MODEL in text
    assert "the inputs of 1 requests (0 of them differ)" in text


def test_where_no_inputs_were_seen_only_the_reason_is_given() -> None:
    found = looked_at([-1, -2], differing=[1])
    assert not found.equal
    assert said(found, [1]).startswith("inputs were not compared: the pilot's input of M.predict")


def test_a_column_that_differs_is_listed_beside_what_was_left_out() -> None:
    found = looked_at([1, 2, 3, 4, -1], differing=[1, 5], shift=1.0)
    assert [one.column for one in found.differing] == ["x"]
    assert not found.equal
    assert EQUAL not in said(found, [1, 5])
    assert "the inputs of 1 requests (1 of them differ)" in said(found, [1, 5])


def test_requests_after_the_most_values_count_as_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_MOST_VALUES", 1)
    found = looked_at([1, 2, 3], differing=[2])
    assert (found.rows, found.left_out, found.left_out_differing) == (1, 2, 1)
    assert FROM_THE_MODEL not in said(found, [2])
