"""What each lever can win, as a table and in sentences."""

from __future__ import annotations

from tailcut.profiler.levers.advice import Advice, LeverAdvice, span
from tailcut.report.profile.tables import Table
from tailcut.report.profile.words import ms

_NONE = "-"


def levers_table(advice: Advice) -> Table:
    """A row for the service as it is, then one per lever: those to pull first, in order."""
    rows = [("", "as it is", ms(advice.p95_ms), "", "", rate(advice.capacity), "")]
    rows += [
        (
            f"{one.order}." if one.order else "",
            one.lever,
            _NONE if one.p95_ms is None else span(*one.p95_ms),
            ms(one.bound_p95_ms),
            _NONE if one.after_p95_ms is None else span(*one.after_p95_ms),
            rate(one.capacity),
            verdict(one),
        )
        for one in advice.levers
    ]
    return Table(
        head=("", "lever", f"{advice.percentile} ms", "bound", "so far", "at most/s", "worth it?"),
        rows=tuple(rows),
        left=(0, 1, 6),
        note=(
            f"at {advice.rate:.4g} requests/s; each lever alone, best and worst; bound: what it is aimed at takes no"
            " time and no request waits for another; so far: with those above it; at most: the requests/s that no"
            f" resource allows more than, as it is {advice.limited_by}"
        ),
    )


def verdict(one: LeverAdvice) -> str:
    """Say whether a lever is worth it, and why not."""
    if one.worth:
        return f"yes: {one.reason}" if one.reason else "yes"
    if one.reason.startswith("not known: "):
        return one.reason
    return f"no: {one.reason.removeprefix('not worth it: ')}" if one.reason else "no"


def rests_on(advice: Advice) -> list[str]:
    """What the ranges of the levers that are worth it rest on."""
    return [f"{one.lever}: {'; '.join(one.basis)}" for one in advice.levers if one.basis and one.worth]


def rate(value: float | None) -> str:
    """Requests per second."""
    if value is None:
        return _NONE
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
