"""The pilot's own capacity, from which the comfortable rate follows."""

from __future__ import annotations

import msgspec

from tailcut.common.slo import LatencyObjective, Objectives
from tailcut.errors import LoadTestError
from tailcut.load import CapacityResult, LoadPlan, LoadResult, SearchLimits, find_capacity, run
from tailcut.report.ladder.file import PilotFacts

TRICKLE_RPS = 8.0
COMFORTABLE_SHARE = 0.7
QUEUE_FACTOR = 4.0
"""The queue counts as growing where p95 is above this many times the unloaded one."""
_TRICKLE_S = 5.0


def measure_pilot(plan: LoadPlan, slo: Objectives, limits: SearchLimits) -> PilotFacts:
    """Find how much the pilot takes before its queue grows.

    The comfortable rate is 70 % of the highest rate whose queue does not grow: answers keep up with at least 98 % of
    what is offered, p95 stays within 4 times the unloaded one, and at most 1 % fail.

    Args:
        plan: traffic and step length.
        slo: the deployment's, to say whether the pilot meets it when nothing else is going on.
        limits: when the search ends.

    Raises:
        LoadTestError: the pilot answers nothing, or no rate is comfortable.
    """
    trickle = msgspec.structs.replace(
        plan,
        rate=TRICKLE_RPS,
        arrivals="constant",
        duration_s=max(plan.duration_s, _TRICKLE_S),
        warmup_s=1.0,
        timeout_s=max(plan.timeout_s, 5.0),
        slo=slo,
    )
    unloaded = run(trickle)
    if unloaded.latency_ms is None:
        raise LoadTestError(
            f"the pilot answered none of {unloaded.requests} requests at {TRICKLE_RPS:g} req/s",
            hint="see its log in the output folder",
        )
    p95_ms = unloaded.latency_ms.p95
    limit = Objectives(latency=(LatencyObjective(share=0.95, limit_s=QUEUE_FACTOR * p95_ms / 1e3),), errors=0.01)
    # Half of what it would do one request after the other: surely below its capacity, and not far.
    start = max(4.0, 0.5 * 1e3 / unloaded.latency_ms.p50)
    found = find_capacity(plan, limit, start_rate=start, judge=queue_grows, limits=limits)
    if found.rate == 0:
        raise LoadTestError(
            f"the pilot's queue grows at every rate tried: {found.limit}", hint="check whether the machine is busy"
        )
    met = all(finding.met for finding in unloaded.findings)
    return PilotFacts(
        unloaded_p95_ms=p95_ms,
        meets_slo_unloaded=met,
        saturation_rate=found.rate,
        saturation_limit=found.limit,
        comfortable_rate=round(COMFORTABLE_SHARE * found.rate, 1),
        note=describe_pilot(found, p95_ms, slo, met),
    )


def queue_grows(result: LoadResult) -> str:
    """Say why a step shows a growing queue; empty where it does not."""
    # Requests in flight at the window's edges are no backlog: at low rates they alone are more than 2 %. Nor is what
    # was answered with an error: that is judged as one.
    edge_rps = 3.0 / result.window_s
    if not result.stopped and result.replied_rps < 0.98 * result.offered_rps - edge_rps:
        return f"answers fall behind: {result.replied_rps:.1f}/s of {result.offered_rps:.1f}/s offered"
    return result.first_miss


def describe_pilot(found: CapacityResult, p95_ms: float, slo: Objectives, met: bool) -> str:
    """Put into words what was found, and how sure it is."""
    at_least = "" if found.complete and found.limit and not found.generator_limited else "at least "
    doubts = {
        "the search ran out of time": not found.complete,
        "no tried rate was too high": found.complete and not found.limit,
        "the load generator itself was late": found.generator_limited,
        "the repeat failed": not found.confirmed,
    }
    doubt = "; ".join(why for why, holds in doubts.items() if holds)
    own = (
        f"It is 70 % of the pilot's own capacity: {at_least}{found.rate:.3g} req/s without a growing queue"
        f" (p95 within {QUEUE_FACTOR:g} times the unloaded {p95_ms:.1f} ms{f'; {doubt}' if doubt else ''})."
    )
    return own if met else f"{own} It misses the SLO ({slo}) even at {TRICKLE_RPS:g} req/s."
