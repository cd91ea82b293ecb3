"""Parity: paths lead to what is there, equal is symmetric enough, explanations name what was changed."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tailcut.parity.analysis.changes import EXACT, explain
from tailcut.parity.analysis.comparing import ParityExchange, ParityReply
from tailcut.parity.analysis.paths import MISSING, leaves, parse_path, values_at
from tailcut.parity.analysis.request_form import Takes, form_of
from tailcut.parity.analysis.tolerance import Tolerance, compare
from tailcut.parity.matching import choose_pairs

KEYS = st.text("abcdefghij_", min_size=1, max_size=6)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**6), 10**6), st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.text(max_size=5),
)  # fmt: skip
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=20
)
NUMBERS = st.floats(-1e6, 1e6, width=32)


@given(DOCUMENTS, st.integers(1, 4))
def test_every_leaf_is_found_again_by_its_path(document: Any, rows: int) -> None:
    """A path, written and read again, leads to the same values; each row has one."""
    for path, values in leaves(document, rows).items():
        assert len(values) == rows
        again = parse_path(str(path))
        assert again == path
        found = values_at(document, again, rows)
        assert [one for one, value in zip(found, values, strict=True) if value is not MISSING] == [
            value for value in values if value is not MISSING
        ]


@given(SCALARS | st.lists(SCALARS, max_size=4))
def test_a_value_equals_itself_and_differs_by_nothing(value: Any) -> None:
    gap = compare(value, value, Tolerance(0.0, 0.0))
    assert gap.equal
    assert gap.size in {None, 0.0}


@given(NUMBERS, NUMBERS, st.floats(0, 10), st.floats(0, 0.5))
def test_numbers_are_equal_exactly_within_the_tolerance(theirs: float, ours: float, least: float, share: float) -> None:
    gap = compare(theirs, ours, Tolerance(least, share))
    assert gap.size == abs(theirs - ours)
    assert gap.equal == (abs(theirs - ours) <= least + share * abs(theirs))
    assert compare(str(theirs), ours, Tolerance(least, share)) == gap


@given(st.sampled_from([None, math.nan]), st.sampled_from([None, math.nan]), SCALARS)
def test_what_is_missing_equals_what_is_missing_and_nothing_else(one: Any, other: Any, value: Any) -> None:
    assert compare(one, other).equal
    assume(value is not None)
    assert not compare(one, value).equal


COLUMNS = st.lists(st.integers(-1000, 1000).map(float), min_size=6, max_size=30, unique=True)


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("x + 1", lambda x: x + 1),
        ("x - 2.5", lambda x: x - 2.5),
        ("x * 60", lambda x: x * 60),
        ("x * 0.001", lambda x: x / 1000),
        ("x * 0.0166667", lambda x: x / 60),
        ("x * 0.333333", lambda x: x / 3),
        ("x * 1.60934", lambda x: x * 1.609344),
    ],
)
@given(ours=COLUMNS)
def test_an_offset_and_a_factor_of_a_column_are_named(text: str, change: Any, ours: list[float]) -> None:
    theirs = [change(x) for x in ours]
    assume(any(not compare(one, other, EXACT).equal for one, other in zip(theirs, ours, strict=True)))
    assert explain(theirs, ours) == text


@given(COLUMNS, st.randoms(use_true_random=False))
def test_nothing_is_named_for_values_that_do_not_belong_together(ours: list[float], random: Any) -> None:
    theirs = [x * x + random.random() for x in ours]
    assume(len(set(map(abs, ours))) > 4)
    assert explain(theirs, ours) == ""


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(5, 9)), min_size=5, max_size=20, unique=True), st.booleans())
def test_fields_are_paired_by_name_whatever_their_order(values: list[tuple[float, float]], turned: bool) -> None:
    names = ("score", "age") if turned else ("age", "score")
    theirs = [
        {"out": [dict(zip(names, (one, other) if turned else (other, one), strict=True))]} for one, other in values
    ]
    ours = [{"predictions": [{"age": other, "score": one}]} for one, other in values]
    exchanges = [
        ParityExchange(number, "", {}, {}, 1, ParityReply(200, first, ""), ParityReply(200, second, ""))
        for number, (first, second) in enumerate(zip(theirs, ours, strict=True))
    ]
    assert {(str(one.theirs), one.name) for one in choose_pairs(exchanges)} == {
        ("out[].score", "score"), ("out[].age", "age"),
    }  # fmt: skip


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), KEYS, st.booleans())
def test_entities_are_found_wherever_they_are(numbers: list[int], key: str, alone: bool) -> None:
    """Given a request with the entity's field as a plain value or in a list of objects; then the form takes all."""
    body = {key: {"user_id": numbers[0]}} if alone else {key: [{"user_id": number} for number in numbers]}
    form = form_of(body, Takes(("user_id",), ()))
    wanted = numbers[:1] if alone else numbers
    assert form is not None
    assert form.apply(body) == {"entities": [{"user_id": number} for number in wanted]}
