"""A run's figures as text for people."""

from __future__ import annotations

from tailcut.common.statistics import Percentiles
from tailcut.load.capacity import CapacityResult, CapacityStep
from tailcut.load.plan import LoadPlan
from tailcut.load.result import LoadResult
from tailcut.load.summary import SHED_STATUSES

_COLUMNS = ("p50", "p90", "p95", "p99", "p99.9", "max")


def render_result(result: LoadResult) -> str:
    """Lay a result out in lines of at most 120 characters, readable without colour."""
    plan = result.plan
    lines = [
        f"{plan.http_method} {plan.url}",
        f"{result.requests} requests in {result.window_s:.1f} s ({_arrivals(plan)}, seed {plan.seed},"
        f" {plan.warmup_s:g} s warm-up left out)",
        "",
        _row("ms from the intended send time", _COLUMNS),
        _shape("  latency", result.latency_ms),
        _shape("  send lag", result.lag_ms),
    ]
    lines += [_shape(f"  {name} (server)", shape) for name, shape in result.stages_ms.items()]
    lines += [_shape(f"  total (server), cache {name}", shape) for name, shape in result.cache_total_ms.items()]
    lines += [
        "",
        f"offered {result.offered_rps:.1f}/s   throughput {result.throughput_rps:.1f}/s"
        f"   goodput {result.goodput_rps:.1f}/s",
        f"answered {result.answered}   refused {_counts(_refused(result))}   errors {_counts(result.errors)}",
        f"connections {result.connections_opened}   most outstanding {result.max_outstanding}",
    ]
    if result.cache:
        lines.append(f"cache {_counts(result.cache)}")
    if result.cpu_s is not None:
        per = "" if result.cpu_s_per_1000 is None else f"   {result.cpu_s_per_1000:.3f} s per 1,000 replies"
        lines.append(f"server CPU {result.cpu_s:.2f} s{per}")
    lines += [f"first {status} body: {body}" for status, body in result.bodies.items()]
    lines += [f"warning: {warning}" for warning in result.warnings]
    if result.stopped:
        lines.append(f"stopped early: {result.stopped}")
    lines += [f"SLO {finding}" for finding in result.findings]
    return "\n".join(lines)


def _refused(result: LoadResult) -> dict[str, int]:
    return {str(status): count for status in SHED_STATUSES if (count := result.statuses.get(str(status), 0))}


def _arrivals(plan: LoadPlan) -> str:
    if not plan.trace:
        return f"{plan.arrivals} arrivals"
    return f"arrivals of {plan.trace}" + (f" at {plan.speed:g} times their speed" if plan.speed != 1 else "")


def render_step(step: CapacityStep) -> str:
    """Lay one step of a capacity search out in a line."""
    p95 = "-" if step.p95_ms is None else f"{step.p95_ms:.2f} ms"
    verdict = "pass" if step.passed else f"MISS: {step.cause}"
    early = ", stopped early" if step.stopped_early else ""
    again = " (again)" if step.confirming else ""
    return f"{step.rate:9.1f}/s{again}  p95 {p95}  answered {step.throughput_rps:.1f}/s  {verdict}{early}"


def render_capacity(result: CapacityResult) -> str:
    """Lay the outcome of a capacity search out in lines."""
    if result.rate == 0:
        lines = [f"no rate meets {result.objectives}"]
    else:
        state = "passed twice" if result.confirmed else "passed once, not repeated"
        lines = [f"capacity within {result.objectives}: {result.rate:.1f} req/s ({state})"]
    if result.limit:
        lines.append(f"limited by {result.limit}")
    elif result.rate and result.complete:
        lines.append("every tried rate passed: the server may do more")
    if not result.complete:
        lines.append("the search ran out of time (--max-search): a higher rate may pass")
    if result.generator_limited:
        lines.append("the generator was at its limit in a missed step: the server may do more")
    return "\n".join(lines)


def _row(name: str, cells: tuple[str, ...]) -> str:
    return f"{name:<38}" + "".join(f"{cell:>11}" for cell in cells)


def _shape(name: str, shape: Percentiles | None) -> str:
    if shape is None:
        return _row(name, ("-",) * len(_COLUMNS))
    values = (shape.p50, shape.p90, shape.p95, shape.p99, shape.p999, shape.max)
    return _row(name, tuple(f"{value:.3f}" for value in values))


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"
