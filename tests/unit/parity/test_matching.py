"""Parity: which fields and which requests belong together."""

from __future__ import annotations

from typing import Any

import pytest

from tailcut.errors import ManifestError, StartError
from tailcut.parity.analysis.changes import EXACT, explain
from tailcut.parity.analysis.comparing import ParityExchange, ParityReply, differences_in, figures_of, outcome_of
from tailcut.parity.analysis.mapping import parse_pair
from tailcut.parity.analysis.paths import MISSING, parse_path
from tailcut.parity.analysis.request_form import Takes, form_of, parse_form
from tailcut.parity.analysis.tolerance import DEFAULT, Tolerance, compare, parse_tolerance, tolerance_of
from tailcut.parity.matching import NothingCompared, choose_form, choose_pairs, refuse_left_over, unmatched
from tailcut.parity.payloads import Payload


def answered(theirs: list[Any], ours: list[Any]) -> list[ParityExchange]:
    return [
        exchange(ParityReply(200, one, ""), reply(200, other))._replace(number=number)
        for number, (one, other) in enumerate(zip(theirs, ours, strict=True))
    ]


def test_fields_without_an_equal_name_are_refused_with_both_sides_fields() -> None:
    with pytest.raises(NothingCompared, match=r"no field of the pilot \(p, who\) .* deployment \(risk\)") as caught:
        choose_pairs(answered([{"p": "0.25", "who": "x"}], [{"risk": 0.25}]))
    assert caught.value.hint.endswith("--map p=risk")


def test_a_name_that_is_there_twice_is_not_paired() -> None:
    both = answered([{"a": {"risk": 1}, "b": {"risk": 2}, "late": 0}], [{"risk": 1, "late": 0}])
    pairs = choose_pairs(both)
    assert [(str(one.theirs), one.name, one.why) for one in pairs] == [("late", "late", "same name")]
    assert unmatched(pairs, both) == (["a.risk", "b.risk"], ["risk"])


def test_fields_left_on_both_sides_are_refused_with_the_flags_that_pair_them() -> None:
    """Given an output under another name at the pilot; then equal answers in the other field are not "equal"."""
    both = answered([{"probability": 2.0, "z": 1.0}], [{"risk": 1.0, "z": 1.0}])
    with pytest.raises(NothingCompared, match=r"the pilot \(probability\) .* the deployment \(risk\)") as caught:
        refuse_left_over(choose_pairs(both), both)
    assert caught.value.hint.endswith("--map probability=risk --map z=z")
    for theirs, ours in (({"z": 1.0, "id": 7}, {"z": 1.0}), ({"z": 1.0}, {"z": 1.0, "label": "low"})):
        both = answered([theirs], [ours])
        refuse_left_over(choose_pairs(both), both)


def test_a_name_that_occurs_more_than_once_is_named_with_its_places() -> None:
    both = answered([{"risk": 1, "items": [{"risk": 1}], "id": 7}], [{"risk": 1}])
    with pytest.raises(NothingCompared, match=r"risk occurs more than once: the pilot \(risk, items\[\].risk\)"):
        choose_pairs(both)
    both = answered([{"label": 1}], [{"label": 1, "meta": {"label": 2}}])
    with pytest.raises(NothingCompared, match=r"more than once: .* the deployment \(label, meta.label\)") as caught:
        choose_pairs(both)
    assert caught.value.hint.endswith("--map label=label")


def test_names_are_equal_whatever_their_case_and_punctuation() -> None:
    found = choose_pairs(answered([{"out": [{"riskScore": 1.0}]}], [{"risk_score": 2.0}]))
    assert [(str(one.theirs), one.name) for one in found] == [("out[].riskScore", "risk_score")]


def test_a_bare_value_is_called_prediction() -> None:
    both = answered([{"embeddings": [[1.0, 2.0]]}], [[1.0, 2.0]])
    with pytest.raises(NothingCompared) as caught:
        choose_pairs(both)
    assert caught.value.hint.endswith("--map embeddings[]=prediction")
    given = parse_pair("embeddings[]=prediction")
    assert choose_pairs(both, [given]) == [given]
    assert differences_in(both[0], [given], {}) == []


