from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.observe.traces.trace_context import (
    MASK_64,
    RANDOM,
    SAMPLED,
    Parent,
    derived_id,
    format_traceparent,
    parse_traceparent,
    parse_tracestate,
)

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{SPAN}-01"

ids = st.integers(1, 2**128 - 1)
spans = st.integers(1, MASK_64)


@given(ids, spans, st.integers(0, 3))
def test_what_is_written_is_read_as_it_was(trace_id: int, span_id: int, flags: int) -> None:
    assert parse_traceparent(format_traceparent(trace_id, span_id, flags)) == Parent(trace_id, span_id, flags)


@given(ids, spans, st.integers(0, 255))
def test_flags_that_version_00_does_not_know_are_not_handed_on(trace_id: int, span_id: int, flags: int) -> None:
    assert format_traceparent(trace_id, span_id, flags).endswith(f"-{flags & (SAMPLED | RANDOM):02x}")


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        (GOOD, True),
        (GOOD[:-2] + "ff", True),
        (GOOD + "-more", False),
        (GOOD + "-", False),
        ("01" + GOOD[2:], True),
        ("cc" + GOOD[2:] + "-what the future brings", True),
        ("cc" + GOOD[2:] + ".01", False),
        ("ff" + GOOD[2:], False),
        (GOOD.upper(), False),
        (GOOD.replace(TRACE, "0" * 32), False),
        (GOOD.replace(SPAN, "0" * 16), False),
        (GOOD[1:], False),
        (GOOD[:-1], False),
        (" " + GOOD, False),
        (GOOD + "\n", False),
        ("", False),
        (GOOD.replace("a", "٣"), False),
    ],
)
def test_only_the_form_of_the_standard_is_read(text: str, valid: bool) -> None:
    assert (parse_traceparent(text) is not None) is valid


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    found = parse_traceparent(text)
    assert found is None or text.isascii()


@given(st.integers(0, len(GOOD) - 1), st.characters(codec="utf-8"))
def test_one_wrong_character_gives_another_trace_or_none(at: int, character: str) -> None:
    changed = GOOD[:at] + character + GOOD[at + 1 :]
    found = parse_traceparent(changed)
    if found is not None and changed[:2] != "ff":
        assert format_traceparent(*found)[3:-2] == changed[3:53] + "" or len(changed) == 55


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("rojo=00f067aa0ba902b7, congo=t61rcWkgMzE", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
        ("a@vendor=1,,\t b-c_d/e*f=x y", "a@vendor=1,b-c_d/e*f=x y"),
        ("a=1,a=2", ""),
        ("A=1", ""),
        ("a=b=c", ""),
        ("a", ""),
        ("a=ü", ""),
        (",".join(f"k{n}=v" for n in range(33)), ""),
        ("", ""),
    ],
)
def test_tracestate_is_handed_on_whole_or_not_at_all(text: str, normal: str) -> None:
    assert parse_tracestate(text) == normal


@given(st.lists(st.from_regex(r"[a-z][a-z0-9]{0,20}=[!-+\--<>-~]{1,200}", fullmatch=True), max_size=32))
def test_a_long_tracestate_loses_members_but_none_is_cut(members: list[str]) -> None:
    kept = parse_tracestate(",".join(members))
    assert len(kept) <= 512
    assert set(filter(None, kept.split(","))) <= set(members)
    if len({member.partition("=")[0] for member in members}) == len(members) and len(",".join(members)) <= 512:
        assert kept == ",".join(members)


@given(st.integers(0, MASK_64), st.lists(st.integers(0, 10_000), unique=True, max_size=50))
def test_ids_of_one_seed_differ(seed: int, numbers: list[int]) -> None:
    found = [derived_id(seed, number) for number in numbers]
    assert len(set(found)) == len(numbers)
    assert all(0 < each <= MASK_64 for each in found)
