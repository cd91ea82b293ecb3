"""Whether a prediction cache pays, from what is measured: how often it hits, what a hit saves, what a look-up costs.

A look-up that hits saves the miss path; every look-up costs itself, and one that misses also the keeping. So a cache
pays from this share of repeats on:

    break-even = (look-up + keeping) / (miss path + keeping)

It is switched off where the share is surely below that, or below ``AGAINST``, and on again where it is surely half as
much again above it, or above ``FOR`` and the break-even. What is between the two changes nothing.

Entries that were made together end together, and until each was asked for once more all look-ups miss. So the share
must have been too low for a whole life before it counts: within one, whoever comes again has found what he left.
"""

from __future__ import annotations

from typing import Literal

from tailcut.cache.repeat_rate import RepeatShare

AGAINST = 0.05
"""Repeats below this share: a cache is advised against, whatever it saves: it holds memory and ages answers."""
FOR = 0.30
"""Repeats from this share on: a cache is advised, where it pays at all."""

_BACK = 1.5
_LEAST_LOOKUPS = 100
_FIRST_PATIENCE_S = 60.0
_FIRST_PAUSE_S = 10.0
_LONGEST_PAUSE_S = 3600.0
_LONGEST_PROOF_S = 3600.0
_YOUNG = 0.5
_WEIGHT = 1 / 16
_OUTLIER = 10.0
"""A time counts as at most so many times what is expected: one hiccup says little about the next request."""

Event = Literal["on", "off", "for", "against", ""]


class CacheAdvisor:
    """Watches one prediction cache and decides whether it is on. Pure: it is told the time.

    Args:
        auto: whether it may be switched off; else there is only advice.
        life_s: longest life of an entry.

    Attributes:
        decided: the share of repeats that the last decision rests on.
        on: whether the cache is to be used.
        advice: 1 where the cache is advised, -1 where it is advised against, 0 before either is sure.
        share: of repeats: hits while the cache is on, repeats in the sketch while it is off.
        look_ns, keep_ns, miss_ns: what a row's look-up, keeping and miss path take; 0 where it is not known yet.
        life_s: how long entries live lately.
    """

    def __init__(self, *, auto: bool, life_s: float, now_s: float) -> None:
        self._auto = auto
        self.on = True
        self.advice = 0
        self.share = RepeatShare()
        self.decided = 0.0
        self.look_ns = self.keep_ns = self.miss_ns = 0.0
        self.life_s = life_s
        # An empty cache cannot hit: its first look-ups say nothing.
        self._due_s = now_s + min(life_s, _FIRST_PATIENCE_S)
        self._settled = False
        self._old_s = now_s + _YOUNG * life_s
        self._low_since_s: float | None = None
        self._pause_s = _FIRST_PAUSE_S

    @property
    def break_even(self) -> float:
        """Share of repeats from which on the cache pays; 1 or more where it never does."""
        if not self.miss_ns:
            return 0.0
        return (self.look_ns + self.keep_ns) / (self.miss_ns + self.keep_ns)

    def cost(self, look_ns: float, keep_ns: float) -> None:
        """Learn what the look-up of one row took, and keeping its answer."""
        self.look_ns = _blend(self.look_ns, look_ns)
        self.keep_ns = _blend(self.keep_ns, keep_ns)

    def missed(self, miss_ns: float) -> None:
        """Learn what the answer of one row took without the cache."""
        self.miss_ns = _blend(self.miss_ns, miss_ns)

    def lives(self, life_s: float) -> None:
        """Learn how long an entry may live."""
        self.life_s += _WEIGHT * (life_s - self.life_s)

    def judge(self, now_s: float, lookups: int, repeats: int, *, full: bool = False) -> Event:
        """Count look-ups since the last time, and decide.

        Args:
            lookups: while the cache is on, all; while it is off, those of watched keys.
            repeats: how many of them repeated an earlier one within its life.
            full: whether entries had to go for room: no look-up will then find more than now.

        Returns:
            what has changed: "on", "off", or the advice; empty where nothing has.
        """
        if self.on and not self._settled:
            if now_s < self._due_s and not full:
                return ""
            self._settled = True
            self.share = RepeatShare()
            return ""
        self.share.add(lookups, repeats)
        if self.share.lookups < _LEAST_LOOKUPS:
            return ""
        low, high = self.share.interval()
        least = max(self.break_even, AGAINST)
        if self.on:
            return self._judge_on(now_s, low, high, least)
        if now_s >= self._due_s and (low > _BACK * least or (low > self.break_even and self.share.value >= FOR)):
            self._switch(True, now_s + self.life_s)
            self._old_s = now_s + _YOUNG * self.life_s
            return "on"
        return ""

    def _judge_on(self, now_s: float, low: float, high: float, least: float) -> Event:
        if high >= least:
            self._low_since_s = None
        elif self._is_low_for_good(now_s):
            if self._auto:
                self._switch(False, now_s + self._pause_s)
                self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
                self.advice = -1
                return "off"
            return self._advise(-1, "against")
        if low > least:
            self._pause_s = _FIRST_PAUSE_S
        if self.share.value >= FOR and low > self.break_even:
            return self._advise(1, "for")
        return ""

    def _is_low_for_good(self, now_s: float) -> bool:
        """Whether the share has been too low for a life; at once where no entry can have ended yet."""
        if self._low_since_s is None:
            self._low_since_s = now_s
        return now_s < self._old_s or now_s - self._low_since_s >= min(self.life_s, _LONGEST_PROOF_S)

    def _switch(self, on: bool, due_s: float) -> None:
        self.on = on
        self.decided = self.share.value
        self.share = RepeatShare()
        self._settled = False
        self._low_since_s = None
        self._due_s = due_s

    def _advise(self, advice: int, event: Event) -> Event:
        if self.advice == advice:
            return ""
        self.advice = advice
        self.decided = self.share.value
        return event


def _blend(known: float, seen: float) -> float:
    if not known:
        return seen
    return known + _WEIGHT * (min(seen, _OUTLIER * known) - known)