@pytest.mark.parametrize(
    ("body", "columns", "wanted"),
    [
        ({"rows": [{"a": 1}]}, ("a",), "as it is"),
        ({"a": 1, "b": 2}, ("a", "b"), "rows=."),
        ({"features": {"b": 2, "a": 1}}, ("a", "b"), "rows=features"),
        ({"instances": [{"a": 1, "b": 2}]}, ("a", "b"), "rows=instances[]"),
        ({"as": [1, 2], "bs": [3, 4]}, ("a", "b"), "rows.a=as[], rows.b=bs[]"),
        ({"id": 7, "A": 1, "B": 2}, ("a", "b"), "rows.a=A, rows.b=B"),
        ({"texts": ["x", "y"]}, (), "rows.text=texts[]"),
    ],
)
def test_rows_are_found_in_a_request(body: Any, columns: tuple[str, ...], wanted: str) -> None:
    found = form_of(body, Takes((), dict.fromkeys(columns, 0)))
    assert found is not None
    assert str(found) == wanted
    made = found.apply(body)
    assert made is not None
    assert set(made) == {"rows"}
    if wanted != "as it is":
        assert parse_form(wanted.split(", ")).apply(body) == made


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({"x": [1, 2, 3, 4]}, "rows=."),
        ({"id": 7, "x": [1, 2, 3, 4]}, "rows.x=x"),
        ({"x": [[1, 2, 3, 4]]}, "rows.x=x[]"),
        ({"instances": [{"x": [1, 2, 3, 4]}]}, "rows=instances[]"),
    ],
)
def test_the_list_of_an_input_that_is_a_vector_is_one_row(body: Any, wanted: str) -> None:
    found = form_of(body, Takes((), {"x": 1}))
    assert str(found) == wanted
    assert found is not None
    assert found.apply(body) == {"rows": [{"x": [1, 2, 3, 4]}]}


@pytest.mark.parametrize("body", [{"customer_id": 3}, {"users": [3, 4]}, [3, 4]])
def test_a_value_under_another_name_is_no_entity(body: Any) -> None:
    assert form_of(body, Takes(("user_id",), {})) is None


@pytest.mark.parametrize(
    ("body", "takes", "ways"),
    [
        ({"user": {"id": 3}, "flight": {"id": 4}}, Takes(("id",), {}), "entities=user or entities=flight"),
        ({"to": {"id": 1}, "id": 5}, Takes(("id",), {}), "entities.id=id or entities=to"),
        ({"new": {"a": 1}, "old": {"a": 2}}, Takes((), {"a": 0}), "rows=new or rows=old"),
        ({"texts": ["x"], "titles": ["y"]}, Takes((), {}), "rows.text=texts[] or rows.title=titles[]"),
    ],
)
def test_a_request_that_may_be_taken_in_two_ways_is_refused_with_both(body: Any, takes: Takes, ways: str) -> None:
    with pytest.raises(StartError) as caught:
        form_of(body, takes)
    assert caught.value.message.endswith(ways)
    assert caught.value.hint.endswith(ways.partition(" or ")[0])


@pytest.mark.parametrize(
    ("form", "other"),
    [
        ("--request rows.x=x[]", "--request rows.x=x"),
        ("--request rows.x=x --request rows.y=y", "--request rows.x=x[] --request rows.y=y[]"),
        ("--request entities=.", "--request entities=[]"),
        ("--request rows.x=a[].x", ""),
    ],
)
def test_a_request_that_only_the_deployment_refuses_names_the_form_and_another(form: str, other: str) -> None:
    first = exchange(ParityReply(200, {"risk": 1}, "{}"), ParityReply(400, None, "no"))
    with pytest.raises(NothingCompared) as caught:
        choose_pairs([first], form=parse_form(form.removeprefix("--request ").split(" --request ")))
    assert caught.value.hint.endswith(f"made by {form}: try {other}" if other else "the same data")


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({"entities": [3]}, {"entities": [3]}),
        ({"user_id": 3}, {"entities": [{"user_id": 3}]}),
        ({"when": "now", "user_ids": [3, 4]}, {"entities": [{"user_id": 3}, {"user_id": 4}]}),
        ({"userId": 3, "when": "now"}, {"entities": [{"user_id": 3}]}),
        ({"to": {"users": [{"user_id": 3, "name": "x"}]}}, {"entities": [{"user_id": 3}]}),
    ],
)
def test_entities_are_found_in_a_request(body: Any, wanted: Any) -> None:
    found = form_of(body, Takes(("user_id",), {}))
    assert found is not None
    assert found.apply(body) == wanted


