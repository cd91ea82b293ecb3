"""Verdicts on speed under load, cost and choice: pure decisions over measured rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from tailcut.core.gate.distributions import student_quantile
from tailcut.core.slo import LatencyObjective

CONFIDENCE = 0.95
"""One-sided, of "faster" and of "meets the SLO"."""

_LARGEST_LOG = 700.0
"""Above it exp() overflows."""


class SpeedVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """One variant against the one that it was made from, under load.

    Attributes:
        reference: name of that variant.
        percentile: at which they were compared, such as "p95".
        latency_ms: geometric mean over rounds, with a 90 % interval.
        ratio: variant over reference, geometric mean of the rounds' ratios, with a 90 % interval: its upper end under
            1 is faster with 95 % confidence.
        faster: whether it is.
        meets_slo: whether the upper end of ``latency_ms`` and the share of errors are within the SLO.
        errors: share of requests without an answer.
    """

    reference: str
    percentile: str
    latency_ms: tuple[float, float, float]
    ratio: tuple[float, float, float]
    faster: bool
    meets_slo: bool
    errors: float


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Of a million requests at the SLO's rate: CPU seconds (mean, lowest and highest round), GPU seconds and money.

    ``gpu_s`` is None where the variant runs on no GPU. ``rounds_cpu_s`` are the CPU seconds of each round.
    """

    cpu_s: tuple[float, float, float]
    rounds_cpu_s: tuple[float, ...] = ()
    gpu_s: float | None = None
    money: float = 0.0
    currency: str = ""


def speed(
    reference: str,
    latency_ms: Sequence[float],
    reference_ms: Sequence[float],
    errors: Sequence[float],
    slo: LatencyObjective,
    errors_allowed: float,
) -> SpeedVerdict:
    """Judge a variant's rounds against the reference's of the same rounds.

    A round is one observation, because the latencies within one hang together. Intervals are Student's, of the mean
    of logarithms: a percentile bootstrap over so few rounds is too narrow (of equal variants it called 9 % faster at 7
    rounds and 18 % at 3, where 5 % was promised; see tests/simulation).

    Args:
        latency_ms: at the SLO's percentile, one per round.
        reference_ms: the same of the reference.
        errors: share without an answer, one per round.
        errors_allowed: the SLO's.
    """
    latency = _geometric(latency_ms)
    ratio = _geometric([mine / other for mine, other in zip(latency_ms, reference_ms, strict=True)])
    failed = float(np.mean(errors))
    return SpeedVerdict(
        reference=reference,
        percentile=slo.name,
        latency_ms=latency,
        ratio=ratio,
        faster=ratio[2] < 1.0,
        meets_slo=latency[2] <= slo.limit_s * 1e3 and failed <= errors_allowed,
        errors=failed,
    )


def _geometric(values: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean with its two-sided interval of ``2 * CONFIDENCE - 1``; one round tells nothing of its spread."""
    logs = np.log(np.asarray(values, dtype=np.float64))
    mean, count = float(logs.mean()), len(logs)
    if count == 1:
        return math.exp(mean), 0.0, math.inf
    beside = student_quantile(CONFIDENCE, count - 1) * float(logs.std(ddof=1)) / math.sqrt(count)
    return math.exp(mean), math.exp(mean - beside), math.exp(min(mean + beside, _LARGEST_LOG))


def speed_refusal(verdict: SpeedVerdict) -> str:
    """Say why a variant is not faster than the one it was made from; empty where it is."""
    if verdict.faster:
        return ""
    ratio, low, high = verdict.ratio
    seems = ratio < 1.0
    return (
        f"not faster here{' beyond doubt' if seems else ''}: {verdict.percentile} {verdict.latency_ms[0]:.3g} ms under "
        f"load, {ratio:.2f} of {verdict.reference} (90 % interval {low:.2f}-{high:.2f})"
        f"{'; more or longer rounds may show it (build.rounds, build.round)' if seems else ''}"
    )


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
        rounds_cpu_s=tuple(cpu_s),
        gpu_s=gpu_s,
        money=(mean_s * core_hour + (gpu_s or 0.0) * gpu_hour) / 3600.0,
        currency=currency if core_hour or gpu_hour else "",
    )


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What is promoted and why."""

    variant: str
    why: str
    meets_slo: bool


def choose(
    verdicts: Mapping[str, SpeedVerdict],
    costs: Mapping[str, Cost],
    refused: Mapping[str, str],
    slo: LatencyObjective,
    rate: float,
) -> Choice | None:
    """Name the cheapest variant that passed and meets the SLO; where none meets it, the fastest that passed.

    Where the rounds cannot tell whether another one is dearer than the cheapest, the fastest of them is chosen.

    Args:
        verdicts, costs: of every variant that was measured, the source included.
        refused: why a variant may not be promoted; empty where it may.

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
        return Choice(variant=best, why=f"the fastest that passed; none meets {limit}", meets_slo=False)
    cheapest = min(within, key=lambda name: (costs[name].money, costs[name].cpu_s[0]))
    alike = [name for name in within if name == cheapest or not _dearer(costs[name], costs[cheapest])]
    best = min(alike, key=lambda name: verdicts[name].latency_ms[0])
    why = f"the cheapest that passed and meets {limit}"
    if len(alike) > 1:
        why = f"the fastest of {', '.join(alike)}, which passed, meet {limit} and cost the least, alike in these rounds"
    return Choice(variant=best, why=why, meets_slo=True)


def _dearer(one: Cost, cheapest: Cost) -> bool:
    """Tell whether a variant costs more than the cheapest, with ``CONFIDENCE`` by the rounds' ratios of CPU time."""
    rounds = list(zip(one.rounds_cpu_s, cheapest.rounds_cpu_s, strict=False))
    if one.gpu_s is not None or cheapest.gpu_s is not None or len(rounds) < 2:
        return True
    return _geometric([mine / other for mine, other in rounds])[1] > 1.0


# -- The bare race ---------------------------------------------------------------------------------------------------


def ratios(ms: Mapping[str, Sequence[float]], reference_ms: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Median ratio of a variant's bare rounds to its reference's, by batch rows: evidence, no verdict."""
    return {
        rows: float(np.median([one / other for one, other in zip(mine, reference_ms[rows], strict=True)]))
        for rows, mine in ms.items()
    }
