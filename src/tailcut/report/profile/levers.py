"""What-if: what each lever would win, as a table and in sentences."""

from __future__ import annotations

from tailcut.profiler.levers.advice import Advice, LeverAdvice
from tailcut.profiler.overhead_records import Overhead
from tailcut.report.profile.tables import Table
from tailcut.report.profile.words import ms, signed

_NONE = "-"


def levers_table(advice: Advice) -> Table:
    """A row for the service as it is, then one per lever: those to pull first, in order."""
    now = advice.now
    rows = [
        ("", "as it is, simulated", ms(now.p95_ms), "", ms(now.p95_ms), rate(now.capacity), "", rate(now.capacity), "")
    ]
    rows += [
        (
            f"{one.order}." if one.order else "",
            one.lever,
            ms(one.p95_ms),
            ms(one.bound_p95_ms),
            _NONE if one.after_p95_ms is None else ms(one.after_p95_ms),
            rate(one.capacity),
            rate(one.bound_capacity),
            rate(one.after_capacity),
            verdict(one),
        )
        for one in advice.levers
    ]
    whose = "the SLO's" if advice.has_slo else "four times that of an idle service"
    return Table(
        head=(
            "", "lever", f"{advice.percentile} ms", "at best", "so far", "capacity/s", "at best", "so far", "worth it?",
        ),
        rows=tuple(rows),
        left=(0, 1, 8),
        note=(
            f"at {advice.rate:.4g} requests/s; each lever alone, at best (what it is aimed at takes no time), and with"
            f" those above it (so far); capacity: the highest rate with {advice.percentile} within"
            f" {ms(advice.limit_ms)} ms, {whose}"
        ),
    )  # fmt: skip


def verdict(one: LeverAdvice) -> str:
    """Say whether a lever is worth it, and why not."""
    if one.worth:
        return f"yes: {one.reason}" if one.reason else "yes"
    if one.reason.startswith("not known: "):
        return one.reason
    return f"no: {one.reason.removeprefix('not worth it: ')}" if one.reason else "no"


def trust(advice: Advice, overhead: Overhead | None) -> str:
    """Say how well the simulation repeats what was measured."""
    found = advice.calibration
    less = ", less the overhead of profiling" if overhead is not None else ""
    cut = (
        f" Of what requests waited for fetches beyond the median one, {found.spread_kept:.0%} are kept in what follows."
        if found.spread_kept < 1.0
        else ""
    )
    if found.excess:
        cut += f" The {found.excess:.0%} that it is still too slow are taken off, as far as those fetches are left."
    return (
        f"Before any lever the simulation gives a p95 of {ms(found.simulated_p95_ms)} ms where"
        f" {ms(found.measured_p95_ms)} ms were measured{less} ({signed(found.p95_error)}).{cut}"
    )


def rests_on(advice: Advice) -> list[str]:
    """What the estimates of the levers that are worth it rest on."""
    return [f"{one.lever}: {'; '.join(one.basis)}" for one in advice.levers if one.basis and one.worth]


def rate(value: float | None) -> str:
    """Requests per second; "none" where the limit holds at no rate."""
    if value is None:
        return _NONE
    if value <= 0.0:
        return "none"
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