def test_a_payload_without_the_deployments_fields_is_refused_with_both_sides_fields() -> None:
    body = {"when": "now", "who": {"name": "x"}}
    with pytest.raises(NothingCompared, match=r"fields \(when, who.name\) .* takes \(user_id\)") as caught:
        choose_form([Payload("", b"", body)], Takes(("user_id",), {}))
    assert "--request entities=PATH" in caught.value.hint


@pytest.mark.parametrize("text", ["", "x", "lines=a", "rows.a=", "rows=a=b[0", "rows=[][]"])
def test_a_wrong_form_is_refused(text: str) -> None:
    if text == "rows.a=":
        assert str(parse_form([text])) == "rows.a=."  # the whole document
        return
    with pytest.raises(ManifestError):
        parse_form([text])


def test_forms_of_two_kinds_are_refused() -> None:
    with pytest.raises(ManifestError, match="one kind"):
        parse_form(["rows.a=x", "entities.b=y"])


@pytest.mark.parametrize("text", ["a..", "a[b]", "[][]", "a[0"])
def test_a_wrong_path_is_refused(text: str) -> None:
    with pytest.raises(ManifestError):
        parse_path(text)


def test_tolerances_are_by_field_and_one_is_for_all() -> None:
    given = dict(parse_tolerance(text) for text in ("risk=1e-3", "0.5,0.25"))
    assert tolerance_of("risk", given) == Tolerance(1e-3, 1e-3, of_integers=True)
    assert tolerance_of("late", given) == Tolerance(0.5, 0.25)
    assert tolerance_of("late", {}) == DEFAULT
    for text in ("risk=", "risk=-1", "risk=nan", "=1", "risk=1,2,3"):
        with pytest.raises(ManifestError):
            parse_tolerance(text)


@pytest.mark.parametrize(
    ("theirs", "ours", "tolerance", "equal"),
    [
        (10001, 10002, DEFAULT, False),
        (1234567, 1234600, DEFAULT, False),
        ("10001", 10002, DEFAULT, False),
        (10001, "10001", DEFAULT, True),
        ([10001, 7], [10002, 7], DEFAULT, False),
        (2**53, 2**53 + 1, DEFAULT, False),
        (True, 1, DEFAULT, True),
        (1387573200, 1387574400, EXACT, False),
        (1387573200, 1387573248.0, EXACT, True),  # as float32 has it
        (10001, 10001.5, DEFAULT, True),
        (10**400, 1, DEFAULT, False),
        (10**400, 10**400, DEFAULT, True),
        (-(10**400), 1.5, DEFAULT, False),
    ],
)
def test_integers_are_compared_exactly(theirs: Any, ours: Any, tolerance: Tolerance, equal: bool) -> None:
    assert compare(theirs, ours, tolerance).equal is equal


def test_only_the_tolerance_of_their_own_field_is_of_integers() -> None:
    given = dict(parse_tolerance(text) for text in ("delay=5,0", "9,0"))
    assert compare(10, 14, tolerance_of("delay", given)) == (True, 4.0)
    assert compare(10, 16, tolerance_of("delay", given)) == (False, 6.0)
    assert compare(10, 14, tolerance_of("label", given)) == (False, 4.0)
    assert compare(10.0, 14, tolerance_of("label", given)) == (True, 4.0)


def test_a_change_of_integers_beyond_the_range_of_float_is_looked_for_without_an_error() -> None:
    assert explain([10**400, 2, 3], [10**400, 5, 9]) == ""
    assert explain([10**400, 3, 4], [10**400, 2, 3]) == "x + 1"


def test_an_explanation_covers_the_rows_that_differ_but_one_in_twenty() -> None:
    ours = [float(place) for place in range(20)]
    theirs = [x + 1 for x in ours]
    assert explain([*theirs[:19], 0.5], ours) == "x + 1"
    assert explain([*theirs[:18], 0.5, 0.5], ours) == ""


def test_an_explanation_keeps_the_rows_that_are_equal() -> None:
    """Given a pilot that lacks one value of thirty; then it is not "always missing"."""
    assert explain([None, *[1.0] * 29], [0.0, *[1.0] * 29]) == ""


def test_a_factor_of_zero_explains_nothing() -> None:
    assert explain([0.0, 0.0, 0.0], [1.0, 2.0, 3.0]) == ""


@pytest.mark.parametrize("filled", [MISSING, {"a": 1}, [{"a": 1}], [0.5]])
def test_what_is_no_plain_value_is_no_change(filled: Any) -> None:
    """Given a pilot that omits a field, or gives an object, where the deployment says null."""
    assert explain([filled, 0.2], [None, 0.2]) == ""


