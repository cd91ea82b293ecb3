"""JSON with NaN and infinity is read as it was written; what is not JSON is refused as before."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.common.json_values import UNREADABLE, decode, encode, is_json, plain

ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


def same(one: Any, other: Any) -> bool:
    """Equal in value, kind and sign, NaN and null alike."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if one is None or other is None or one != one or other != other:  # NaN
        return all(each is None or each != each for each in (one, other))
    return one == other and type(one) is type(other) and str(one)[:1] == str(other)[:1]


@given(values)
def test_what_is_written_is_valid_json_and_means_the_same(value: Any) -> None:
    for text in (encode(value), msgspec.json.encode(plain(value))):
        assert is_json(text)
        assert same(decode(ANY, text), value)
        assert same(json.loads(text), value)


@given(values)
def test_what_pythons_json_writes_is_read(value: Any) -> None:
    """Given NaN, Infinity and -Infinity as words."""
    assert same(decode(ANY, json.dumps(value).encode()), json.loads(json.dumps(value)))


@given(st.binary(max_size=30) | st.text('[]{}:,"-+.eE019naINfity \\ud8', max_size=20).map(str.encode))
def test_nothing_is_read_but_json_and_the_three_words(text: bytes) -> None:
    try:
        wanted = json.loads(text.decode())
        text.decode().encode()
        msgspec.json.encode(wanted)
    except (ValueError, RecursionError):
        wanted = None
    try:
        found = decode(ANY, text)
    except UNREADABLE:
        return
    assert same(found, wanted)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"[NaN,", "malformed: Expecting value: line 1 column 6"),
        (b"[NaN, nan]", "malformed: Expecting value"),
        (b'["\\ud800", NaN]', "malformed: .*surrogates not allowed"),
        (b'["\xff", NaN]', "malformed: .*utf-8"),
        (b"[1e999, " + b"1" * 5000 + b"]", "malformed: Exceeds the limit"),
        (b'["NaN", oops]', "malformed: Expecting value"),
        (b"[oops]", "invalid character"),
    ],
)
def test_what_is_malformed_is_said(text: bytes, says: str) -> None:
    with pytest.raises(msgspec.DecodeError, match=says):
        decode(ANY, text)


def test_nesting_without_an_end_is_no_crash() -> None:
    for begin in (b"[", b'{"a":', b"[NaN,["):
        with pytest.raises(UNREADABLE):
            decode(ANY, begin * 100_000 + b"1e999")


def test_the_decoders_type_is_kept() -> None:
    @dataclass
    class Point:
        x: float
        name: str = ""

    decoder = msgspec.json.Decoder(Point)
    assert decode(decoder, b'{"x": Infinity}') == Point(math.inf)
    for wrong in (b'{"x": 1, "name": NaN}', b'{"name": "NaN"}', b"NaN"):
        with pytest.raises(msgspec.ValidationError):
            decode(decoder, wrong)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.float32("nan"), b"null"),
        (np.array([np.inf, 1]), b"[1e999,1.0]"),
        ((1, -math.inf), b"[1,-1e999]"),
        ({"a": b"\xc3\xa9"}, '{"a":"é"}'.encode()),
        (np.array([b"a"]), b'["a"]'),
        (np.str_("a"), b'"a"'),
        (np.longdouble(2), b"2.0"),
        (2**70, b"1180591620717411303424"),
        (np.uint64(2**64 - 1), b"18446744073709551615"),
        (np.bool_(True), b"true"),
    ],
)
def test_values_of_python_and_numpy_are_plain(value: Any, text: bytes) -> None:
    assert msgspec.json.encode(plain(value)) == text


@pytest.mark.parametrize("value", [object(), 1j, np.complex64(1), b"\xff", "\ud800"])
def test_what_json_has_not_is_an_error(value: Any) -> None:
    with pytest.raises((TypeError, ValueError, NotImplementedError)):
        msgspec.json.encode(plain(value))
