"""Open-loop load from this process, pinned to the load's core, and what became of every request."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.peers.bodies import JSON
from benchmarks.peers.processes import LOAD_CORE
from tailcut.common.statistics import percentile
from tailcut.load import LoadPlan, Samples, measure

CLIENT_TIMEOUT_S = 2.0
BURST_S = 0.25
_REFUSED = (429, 503)


def pin() -> None:
    """Keep this process off the servers' core."""
    os.sched_setaffinity(0, {LOAD_CORE})


def write_bodies(path: Path, body: bytes) -> Path:
    """Write the file of request bodies: one, again and again."""
    path.write_bytes(body + b"\n")
    return path


def write_bursts(path: Path, mean_rate: float, seconds: float, seed: int) -> Path:
    """Write send times of Poisson arrivals at twice the mean for 0.25 s, then none for 0.25 s, over and over."""
    draw = np.random.default_rng(seed)
    busy_s = seconds / 2
    busy = np.sort(draw.uniform(0.0, busy_s, draw.poisson(2 * mean_rate * busy_s)))
    times = busy + np.floor(busy / BURST_S) * BURST_S
    path.write_text("\n".join(f"{time:.6f}" for time in times))
    return path


def run(
    url: str, bodies: Path, *, seconds: float, warmup_s: float, seed: int, rate: float | None = None, trace: str = ""
) -> Samples:
    """Send load and return every sample.

    Args:
        rate: of Poisson arrivals; None where ``trace`` says the times.
    """
    plan = LoadPlan(
        url=url,
        rate=rate,
        trace=trace,
        duration_s=seconds,
        warmup_s=warmup_s,
        payloads=str(bodies),
        headers=tuple(JSON.items()),
        timeout_s=CLIENT_TIMEOUT_S,
        connections=2048,
        seed=seed,
    )
    return measure(plan)[0]


def ideals_within(samples: Samples, *, capacity_rps: float, limit_ms: float) -> tuple[float, float]:
    """Return the shares within the limit of two servers that do nothing but the model.

    Each takes 1 / capacity for every request. The first answers all, first come, first served; the second turns away
    at the door who would be late, which nobody can do better who does not know what is still to come.
    """
    intended_s = samples.intended_ns / 1e9
    took_s, all_free_s, best_free_s = 1 / capacity_rps, 0.0, 0.0
    in_time = np.zeros((2, intended_s.size), dtype=bool)
    for place, arrived_s in enumerate(intended_s):
        all_free_s = max(all_free_s, arrived_s) + took_s
        in_time[0, place] = (all_free_s - arrived_s) * 1000 <= limit_ms
        best_end_s = max(best_free_s, arrived_s) + took_s
        if (best_end_s - arrived_s) * 1000 <= limit_ms:
            in_time[1, place], best_free_s = True, best_end_s
    window = samples.intended_ns >= samples.measured_from_ns
    first, best = in_time[:, window].mean(axis=1)
    return float(first), float(best)


def figures(samples: Samples, *, seconds: float, limit_ms: float, deadline_ms: float) -> dict[str, Any]:
    """Return what became of the requests of the window.

    Returns:
        requests; within_limit, refused (429 and 503) and failed as shares of them; good_rps, answers per second within
        the deadline; missed, the share of accepted requests that were not answered by it; p50_ms and p99_ms of
        answers; refused_p99_ms; lag_p99_ms, how late the generator was.
    """
    window = samples.intended_ns >= samples.measured_from_ns
    status = samples.status[window]
    took_ms: npt.NDArray[np.float64] = (samples.done_ns - samples.intended_ns)[window] / 1e6
    lag_ms = (samples.sent_ns - samples.intended_ns)[window & (samples.sent_ns >= 0)] / 1e6
    answered = (status >= 200) & (status < 300)
    refused = np.isin(status, _REFUSED)
    good = answered & (took_ms <= deadline_ms)
    accepted = int((~refused).sum())
    count = max(int(status.size), 1)
    return {
        "requests": int(status.size),
        "within_limit": float((answered & (took_ms <= limit_ms)).sum() / count),
        "refused": float(refused.sum() / count),
        "failed": float((~answered & ~refused).sum() / count),
        "good_rps": float(good.sum() / seconds),
        "missed": float((accepted - good.sum()) / accepted) if accepted else 0.0,
        "p50_ms": _at(took_ms[answered], 0.5),
        "p99_ms": _at(took_ms[answered], 0.99),
        "refused_p99_ms": _at(took_ms[refused], 0.99),
        "lag_p99_ms": _at(lag_ms, 0.99),
        "statuses": json.loads(json.dumps({str(code): int((status == code).sum()) for code in np.unique(status)})),
    }


def _at(values: npt.NDArray[np.float64], share: float) -> float | None:
    return percentile(values, share) if values.size else None
