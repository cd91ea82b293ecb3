"""What profiling itself cost, as it was measured: of all requests, and of those that were traced."""

from __future__ import annotations

import msgspec


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of a run, from the intended send time to the last byte, and of CPU per request (0: not known)."""

    requests: int
    p50_ms: float
    p95_ms: float
    cpu_ms: float = 0.0


class Added(msgspec.Struct, frozen=True):
    """How much longer requests took with profiling, and the interval that this lies in with 95 % confidence.

    Args:
        share: of what they took without it.
        between: the same, lower and upper limit.
    """

    share: float
    between: tuple[float, float]


class Everyone(msgspec.Struct, frozen=True, kw_only=True):
    """What profiling cost all requests, where only some were traced.

    Args:
        one_in: of so many requests one was traced.
        p50, p95: near the median and near the p95 of all.
    """

    one_in: int
    p50: Added
    p95: Added


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """What profiling itself costs: the same load on the same application, without and with it, in turns.

    Args:
        rate: requests per second of these runs.
        rounds: (plain, profiled) one after the other; latencies are those of the traced requests.
        p50_share, p95_share: how much longer traced requests took with profiling, as a share of without: the median of
            those that are near the percentile on both sides together, of all rounds.
        p50_range, p95_range: where these shares lie in 95 of 100 such measurements; None: not known.
        note: what makes the figures weaker than they look.
        processes: how many of each kind took turns.
        everyone: what it cost all requests; None where all were traced, or where it was not measured.
    """

    rate: float
    rounds: tuple[tuple[Latencies, Latencies], ...]
    p50_share: float
    p95_share: float
    note: str = ""
    p50_range: tuple[float, float] | None = None
    p95_range: tuple[float, float] | None = None
    processes: int = 1
    everyone: Everyone | None = None
