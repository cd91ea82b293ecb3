"""Calls that no request was known to wait for, in words: their time is in no stage under their own name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tailcut.profiler.attribution.calls import shown_label
from tailcut.profiler.records import BackgroundCall, Stage

_LEAST_SHARE = 0.01
"""Of the recording's time: less is no news, but for models."""
_MOST = 5


def notable(background_calls: Sequence[BackgroundCall], window_s: float) -> tuple[BackgroundCall, ...]:
    """Choose those that matter, most time first; those that differ in a value only count as one."""
    sums: defaultdict[tuple[Stage, str], list[int]] = defaultdict(lambda: [0, 0])
    for one in background_calls:
        found = sums[one.stage, shown_label(one.stage, one.label)]
        found[0] += one.calls
        found[1] += one.took_ns
    merged = (
        BackgroundCall(stage=stage, label=label, calls=calls, took_ns=took_ns)
        for (stage, label), (calls, took_ns) in sums.items()
    )
    kept = [one for one in merged if one.stage == Stage.MODEL or one.took_ns >= _LEAST_SHARE * window_s * 1e9]
    return tuple(sorted(kept, key=lambda one: -one.took_ns))


def background_words(background_calls: Sequence[BackgroundCall], window_s: float) -> dict[Stage, str]:
    """Say of each stage what of it ran, the longest first."""
    words: dict[Stage, str] = {}
    for one in notable(background_calls, window_s):
        words.setdefault(one.stage, _words(one))
    return words


def background_notes(background_calls: Sequence[BackgroundCall], window_s: float) -> tuple[str, ...]:
    """Say what ran, and what that means for the stages."""
    return tuple(
        f"{_words(one)} for no request in particular, in a worker behind a queue or in a background task: a request's "
        "wait for it counts in the surrounding stage"
        for one in notable(background_calls, window_s)[:_MOST]
    )


def _words(one: BackgroundCall) -> str:
    times = "once" if one.calls == 1 else f"{one.calls} times"
    return f"{one.label} ran {times} ({one.took_ns / 1e9:.3g} s)"
