"""Raw samples -> LoadResult. Pure: the same samples always give the same figures."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from tailcut.common.slo import CLIENT_STATUSES, Objectives, SloFinding, judge, samples_needed
from tailcut.common.statistics import Percentiles, percentile, summarise
from tailcut.load.plan import LoadPlan
from tailcut.load.recorder import LoadFailure
from tailcut.load.result import LoadResult, RunOutcome
from tailcut.load.samples import Samples

SHED_STATUSES = (429, 503)


class RunFacts(RunOutcome, frozen=True, kw_only=True):
    """What a run knows. ``start_ns``: of the monotonic clock, what the samples' times count from."""

    start_ns: int = 0


def summarise_run(plan: LoadPlan, samples: Samples, facts: RunFacts) -> LoadResult:
    """Work out every figure of a run.

    Args:
        plan: what was asked for.
        samples: raw samples, warm-up included.
        facts: what was seen beside them.
    """
    # A run that was stopped early has requests that were never due: they belong to no figure.
    measured = (samples.intended_ns >= samples.measured_from_ns) & (samples.status != 0)
    status = samples.status[measured]
    took_ms = (samples.done_ns - samples.intended_ns)[measured] / 1e6
    answered = (status >= 200) & (status < 300)
    lag_ms = summarise((samples.sent_ns - samples.intended_ns)[measured & (samples.sent_ns >= 0)] / 1e6)
    latency_ms = summarise(took_ms[answered | (status == LoadFailure.TIMEOUT)])
    requests, replies = int(status.size), int((status > 0).sum())
    stages_ms, cache, cache_total_ms = _server_side(samples, measured, answered)
    return LoadResult(
        **{name: getattr(facts, name) for name in RunOutcome.__struct_fields__},
        plan=plan,
        requests=requests,
        answered=int(answered.sum()),
        sheds=int(np.isin(status, SHED_STATUSES).sum()),
        errors=_errors(status),
        statuses={str(code): count for code, count in sorted(Counter(status[status > 0].tolist()).items())},
        offered_rps=requests / facts.window_s,
        throughput_rps=_answers_in_window(samples, facts.window_s, None) / facts.window_s,
        goodput_rps=_answers_in_window(samples, facts.window_s, plan.slo.loosest_ns) / facts.window_s,
        replied_rps=_inside(samples, facts.window_s, samples.status > 0) / facts.window_s,
        latency_ms=latency_ms,
        lag_ms=lag_ms,
        stages_ms=stages_ms,
        cache=cache,
        cache_total_ms=cache_total_ms,
        cpu_s_per_1000=facts.cpu_s / replies * 1000 if facts.cpu_s is not None and replies else None,
        findings=_findings(plan.slo, status, took_ms, answered),
        warnings=(*_about_failures(plan, status, answered), *_warnings(plan, facts, latency_ms, lag_ms)),
    )


def _answers_in_window(samples: Samples, window_s: float, limit_ns: int | None) -> int:
    good = (samples.status >= 200) & (samples.status < 300)
    if limit_ns is not None:
        good &= samples.done_ns - samples.intended_ns <= limit_ns
    return _inside(samples, window_s, good)


def _inside(samples: Samples, window_s: float, chosen: npt.NDArray[np.bool_]) -> int:
    """Count those of the chosen requests whose replies arrived within the window."""
    start_ns = samples.measured_from_ns
    inside = (samples.done_ns >= start_ns) & (samples.done_ns < start_ns + int(window_s * 1e9))
    return int((inside & chosen).sum())


