"""Entities are read strictly, and once, into the form that all equal values share; every refusal names the field."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.cache.keys import feature_key
from tailcut.errors import BadRequest
from tailcut.features.feature_service import MAX_CHARACTERS, parse_entity
from tailcut.features.key_types import ANY, BIGINT, DECLARED, TEXT

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "day", "x"]), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("value", ["a", 1, 1.5, True, "ü"])
def test_a_plain_value_where_there_is_one_field(value) -> None:
    assert parse_entity(value, ("id",), (ANY,)) == (value,)
    assert parse_entity({"id": value}, ("id",), (ANY,)) == (value,)


def test_an_object_gives_values_in_the_manifests_order() -> None:
    assert parse_entity({"day": 3, "id": "a"}, ("id", "day"), (ANY, ANY)) == ("a", 3)


@pytest.mark.parametrize("value", [42, 42.0, "42"])
def test_equal_values_are_one_key(value) -> None:
    for entity in (value, {"id": value}):
        (key,) = parse_entity(entity, ("id",), (BIGINT,))
        assert (key, type(key)) == (42, int)
        (key,) = parse_entity(entity, ("id",), (TEXT,))
        assert (key, type(key)) == ("42", str)


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, ANY, 'entity field "id" is null'),
        ([1], ANY, 'entity field "id" is of type list'),
        (2**63, ANY, 'entity field "id" is 9223372036854775808, which is no any: its limits are'),
        (float("nan"), ANY, 'entity field "id" is nan'),
        ("x" * (MAX_CHARACTERS + 1), ANY, "has 1025 characters, the limit is 1024"),
        ("a\0b", ANY, "NUL"),
        ("\ud800", ANY, "not valid Unicode"),
        ({}, ANY, 'lacks the field "id"'),
        ({"id": 1, "extra": 2}, ANY, "unknown field 'extra'"),
        ({"id": {"a": 1}}, ANY, 'entity field "id" is of type dict'),
        (True, BIGINT, 'entity field "id" is true, which is no bigint'),
        (" 42", BIGINT, "entity field \"id\" is ' 42', which is no bigint"),
        (42.5, BIGINT, 'entity field "id" is 42.5, which is no bigint'),
        ("9" * 30, BIGINT, "which is no bigint: its limits are -9223372036854775808 and 9223372036854775807"),
        ({"id": 42.5}, TEXT, 'entity field "id" is 42.5, which is no text'),
    ],
)
def test_what_is_wrong_is_named(value, kind, text) -> None:
    with pytest.raises(BadRequest, match=text) as caught:
        parse_entity(value, ("id",), (kind,))
    assert caught.value.hint


def test_several_fields_need_an_object() -> None:
    with pytest.raises(BadRequest, match="must be an object with the fields id, day"):
        parse_entity(7, ("id", "day"), (ANY, ANY))


@given(JSON, st.sampled_from([("id",), ("id", "day")]), st.sampled_from([ANY, *DECLARED.values()]))
def test_any_json_is_read_as_something_every_store_can_hold_or_refused(value, fields, kind) -> None:
    try:
        entity = parse_entity(value, fields, [kind] * len(fields))
    except BadRequest:
        return
    assert len(entity) == len(fields)
    assert feature_key("g", entity, "")
