"""What ``benchmarks.reload`` measured, as figures with intervals and as a page."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.promotion import Window, percentile, ratio

BAR = 1.3
_RESAMPLES = 4000


def windows_of(kind: dict[str, Any]) -> list[Window]:
    """Read what was measured back."""
    return [
        Window(np.array(each["before_ms"]), np.array(each["during_ms"]), 0, 0, each["took_s"])
        for each in kind["switches"]
    ]


def bounds(windows: list[Window], figure: Callable[[list[Window]], float]) -> tuple[float, float, float]:
    """Return a figure and its 95 % interval: the switches are drawn again, each with all of its requests."""
    random = np.random.default_rng(0)
    count = len(windows)
    drawn = [figure([windows[at] for at in random.integers(0, count, count)]) for _ in range(_RESAMPLES)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return figure(windows), float(low), float(high)


def render(results: dict[str, Any]) -> str:
    """Return all results as a page of Markdown."""
    lines = [
        "# Reload, pool scaling and another model's loads at half of capacity",
        "",
        "Latency from the intended moment of each request. In brackets: 95 % interval by bootstrap over the switches.",
        "See `benchmarks/reload.py` for what a switch and its window are. The server has one core, so that loading",
        "competes with serving.",
    ]
    for result in results.values():
        average = result["load_average"]
        lines += [
            "",
            f"## {result['label']}",
            "",
            f"`{result['command']}` at commit {result['commit']}, {result['date']}, on {result['cpu']}, Python "
            f"{result['python']}; load average {average['before']:.1f} before, {average['after']:.1f} after.",
            "",
            "| | switches | capacity, load (req/s) | errors | took, ms | p99 before, ms | during, ms | ratio | bar |",
            "|---|---|---|---|---|---|---|---|---|",
            *(_row(name, kind) for name, kind in result["kinds"].items()),
            "",
            *(line for name, kind in result["kinds"].items() for line in _beside(name, kind)),
        ]
    lines += ["", f"Bar: no errors, and the interval of the ratio lies below {BAR:g}.", ""]
    return "\n".join(lines)


def _row(name: str, kind: dict[str, Any]) -> str:
    windows = windows_of(kind)
    before, during = (bounds(windows, partial(percentile, part=part, q=99)) for part in ("before", "during"))
    found = bounds(windows, partial(ratio, q=99))
    took_ms = sorted(window.swap_s * 1e3 for window in windows)
    met = not kind["errors"] and found[2] < BAR
    return (
        f"| {name} | {len(windows)} | {kind['capacity_rps']:.0f}, {kind['rate_rps']:.0f} | {kind['errors']} of "
        f"{kind['requests']} | {np.median(took_ms):.0f} ({took_ms[0]:.0f} to {took_ms[-1]:.0f}) | {_spread(before)} | "
        f"{_spread(during)} | {_spread(found)} | {'met' if met else '**missed**'} |"
    )


def _beside(name: str, kind: dict[str, Any]) -> list[str]:
    """What else there is to know of a run; nothing of those from before it was kept."""
    lines = [
        f"- {name}: status {status} said `{' '.join(said.split())}`." for status, said in kind.get("said", {}).items()
    ]
    if "taken_at_s" in kind:
        servers_ms, loads_ms = (sum(each[place] for each in kind["taken_at_s"]) for place in (1, 2))
        lines.append(
            f"- {name}: meanwhile the hypervisor took {servers_ms} ms of the server's core and {loads_ms} ms of the"
            " load's."
        )
    return lines


def _spread(found: tuple[float, float, float]) -> str:
    return f"{found[0]:.2f} ({found[1]:.2f} to {found[2]:.2f})"
