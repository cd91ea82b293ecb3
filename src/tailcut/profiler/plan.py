"""What of an application is to be recorded, and under which load."""

from __future__ import annotations

from math import inf

import msgspec

from tailcut.common.slo import Objectives, samples_needed
from tailcut.errors import ProfileError
from tailcut.load import LoadPlan
from tailcut.load.payloads import build_requests
from tailcut.load.plan import check_plan, parse_url
from tailcut.profiler.child_channel import Loop
from tailcut.profiler.diagnosis import check_target

_CHECKED = 1000
MAX_REQUESTS = 1000
"""Of a recording, all of which are traced: more than twice what a p95 needs."""
SAMPLE_S = 6.0
"""For how long stacks are looked at: the whole profile has 45 s."""


class PilotPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is recorded.

    Args:
        target: "module:attribute", or "module:function()" for one that makes the application.
        payloads: as of ``LoadPlan``: a .jsonl file, or ``module:callable`` of (seed); empty: requests without a body.
        path: where requests go; empty: the only route that takes the method.
        method: HTTP method; empty: POST with payloads, GET without.
        headers: (name, value) pairs sent with each request.
        rate: requests per second, Poisson arrivals.
        duration_s, warmup_s: seconds recorded (``recorded_s``), and seconds before them that are not.
        timeout_s: a request that took longer is given up.
        directory: the folder that the application is imported from and runs in.
        environment: variables added to the child's.
        loop: of the application; "auto" is the one that uvicorn takes: uvloop where it is installed.
        ready_s: longest wait for the application's start.
        sample_s: for how long stacks are looked at, at most: in a run of its own, under the same load, because looking
            takes of the cores that answer, and must not be in what is recorded.
        max_requests: the recording stops after so many (``max_requests_for``).
        layers: whether the layers of its models are timed in the end.
        seed: of arrivals and payloads.
    """

    target: str
    payloads: str = ""
    path: str = ""
    method: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    rate: float = 50.0
    duration_s: float = 20.0
    warmup_s: float = 2.0
    timeout_s: float = 10.0
    directory: str = "."
    environment: dict[str, str] = {}
    loop: Loop = "auto"
    ready_s: float = 60.0
    sample_s: float = SAMPLE_S
    max_requests: int = MAX_REQUESTS
    layers: bool = True
    seed: int = 0

    @property
    def recorded_s(self) -> float:
        """Seconds recorded: ``duration_s``, or sooner all that ``max_requests`` take."""
        return min(self.duration_s, self.max_requests / self.rate)


def max_requests_for(slo: Objectives | None) -> int:
    """Say how many requests to record at most, so that each percentile of an SLO rests on enough of them."""
    return max([MAX_REQUESTS, *(samples_needed(one.share) for one in (slo.latency if slo is not None else ()))])


def check_pilot(plan: PilotPlan) -> None:
    """Refuse what makes no sense before anything is started.

    Raises:
        ProfileError: a target that is none, or a number that is not positive.
        LoadTestError: payloads that cannot be read or are not JSON.
    """
    check_target(plan.target)
    for name, value in (
        ("rate", plan.rate), ("duration", plan.duration_s), ("sampling time", plan.sample_s),
    ):  # fmt: skip
        if not 0 < value < inf:
            raise ProfileError(f"the {name} is {value:g}", hint="give a finite number above 0")
    load = LoadPlan(
        url="http://127.0.0.1:1/", rate=plan.rate, payloads=plan.payloads, method=plan.method, headers=plan.headers,
        timeout_s=plan.timeout_s, seed=plan.seed,
    )  # fmt: skip
    check_plan(load)
    # Before anything is started: what cannot be read or is not JSON.
    build_requests(load, parse_url(load.url), min(_CHECKED, int(plan.rate * (plan.warmup_s + plan.duration_s)) + 1))