def test_a_missing_value_that_the_pilot_fills_is_named() -> None:
    for filled, text in ((-1.0, "-1"), ("none", "'none'"), (10**400, str(10**400)), (True, "True")):
        assert explain([filled, 0.2], [None, 0.2]) == f"{text} where x is missing"


def exchange(theirs: ParityReply, ours: ParityReply, rows: int = 1) -> ParityExchange:
    return ParityExchange(1, "", {}, {"rows": [{}] * rows}, rows, theirs, ours)


def reply(status: int, *predictions: Any) -> ParityReply:
    return ParityReply(status, {"predictions": list(predictions)}, "")


PAIR = parse_pair("predictions[].risk=risk")


@pytest.mark.parametrize(
    ("theirs", "ours", "wanted"),
    [
        (reply(200, {"risk": 0.5}), reply(200, {"risk": 0.500001}), "equal"),
        (reply(200, {"risk": 0.5}), reply(200, {"risk": 0.501}), "differs"),
        (reply(200, {"other": 0.5}), reply(200, {"other": 0.5}), "uncompared"),
        (reply(200, {"risk": 0.5}, {"risk": 0.5}), reply(200), "uncompared"),
        (reply(200, {}), reply(200, {"risk": 0.5}), "differs"),
        (reply(200, {"risk": 0.5}), reply(404), "status"),
        (reply(422), reply(200, {"risk": 0.5}), "status"),
        (reply(422), reply(400), "refused"),
        (reply(500), reply(400), "refused"),
        (reply(422), reply(500), "status"),
        (reply(422), ParityReply(0, None, "no reply"), "status"),
        (ParityReply(200, None, "<html>"), reply(200, {"risk": 0.5}), "status"),
    ],
)
def test_outcomes(theirs: ParityReply, ours: ParityReply, wanted: str) -> None:
    one = exchange(theirs, ours)
    assert outcome_of(one, [PAIR], differences_in(one, [PAIR], {})) == wanted


def test_figures_count_rows_and_requests() -> None:
    first = exchange(reply(200, {"risk": 1.0}, {"risk": 2.0}), reply(200, {"risk": 1.0}, {"risk": 2.5}), rows=2)
    second = exchange(reply(200, {"risk": 1.0}), reply(200, {"risk": None}))
    found = figures_of([first, second], PAIR, DEFAULT)
    assert (found.rows, found.differing, found.requests) == (3, 2, 2)
    assert (found.largest, found.mean) == (0.5, 0.25)


def test_a_field_that_some_replies_lack_is_paired_and_compared_where_it_is() -> None:
    """Given a reason in every fourth reply, another one on each side; then it differs there, and only there."""
    exchanges = []
    for place in range(20):
        reason = place % 4 == 2
        theirs = {"risk": place / 20} | ({"reason": "age"} if reason else {})
        ours = {"risk": place / 20} | ({"reason": "income"} if reason else {})
        exchanges.append(exchange(reply(200, theirs), reply(200, ours))._replace(number=place))
    pairs = choose_pairs(exchanges)
    assert [(str(one.theirs), one.name) for one in pairs] == [
        ("predictions[].risk", "risk"),
        ("predictions[].reason", "reason"),
    ]
    assert [one.number for one in exchanges if differences_in(one, pairs, {})] == [2, 6, 10, 14, 18]
    figures = figures_of(exchanges, pairs[1], DEFAULT)
    assert (figures.rows, figures.differing) == (5, 5)
    assert outcome_of(exchanges[0], pairs, differences_in(exchanges[0], pairs, {})) == "equal"


def test_a_field_that_some_replies_lack_and_the_other_side_never_has_is_listed() -> None:
    both = answered([{"risk": 0.5}, {"risk": 0.25, "why": "age"}], [{"risk": 0.5}, {"risk": 0.25}])
    assert unmatched(choose_pairs(both), both) == (["why"], [])


def test_a_deployment_that_answers_another_number_of_rows_differs() -> None:
    one = exchange(reply(200, {"risk": 1.0}, {"risk": 2.0}), reply(200, {"risk": 1.0}), rows=2)
    assert [(each.row, str(each.ours)) for each in differences_in(one, [PAIR], {})] == [
        (0, "(absent)"),
        (1, "(absent)"),
    ]
