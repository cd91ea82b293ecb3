"""Durations, sizes and shares: what is written is read again, and nothing unclear is read at all."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.common.units import UnitError
from tailcut.manifest import format_duration, format_share, format_size, parse_duration, parse_share, parse_size

SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@given(st.integers(0, 10**9), st.sampled_from(sorted(SECONDS)))
def test_a_whole_number_of_a_unit_is_that_many_seconds(number: int, unit: str) -> None:
    assert math.isclose(parse_duration(f"{number}{unit}"), number * SECONDS[unit], rel_tol=1e-12)


@given(st.floats(0, 1e12, allow_nan=False))
def test_durations_survive_being_written(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.integers(0, 2**60))
def test_sizes_survive_being_written(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes
    assert parse_size(size_bytes) == size_bytes


@given(st.floats(0, 1))
def test_shares_survive_being_written(share: float) -> None:
    text = format_share(share)
    assert parse_share(text if text.endswith("%") else float(text)) == share


@given(st.integers(0, 10**6), st.sampled_from(sorted(BYTES)))
def test_a_size_is_its_number_times_its_unit(number: int, unit: str) -> None:
    assert parse_size(f"{number}{unit}") == number * BYTES[unit]


@given(st.integers(0, 10**6).map(str) | st.floats(0, 1e6).map(lambda x: f"{x:.3f}"))
def test_a_bare_number_is_never_a_duration(number: str) -> None:
    with pytest.raises(UnitError, match="has no unit; write"):
        parse_duration(number)


@given(st.text(max_size=8) | st.booleans() | st.none() | st.lists(st.integers()) | st.floats() | st.integers())
def test_whatever_comes_is_read_or_refused(value: object) -> None:
    for parse in (parse_duration, parse_size, parse_share):
        try:
            read = parse(value)
        except UnitError:
            continue
        assert read >= 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.015, "15ms"),
        (0.5, "500ms"),
        (0.00025, "250us"),
        (30, "30s"),
        (300, "5m"),
        (7200, "2h"),
        (86400, "1d"),
    ],
)
def test_durations_are_written_as_people_write_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5", '"5" has no unit; write "5s" or "5ms"'),
        ("5 min", '"5 min" has the unknown unit "min"; the units are us, ms, s, m, h, d, w'),
        ("-5s", '"-5s" is not a duration; write for example "5s" or "5ms"'),
        ("", '"" is not a duration; write for example "5s" or "5ms"'),
        ("\u0665s", '"\u0665s" is not a duration; write for example "5s" or "5ms"'),
        (True, 'true is not a duration; write for example "5s" or "5ms"'),
        (1.5, '1.5 has no unit; write "1.5s" or "1.5ms"'),
        ("9" * 400 + "s", f'"{"9" * 400}s" is too large for a duration'),
    ],
)
def test_unclear_durations_are_refused(text: object, message: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse_duration(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("64", '"64" has no unit; write "64B", "64KiB" or "64MiB"'),
        ("0.5B", '"0.5B" is not a whole number of bytes; write a smaller unit'),
        (-1, '-1 is negative; write a number of bytes, or for example "64MiB"'),
        (1.5, '1.5 is not a size; write for example "64MiB" or a whole number of bytes'),
    ],
)
def test_unclear_sizes_are_refused(value: object, message: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse_size(value)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("0.1", '"0.1" has no percent sign; write "0.1%", or a fraction without quotes'),
        ("101%", '"101%" is more than 100%; write a share between 0% and 100%'),
        (1.5, '1.5 is not between 0 and 1; write a fraction, or a percentage such as "1.5%"'),
        (math.nan, 'nan is not between 0 and 1; write a fraction, or a percentage such as "nan%"'),
    ],
)
def test_unclear_shares_are_refused(value: object, message: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse_share(value)
    assert str(caught.value) == message
