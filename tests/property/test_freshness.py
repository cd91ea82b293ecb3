"""Decisions about freshness keep their promises for every TTL, clock and source time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailcut.cache.freshness import (
    blend_source_s,
    effective_ttl_s,
    is_in_use,
    is_usable_stale,
    is_valid_ttl,
    negative_ttl_s,
    next_interval_s,
    refresh_due_s,
    refresh_lead_s,
    retry_delay_s,
    stale_wait_s,
)

TTLS = st.floats(1e-3, 1e6)
SHARES = st.floats(0, 1)
NOWS = st.floats(0, 1e7)


@given(TTLS, SHARES, SHARES)
def test_jitter_only_shortens(ttl_s, jitter, u) -> None:
    assert ttl_s * (1 - jitter) * (1 - 1e-9) <= effective_ttl_s(ttl_s, jitter, u) <= ttl_s


@given(TTLS, SHARES)
def test_without_jitter_the_ttl_stays(ttl_s, u) -> None:
    assert effective_ttl_s(ttl_s, 0.0, u) == ttl_s


@given(TTLS, st.floats(0, 1e6), SHARES)
def test_a_refresh_falls_between_half_the_ttl_and_the_expiry(ttl_s, source_s, u) -> None:
    lead_s = refresh_lead_s(ttl_s, source_s)
    assert 0 < lead_s <= 0.5 * ttl_s
    assert lead_s >= min(0.1 * ttl_s, 3 * source_s)
    assert -ttl_s <= -lead_s <= refresh_due_s(0.0, ttl_s, source_s, u) < 0.0


@given(TTLS, st.floats(0, 1e6), st.floats(0, 1e7))
def test_the_poll_estimate_rises_at_once_and_stays_bounded(ttl_s, interval_s, gap_s) -> None:
    interval_s = min(interval_s, 4 * ttl_s)
    after_s = next_interval_s(interval_s, gap_s, ttl_s)
    assert 0 <= after_s <= 4 * ttl_s
    if gap_s >= 1e-3 and gap_s > interval_s:
        assert after_s == min(gap_s, 4 * ttl_s)
    else:
        assert after_s <= interval_s


@given(TTLS, st.floats(0, 4e6), NOWS)
def test_in_use_lasts_two_polls_and_at_least_two_ttls(ttl_s, interval_s, asked_s) -> None:
    window_s = 2 * max(interval_s, ttl_s)
    assert is_in_use(asked_s, interval_s, ttl_s, asked_s + window_s * 0.999)
    assert not is_in_use(asked_s, interval_s, ttl_s, asked_s + window_s * 1.001 + 1e-3)


@given(NOWS, st.floats(0, 1e5), st.floats(0, 1e5))
def test_stale_ends_exactly_at_its_limit(fresh_until_s, stale_for_s, past_s) -> None:
    assert is_usable_stale(fresh_until_s, stale_for_s, fresh_until_s + past_s) == (
        fresh_until_s + past_s < fresh_until_s + stale_for_s
    )


@given(st.integers(1, 10_000))
def test_retries_grow_and_are_capped(failures) -> None:
    assert 0.1 <= retry_delay_s(failures) <= retry_delay_s(failures + 1) <= 2.0


@given(st.floats(0, 1e6))
def test_waiting_with_a_stale_value_leaves_time_for_the_rest(left_s) -> None:
    assert 0 <= stale_wait_s(left_s) <= 0.5 * left_s


@given(st.floats(0, 100), st.floats(0, 100))
def test_source_time_lies_between_old_and_new_and_rises_at_once(recent_s, took_s) -> None:
    after_s = blend_source_s(recent_s, took_s)
    assert min(recent_s, took_s) <= after_s <= max(recent_s, took_s) or abs(after_s - took_s) < 1e-9
    if took_s > recent_s:
        assert after_s == took_s


@given(TTLS)
def test_a_negative_result_lives_a_second_at_most_and_never_longer_than_a_value(ttl_s) -> None:
    assert negative_ttl_s(ttl_s) == min(1.0, ttl_s)


def test_only_finite_seconds_are_a_ttl() -> None:
    assert all(is_valid_ttl(ttl) for ttl in (0, 1, 0.5, 1e9))
    assert not any(is_valid_ttl(ttl) for ttl in (-1, float("nan"), float("inf"), "1s", None, True))
