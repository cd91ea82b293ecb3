"""Normal forms of keys: values that a column takes for equal have one form, and no others have."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from itertools import permutations
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.cache.keys import feature_key
from tailcut.features import key_types
from tailcut.features.key_types import (
    ANY,
    BIGINT,
    BOOLEAN,
    CHAR,
    CITEXT,
    DATE,
    DOUBLE,
    MIXED,
    NUMERIC,
    NUMERIC_OR_TEXT,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNCOMPARED,
    UUID_TYPE,
    KeyType,
    common_type,
    inferred,
)

TYPES = [kind for kind in vars(key_types).values() if isinstance(kind, KeyType)]
SENT = st.booleans() | st.integers() | st.floats() | st.text() | st.integers().map(str) | st.floats().map(repr)
STORED = SENT | st.decimals() | st.uuids() | st.dates() | st.datetimes(timezones=st.none() | st.just(UTC)) | st.binary()


def test_all_types_are_tried() -> None:
    assert len(TYPES) == 15


@given(st.sampled_from(TYPES), STORED)
def test_a_normal_form_is_its_own_and_fits_a_cache_key_or_the_value_is_refused(kind, value) -> None:
    for bring in (kind.normal, kind.stored):
        try:
            normal = bring(value)
        except ValueError:
            continue
        assert kind.normal(normal) == normal
        assert type(kind.normal(normal)) is type(normal)
        assert kind.normal(json.loads(json.dumps(normal))) == normal
        assert feature_key("g", (normal,), "")


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_whole_number_is_one_key_however_it_is_sent(number) -> None:
    for kind in (BIGINT, NUMERIC):
        for value in (number, str(number), Decimal(number), Decimal(number).scaleb(-2).scaleb(2)):
            assert (kind.stored(value), type(kind.stored(value))) == (number, int)
        if abs(number) < 2**53:
            assert kind.normal(float(number)) == number
    assert TEXT.normal(number) == str(number)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_one_key_however_it_is_sent(number) -> None:
    """As the number that its digits say, which for a double is the shortest of those that round to it."""
    digits = Decimal(repr(number))
    for kind in (NUMERIC, DOUBLE):
        normal = kind.normal(number)
        assert normal == kind.normal(repr(number)) == kind.stored(digits)
        assert float(normal) == number


@given(st.uuids())
def test_a_uuid_is_one_key_however_it_is_written(value) -> None:
    forms = {UUID_TYPE.normal(text) for text in (str(value), str(value).upper(), value.hex)}
    assert forms == {str(value)} == {UUID_TYPE.stored(value)}


@given(st.datetimes(min_value=datetime(1, 1, 3), max_value=datetime(9999, 12, 29)), st.integers(-14 * 4, 14 * 4))
def test_a_moment_is_one_key_in_every_offset(moment, quarters) -> None:
    moment = moment.replace(tzinfo=UTC)
    there = moment.astimezone(timezone(timedelta(minutes=15 * quarters)))
    assert TIMESTAMPTZ.normal(there.isoformat()) == TIMESTAMPTZ.stored(moment) == moment.isoformat()


@given(st.text())
def test_text_is_never_changed_but_where_the_type_says_so(value) -> None:
    assert TEXT.normal(value) == MIXED.normal(value) == CITEXT.normal(value) == ANY.normal(value) == value
    assert CHAR.normal(value + "  ") == CHAR.normal(value) == value.rstrip(" ")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (BIGINT, ["", " 42", "42 ", "042", "+42", "-0", "42.0", "4_2", "abc", True, 42.5, 2**63, 1e300, "٤٢"]),
        (NUMERIC, ["", " 1", "+1", ".5", "1.", "0x1", "nan", True, 2**64 + 1, "0.1000000000000000000001", "1e9999"]),
        (DOUBLE, ["inf", "1e999", True, 2**53 + 1, float("inf")]),
        (TEXT, [True, 42.5]),
        (UUID_TYPE, [42, "", "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}", "a0eebc999c0b4ef8bb6d6bb9bd380a1"]),
        (DATE, ["20260131", "2026-02-30", "2026-1-1", "2026-01-31T00:00", 20260131]),
        (TIMESTAMP, ["2026-01-31", "2026-01-31T10:00Z", "2026-01-31T25:00", 0]),
        (TIMESTAMPTZ, ["2026-01-31T10:00", "2026-01-31", "0001-01-01T00:00+10:00"]),
        (BOOLEAN, [0, 1, "true", "t"]),
        (MIXED, [True]),
        (NUMERIC_OR_TEXT, [True, " 42", "042", "+1", "42 "]),
    ],
)
def test_what_is_not_of_a_type_is_refused(kind, values) -> None:
    for value in values:
        with pytest.raises(ValueError):  # noqa: PT011 - the reason is often that there is no more to say
            kind.normal(value)


def test_numeric_or_text_is_what_sqlite_stores() -> None:
    assert [NUMERIC_OR_TEXT.normal(value) for value in ("42", "42.50", "4e1", "N1", "2026-01-31")] == [
        42,
        42.5,
        40,
        "N1",
        "2026-01-31",
    ]


def test_a_field_keeps_apart_what_any_of_its_groups_does() -> None:
    assert common_type([]) == common_type([ANY, ANY]) == ANY
    assert common_type([ANY, TEXT]) == TEXT
    assert common_type([ANY, UNCOMPARED]) == UNCOMPARED
    assert common_type([UNCOMPARED, UUID_TYPE]) == UUID_TYPE
    assert common_type([TEXT, BIGINT, ANY]) == BIGINT
    assert common_type([CHAR, TEXT]) == TEXT
    assert common_type([DOUBLE, NUMERIC]) == NUMERIC
    for one, other in ((UUID_TYPE, TEXT), (DATE, TEXT), (NUMERIC, TEXT), (BOOLEAN, BIGINT), (DATE, TIMESTAMP)):
        assert common_type([one, other]) is None


PAIRS = [pair for pair in permutations(TYPES, 2) if not {ANY, UNCOMPARED} & {*pair} and common_type(pair) is not None]
EDGES = ["42", "42.0", "12e3", "1.50", "0042", "abc", "AbC", "A ", 42, 42.0, 1.5, True, "9007199254740993", 16777217]


def assert_each_group_is_asked_as_alone(pair, value) -> None:
    """A field's form, brought into each group's type, is what the group makes of the value itself."""
    kind = common_type(pair)
    assert kind == common_type(pair[::-1])
    for own in pair:
        try:
            alone, shared = own.normal(value), own.stored(kind.normal(value))
        except ValueError:
            continue
        assert (shared, type(shared)) == (alone, type(alone)), (kind, own)


@given(st.sampled_from(PAIRS), STORED)
def test_groups_that_share_a_field_are_asked_as_each_would_be_alone(pair, value) -> None:
    assert_each_group_is_asked_as_alone(pair, value)


@pytest.mark.parametrize("value", EDGES, ids=repr)
def test_groups_that_share_a_field_are_asked_as_each_would_be_alone_at_the_edges(value) -> None:
    for pair in PAIRS:
        assert_each_group_is_asked_as_alone(pair, value)


@pytest.mark.parametrize(
    "pair",
    [(NUMERIC_OR_TEXT, kind) for kind in (TEXT, CHAR, CITEXT, MIXED)]
    + [(MIXED, kind) for kind in (BIGINT, NUMERIC, DOUBLE)],
)
def test_types_to_which_digits_are_different_keys_do_not_share_a_field(pair) -> None:
    assert common_type(pair) is None
    assert common_type(pair[::-1]) is None


def test_a_whole_number_never_becomes_its_neighbour() -> None:
    number = 2**53 + 1
    for value in (number, str(number), f"{number}.0", Decimal(number)):
        with pytest.raises(ValueError, match="more digits than a"):
            DOUBLE.stored(value)
    assert DOUBLE.normal(number - 1) == DOUBLE.normal(str(number - 1)) == number - 1
    assert DOUBLE.normal("1e23") == 1e23


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([], ANY),
        ([None], ANY),
        ([1, None, 2], BIGINT),
        (["a"], TEXT),
        ([True, False], BOOLEAN),
        ([1, 2.5], NUMERIC),
        ([1, "a"], MIXED),
        ([1, True], ANY),
    ],
)
def test_the_type_of_a_table_without_one_is_that_of_its_values(values, kind) -> None:
    assert inferred(values) == kind


def test_a_driver_may_have_uuids_of_its_own() -> None:
    class Own(UUID):
        pass

    assert type(UUID_TYPE.stored(Own(int=1))) is str