def _errors(status: npt.NDArray[np.int16]) -> dict[str, int]:
    errors = {kind.name.lower(): int((status == kind).sum()) for kind in LoadFailure}
    failing = status[(status > 0) & ~((status >= 200) & (status < 300)) & ~np.isin(status, SHED_STATUSES)]
    for family, count in sorted(Counter((failing // 100).tolist()).items()):
        errors[f"status_{family}xx"] = count
    return {kind: count for kind, count in errors.items() if count}


def _findings(
    slo: Objectives,
    status: npt.NDArray[np.int16],
    took_ms: npt.NDArray[np.float64],
    answered: npt.NDArray[np.bool_],
) -> tuple[SloFinding, ...]:
    """Judge all requests but those that were themselves wrong."""
    judged = ~np.isin(status, list(CLIENT_STATUSES))
    seen_ms = percentiles_of_all(slo, took_ms[judged], answered[judged])
    return judge(slo, seen_ms, int((judged & ~answered).sum()), int(judged.sum()))


def percentiles_of_all(
    slo: Objectives, took_ms: npt.NDArray[np.float64], answered: npt.NDArray[np.bool_]
) -> dict[str, float | None]:
    """Find the percentiles that objectives are about; None where one falls on a request that was not answered."""
    if not took_ms.size:
        return {one.name: None for one in slo.latency}
    waited_ms = np.where(answered, took_ms, np.inf)
    found = {one.name: percentile(waited_ms, one.share) for one in slo.latency}
    return {name: value if np.isfinite(value) else None for name, value in found.items()}


def _server_side(
    samples: Samples, measured: npt.NDArray[np.bool_], answered: npt.NDArray[np.bool_]
) -> tuple[dict[str, Percentiles], dict[str, int], dict[str, Percentiles]]:
    # A stage that a reply does not name took no time there: 0, so that the stages' means add up to the total's.
    columns = {name: column[measured][answered] for name, column in samples.stages_ms.items()}
    timed = np.zeros(int(answered.sum()), dtype=bool)
    for column in columns.values():
        timed |= ~np.isnan(column)
    stages = {name: summarise(np.nan_to_num(column[timed])) for name, column in columns.items()}
    codes = samples.cache[measured][answered]
    outcomes = {name: codes == code for code, name in enumerate(samples.cache_names) if name}
    total = columns.get("total", np.full(codes.size, np.nan))
    totals = {name: summarise(total[chosen & ~np.isnan(total)]) for name, chosen in outcomes.items()}
    return (
        {name: shape for name, shape in stages.items() if shape},
        {name: int(chosen.sum()) for name, chosen in outcomes.items() if chosen.any()},
        {name: shape for name, shape in totals.items() if shape},
    )


def _about_failures(plan: LoadPlan, status: npt.NDArray[np.int16], answered: npt.NDArray[np.bool_]) -> tuple[str, ...]:
    if answered.all():
        return ()
    if not plan.slo.latency and plan.slo.errors is None:
        return (f"{1 - answered.mean():.1%} of the requests failed, but nothing is judged: give --slo",)
    wrong = np.isin(status, list(CLIENT_STATUSES)).mean()
    if not wrong:
        return ()
    return (
        f"{wrong:.1%} of the requests were refused as wrong (400, 404, 413, 422): client errors count for no "
        "objective, and reduce the measured load; send valid bodies",
    )


def _warnings(
    plan: LoadPlan, facts: RunFacts, latency_ms: Percentiles | None, lag_ms: Percentiles | None
) -> tuple[str, ...]:
    found: list[str] = []
    if lag_ms is not None and latency_ms is not None and lag_ms.p99 > min(1.0, 0.1 * latency_ms.p50):
        limit = "1 ms" if lag_ms.p99 > 1.0 else "10 % of the median latency"
        found.append(
            f"requests left late: p99 send lag {lag_ms.p99:.2f} ms is above {limit}; the latencies include this delay "
            "of the generator (give it its own core)"
        )
    if facts.delayed_by_cap:
        found.append(
            f"{facts.delayed_by_cap} requests waited for one of {plan.connections} connections (--connections)"
        )
    if facts.sent_again:
        found.append(
            f"{facts.sent_again} requests were sent twice because the server closed their connection without a reply: "
            "it restarts or crashes, closes idle connections early, or closes one after an exception (as uvicorn does)"
        )
    if plan.pid and facts.cpu_s is None:
        found.append(f"process {plan.pid} ended before the run, or the run ended in its warm-up: no CPU figure")
    if facts.generator_cpu_share > 0.9:
        found.append(
            f"the generator used {facts.generator_cpu_share:.0%} of a core: it may be the limit, not the server"
        )
    if latency_ms is not None:
        for share, name in ((0.95, "p95"), (0.99, "p99"), (0.999, "p99.9")):
            if latency_ms.count < samples_needed(share):
                found.append(f"{name} and above have few samples: {latency_ms.count}, better {samples_needed(share)}")
                break
    return tuple(found)
