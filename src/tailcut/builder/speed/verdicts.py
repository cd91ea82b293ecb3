"""Verdicts on speed under load, cost and choice: pure decisions over measured rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tailcut.common.slo import LatencyObjective
from tailcut.gate.sequential import Interval
from tailcut.registry.evidence import Choice, Cost, SpeedOutcome, SpeedVerdict, Three

ERROR = 0.025
"""At each end of an interval, over all looks. A variant passes by its latency or by its CPU time: twice this in all."""

MARGIN = 1.1
"""Latencies within this factor count as equal: a cheaper variant may be slower by so much; less is no useful gain."""

CHEAPER = 0.95
"""A cheaper variant takes at most this part of the CPU time: two processes of one program differ by a few percent."""

_LARGEST_RATIO = 1e300
"""Stands for no upper end: JSON has no infinity."""


def target(cpu: Interval | None) -> float:
    """Return the logarithm that the ratio of latencies must lie below to pass: the margin's where it may be cheaper."""
    return math.log(MARGIN) if cpu is not None and cpu.low <= math.log(CHEAPER) else 0.0


def outcome(latency: Interval, cpu: Interval | None) -> SpeedOutcome:
    """Decide from the logarithms of a variant's ratios to its reference.

    Equal variants are called faster with a chance of ``ERROR``, and cheaper with ``ERROR``: 5 % together, whatever
    hangs together. One that is slower than the margin passes only where its latency errs, with ``ERROR``.

    Args:
        latency: at the SLO's percentile.
        cpu: of CPU time per request; None where it is no evidence.
    """
    if latency.high < 0.0:
        return "faster"
    if cpu is not None and cpu.high < math.log(CHEAPER) and latency.high < math.log(MARGIN):
        return "cheaper"
    useless = target(cpu) or -math.log(MARGIN)
    return "no" if latency.low > useless else "open"


def ratio_of(logs: Interval) -> Three:
    """Take an interval of logarithms back to ratios."""
    middle, low, high = (_LARGEST_RATIO if each > math.log(_LARGEST_RATIO) else math.exp(each) for each in logs)
    return middle, low, high


def speed_refusal(verdict: SpeedVerdict) -> str:
    """Say why a variant may not take the place of the one it was made from; empty where it may."""
    if verdict.passed:
        return ""
    if verdict.fails:
        return (
            f"{verdict.errors:.2%} of its requests failed under load, more than slo.errors allows and more than "
            f"{verdict.reference}'s: `tailcut serve --variant` with it shows the errors"
        )
    (ratio, low, high), cpu = verdict.ratio, verdict.cpu_ratio
    figures = f"{verdict.percentile} {verdict.latency_ms[0]:.3g} ms under load, {ratio:.2f} of {verdict.reference} "
    figures += f"(95 % interval {_ends(low, high)}){f', CPU time {cpu[0]:.2f} ({_ends(*cpu[1:])})' if cpu else ''}"
    if verdict.outcome == "no":
        return f"{'slower' if low > 1.0 else 'not faster'} here: {figures}"
    seems = f"faster ({ratio:.2f})"
    if ratio >= 1.0:
        seems = f"cheaper (CPU time {cpu[0]:.2f})" if cpu and cpu[0] < CHEAPER else f"not slower ({ratio:.2f})"
    return f"perhaps {seems}, not proven: {figures} in {verdict.rounds} rounds; {verdict.stopped}"


def _ends(low: float, high: float) -> str:
    return f"{low:.2f}-{high:.2f}" if high < _LARGEST_RATIO else f"{low:.2f} or more"


def cost(cpu_ms: Sequence[float], gpu_ms: float | None, core_hour: float, gpu_hour: float, currency: str) -> Cost:
    """Price a million requests.

    Args:
        cpu_ms: of the server's process per request, one per round.
        gpu_ms: that the GPU was held, per request; None where the variant runs on none.
        core_hour, gpu_hour: prices.
    """
    cpu_s = [each * 1e3 for each in cpu_ms]
    mean_s, gpu_s = float(np.mean(cpu_s)), None if gpu_ms is None else gpu_ms * 1e3
    return Cost(
        cpu_s=(mean_s, min(cpu_s), max(cpu_s)),
        gpu_s=gpu_s,
        money=(mean_s * core_hour + (gpu_s or 0.0) * gpu_hour) / 3600.0,
        currency=currency if core_hour or gpu_hour else "",
    )


def choose(
    verdicts: Mapping[str, SpeedVerdict],
    costs: Mapping[str, Cost],
    refused: Mapping[str, str],
    slo: LatencyObjective,
    rate: float,
    dearer: Callable[[str, str], bool],
) -> Choice | None:
    """Name the cheapest variant that passed and meets the SLO; where none meets it, the fastest that passed.

    Where the rounds cannot tell whether another one is dearer than the cheapest, the fastest of them is chosen.

    Args:
        verdicts, costs: of every variant that was measured, the source included.
        refused: why a variant may not be promoted; empty where it may.
        dearer: tells whether the first of two variants surely costs more than the second.

    Returns:
        None where nothing that passed was measured.
    """
    passed = [name for name in verdicts if not refused.get(name)]
    if not passed:
        return None
    limit = f"{slo.name} <= {slo.limit_s * 1e3:g} ms at {rate:g}/s"
    within = [name for name in passed if verdicts[name].meets_slo]
    if not within:
        best = min(passed, key=lambda name: verdicts[name].latency_ms[0])
        failed = f" ({errors:.1%} of its requests failed)" if (errors := verdicts[best].errors) else ""
        return Choice(variant=best, why=f"the fastest that passed; none meets {limit}{failed}", meets_slo=False)
    cheapest = min(within, key=lambda name: (costs[name].money, costs[name].cpu_s[0]))
    alike = [name for name in within if name == cheapest or not dearer(name, cheapest)]
    best = min(alike, key=lambda name: verdicts[name].latency_ms[0])
    why = f"the cheapest that passed and meets {limit}"
    if len(alike) > 1:
        why = f"the fastest of {', '.join(alike)}, which passed, meet {limit} and cost the least, alike in these rounds"
    return Choice(variant=best, why=why, meets_slo=True)


# -- The bare race ---------------------------------------------------------------------------------------------------


def ratios(ms: Mapping[int, Sequence[float]], reference_ms: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """Median ratio of a variant's bare rounds to its reference's, by batch rows: evidence, no verdict."""
    return {
        rows: float(np.median([one / other for one, other in zip(mine, reference_ms[rows], strict=True)]))
        for rows, mine in ms.items()
    }
