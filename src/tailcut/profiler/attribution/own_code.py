"""The user's own code that takes much of the slowest requests: no lever makes it quicker."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tailcut.profiler.attribution.awaiting import awaited_ns
from tailcut.profiler.attribution.budget import by_name
from tailcut.profiler.attribution.functions import functions_of
from tailcut.profiler.attribution.span_table import Ints
from tailcut.profiler.attribution.stages import Attribution
from tailcut.profiler.records import Recording, Stage

LARGE_CODE = 0.2
"""Of the time of the requests near the percentile: from there on it is worth a word."""
_MOST = 0.5
"""Of the samples in it: such a function is named."""


def own_code(recording: Recording, found: Attribution, near: Ints, hints: Sequence[str] = ()) -> tuple[str, ...]:
    """Name the function of the user's that takes most of the requests near the percentile, where that is much.

    What it awaited is no part of it.

    Args:
        near: places of these requests.
        hints: what is said already: of code that holds the event loop nothing more is.

    Returns:
        One sentence, or none.
    """
    ran_ns = np.maximum(found.self_ns - awaited_ns(found, recording), 0.0)
    code = {name: took_ns for name, took_ns in by_name(found, near, ran_ns).items() if name.stage == Stage.CODE}
    if not len(near) or not code:
        return ()
    name = max(code, key=lambda one: code[one])
    share = code[name] / float(found.flat.wall_ns[near].sum())
    if share < LARGE_CODE or not name.place or any(f"({name.place})" in hint for hint in hints):
        return ()
    seen = functions_of(recording).get((name.label, name.place), ())
    inside = f", mostly in {seen[0].function}" if seen and seen[0].share >= _MOST else ""
    return (
        f"{name.label} ({name.place}) is your own code and takes {code[name] / len(near) / 1e6:.3g} ms of a request"
        f" near the percentile, {share:.0%} of it{inside}: make it faster; no lever does this, except that a feature "
        "cache keeps features of repeating entities",
    )
