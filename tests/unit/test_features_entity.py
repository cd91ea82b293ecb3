"""Entities are read strictly; every refusal names the field."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.core.keys import feature_key
from tailcut.errors import BadRequest
from tailcut.features.entity import MAX_CHARACTERS, parse_entity

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "day", "x"]), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("value", ["a", 1, 1.5, True, "ü"])
def test_a_plain_value_where_there_is_one_field(value) -> None:
    assert parse_entity(value, ("id",)) == (value,)
    assert parse_entity({"id": value}, ("id",)) == (value,)


def test_an_object_gives_values_in_the_manifests_order() -> None:
    assert parse_entity({"day": 3, "id": "a"}, ("id", "day")) == ("a", 3)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, 'entity field "id" is null'),
        ([1], 'entity field "id" is of type list'),
        (2**63, 'entity field "id" is 9223372036854775808, the limits'),
        (float("nan"), 'entity field "id" is nan'),
        ("x" * (MAX_CHARACTERS + 1), "has 1025 characters, the limit is 1024"),
        ("a\0b", "NUL"),
        ("\ud800", "not valid Unicode"),
        ({}, 'lacks the field "id"'),
        ({"id": 1, "extra": 2}, "unknown field 'extra'"),
        ({"id": {"a": 1}}, 'entity field "id" is of type dict'),
    ],
)
def test_what_is_wrong_is_named(value, text) -> None:
    with pytest.raises(BadRequest, match=text) as caught:
        parse_entity(value, ("id",))
    assert caught.value.hint


def test_several_fields_need_an_object() -> None:
    with pytest.raises(BadRequest, match="must be an object with the fields id, day"):
        parse_entity(7, ("id", "day"))


@given(JSON, st.sampled_from([("id",), ("id", "day")]))
def test_any_json_is_read_as_something_every_store_can_hold_or_refused(value, fields) -> None:
    try:
        entity = parse_entity(value, fields)
    except BadRequest:
        return
    assert len(entity) == len(fields)
    assert feature_key("g", entity, "")
