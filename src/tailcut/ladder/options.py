"""How a ladder is climbed."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tailcut.parity.analysis.mapping import FieldPair


class LadderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths and limits of one climb.

    Args:
        out: folder for the reports, logs and raw samples.
        rates: requests per second measured beside the comfortable rate.
        rounds: how often each rung is measured.
        duration_s: seconds measured per rung, rate and round.
        warmup_s: seconds of the same traffic before them.
        settle_s: seconds more of it, where the server was just started: its connections prepare their statements, its
            caches know nothing yet.
        step_s: seconds measured per step of a capacity search.
        step_warmup_s: seconds before them.
        search_s: no new step of a capacity search starts after this long.
        tolerance: how close a capacity is found, as a share of it.
        max_rate: highest rate that is tried.
        ready_s: longest wait for a server to be ready.
        only: names of the rungs that run; empty: all.
        comfortable_rate: instead of 70 % of the pilot's own capacity; None: measure it.
        capacity: whether capacities are searched.
        parity: requests whose answers are compared with the pilot's, per rung; 0: none.
        pairs: fields of the pilot's and the deployment's replies that belong together; empty: those with equal names.
        seed: of the traffic.
        command: the command line, for the record.
    """

    out: Path
    rates: tuple[float, ...] = (200.0,)
    rounds: int = 3
    duration_s: float = 15.0
    warmup_s: float = 3.0
    settle_s: float = 8.0
    step_s: float = 6.0
    step_warmup_s: float = 1.0
    search_s: float = 120.0
    tolerance: float = 0.05
    max_rate: float = 6_000.0
    ready_s: float = 120.0
    only: tuple[str, ...] = ()
    comfortable_rate: float | None = None
    capacity: bool = True
    parity: int = 50
    pairs: tuple[FieldPair, ...] = ()
    seed: int = 0
    command: str = "tailcut ladder"


def short(options: LadderOptions) -> LadderOptions:
    """Make the climb that fits a demonstration: fewer and shorter measurements, wider intervals."""
    return msgspec.structs.replace(
        options, rounds=2, duration_s=3.0, warmup_s=1.0, settle_s=1.0, step_s=1.5, step_warmup_s=0.5, search_s=10.0,
        tolerance=0.2,
    )  # fmt: skip


def warmup_of(options: LadderOptions, sent: int) -> float:
    """Say for how many seconds a server gets traffic before it is measured, longer where it was just started.

    Args:
        sent: requests of the traffic that it has had.
    """
    return options.warmup_s + (0.0 if sent else options.settle_s)


def describe(options: LadderOptions) -> dict[str, str]:
    """Say the settings in words, for the report."""
    return {
        "rounds": str(options.rounds),
        "measured": f"{options.duration_s:g} s per rung, rate and round, after {options.warmup_s:g} s of it, and"
        f" {options.settle_s:g} s more where the server was just started",
        "arrivals": f"poisson, seed {options.seed} + round, the same for every rung",
        "capacity steps": f"{options.step_s:g} s, within {options.tolerance:.0%}, {options.search_s:g} s per rung",
    }
