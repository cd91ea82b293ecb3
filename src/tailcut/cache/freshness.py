"""When a cached value is fresh, when to refresh it, and for how long an entity counts as in use.

All times are seconds of one monotonic clock (``_s``), all decisions are values.
"""

from __future__ import annotations

import math

NEGATIVE_TTL_S = 1.0
"""How long "this key has no row" is remembered: long enough to spare the source, short enough for new entities."""

_LEAD_SHARE = 0.1
_LEAD_SOURCE_TIMES = 3.0
_LEAD_CAP_SHARE = 0.5
_LONGEST_INTERVAL_TTLS = 4.0
_INTERVAL_WEIGHT = 0.2
_SHORTEST_GAP_S = 1e-3
_FIRST_RETRY_S = 0.1
_LONGEST_RETRY_S = 2.0
_STALE_WAIT_SHARE = 0.5


def effective_ttl_s(ttl_s: float, jitter: float, u: float) -> float:
    """Shorten a TTL by up to the share ``jitter``, so that values written together do not expire together.

    Args:
        ttl_s: the longest life allowed; the result is never longer.
        jitter: 0 to 1.
        u: drawn evenly from 0 to 1.
    """
    return ttl_s * (1.0 - u * jitter)


def is_usable_stale(fresh_until_s: float, stale_for_s: float, now_s: float) -> bool:
    """Whether a value may be served while its source fails: for less than ``stale_for_s`` past its TTL."""
    return now_s < fresh_until_s + stale_for_s


def refresh_lead_s(ttl_s: float, source_s: float) -> float:
    """How long before its expiry a value in use is refreshed.

    A tenth of the TTL, or three times what the source took lately if that is longer, but never more than half of the
    TTL: a source slower than that cannot be hidden by refreshing ever earlier.
    """
    return min(max(_LEAD_SHARE * ttl_s, _LEAD_SOURCE_TIMES * source_s), _LEAD_CAP_SHARE * ttl_s)


def refresh_due_s(fresh_until_s: float, ttl_s: float, source_s: float, u: float = 0.0) -> float:
    """When to refresh a value in use. ``u`` in 0 to 1 spreads processes that share a store; always before expiry."""
    return fresh_until_s - refresh_lead_s(ttl_s, source_s) * (1.0 - 0.3 * u)


def next_interval_s(interval_s: float, gap_s: float, ttl_s: float) -> float:
    """Update the estimate of the time between two polls of a key after a gap of ``gap_s``.

    Rises at once and falls slowly, so that a few clients who ask in a burst do not hide the slow poll between bursts.
    Never above 4 TTLs: refreshing a value five times for one poll costs the source more than the miss costs the client.
    """
    if gap_s < _SHORTEST_GAP_S:
        return interval_s
    gap_s = min(gap_s, _LONGEST_INTERVAL_TTLS * ttl_s)
    return gap_s if gap_s > interval_s else interval_s + _INTERVAL_WEIGHT * (gap_s - interval_s)


def is_in_use(last_asked_s: float, interval_s: float, ttl_s: float, now_s: float) -> bool:
    """Whether a key was asked for recently enough to be refreshed ahead: within two polls, or two TTLs if longer."""
    return now_s - last_asked_s <= max(2.0 * interval_s, 2.0 * ttl_s)


def retry_delay_s(failures: int) -> float:
    """Wait before a failed source or store is tried again in the background: doubles from 0.1 s to 2 s.

    Args:
        failures: failures in a row, at least 1.
    """
    return min(_LONGEST_RETRY_S, _FIRST_RETRY_S * 2.0 ** min(failures - 1, 10))


def stale_wait_s(left_s: float) -> float:
    """How long a request that has a usable stale value waits for a fresh one.

    Half of its time: a stale answer within the deadline beats a fresh one after it, and the model still has to run.
    """
    return _STALE_WAIT_SHARE * left_s


def negative_ttl_s(ttl_s: float) -> float:
    """TTL of "this key has no row" in a group whose values live ``ttl_s``."""
    return min(NEGATIVE_TTL_S, ttl_s)


def blend_source_s(recent_s: float, took_s: float) -> float:
    """Update the recent source time: a rise counts at once, a fall slowly (refreshing early is cheap, late is not)."""
    return took_s if took_s > recent_s else recent_s + _INTERVAL_WEIGHT * (took_s - recent_s)


def is_valid_ttl(ttl_s: object) -> bool:
    """Whether what a TTL function returned is a finite number of seconds, 0 or more."""
    return isinstance(ttl_s, int | float) and not isinstance(ttl_s, bool) and math.isfinite(ttl_s) and ttl_s >= 0
