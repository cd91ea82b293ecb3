"""Code that holds the event loop: whatever it does meanwhile, no other request is taken in or goes on."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from tailcut.profiler.attribution.span_table import Flat
from tailcut.profiler.records import Recording, Stage

_MUCH = 0.05
"""Of all time: less makes few requests wait."""
_LONG_NS = 2e6
"""On average: what is shorter is a handler's usual work."""
_MOST = 3


def blocking_code(recording: Recording, flat: Flat) -> tuple[str, ...]:
    """Name the user's code that holds the event loop for long, and much of the time.

    What the framework does for an endpoint that runs in a thread, such as encoding its reply, has the endpoint's name
    there and is not its code.

    Returns:
        Sentences, those first that hold it most.
    """
    on_loop = np.bincount(flat.name, weights=flat.thread == 0, minlength=len(flat.names)) > 0
    threaded = {
        (name.label, name.place)
        for name, there in zip(flat.names, on_loop.tolist(), strict=True)
        if name.stage == Stage.CODE and not there
    }
    held: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for one in recording.moments:
        if one.stage == Stage.LOOP and one.place and (one.label, one.place) not in threaded:
            held[one.label, one.place].append(one.end_ns - one.start_ns)
    lines = []
    for (label, place), took_ns in held.items():
        whole_ns, mean_ns = sum(took_ns), sum(took_ns) / len(took_ns)
        share = whole_ns / (recording.duration_s * 1e9)
        if share >= _MUCH and mean_ns >= _LONG_NS:
            line = (
                f"{label} ({place}) holds the event loop for {mean_ns / 1e6:.3g} ms at a time, {share:.0%} of all "
                "time, while all other requests wait: use await for its waits, run it in a thread (a handler without "
                "async "
                "runs in "
                "one), or move Python computation to another process; no lever does this"
            )
            lines.append((share, line))
    return tuple(line for _, line in sorted(lines, reverse=True)[:_MOST])
