"""What a run found: derived from its raw samples and nothing else."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tailcut.common.redaction import LEFT_OUT, without_secrets
from tailcut.common.slo import SloFinding
from tailcut.common.statistics import Percentiles
from tailcut.load.plan import LoadPlan
from tailcut.system.atomic_files import write_file


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run knows beside its samples.

    Args:
        started_at: UTC, ISO 8601.
        window_s: seconds measured.
        cpu_s: CPU seconds of the server's processes in the window; None without a pid.
        generator_cpu_share: CPU of this process over wall time; near 1 the generator is the limit.
        sent_again: requests that went out twice, as the connection of the first time ended at once; warm-up included.
        bodies: first body of each failing status.
        stopped: why the run was ended early; empty when it was not.
    """

    started_at: str = ""
    window_s: float = 0.0
    cpu_s: float | None = None
    generator_cpu_share: float = 0.0
    connections_opened: int = 0
    sent_again: int = 0
    delayed_by_cap: int = 0
    max_outstanding: int = 0
    bodies: dict[str, str] = {}
    stopped: str = ""


class LoadResult(RunOutcome, frozen=True, kw_only=True):
    """The outcome of one run. All counts and times leave the warm-up out.

    Args:
        plan: what was asked for.
        requests: requests intended in the window; each one is in exactly one of answered, sheds and errors.
        answered: replies with a 2xx status.
        sheds: replies 429 and 503: the server refused, for want of capacity or of something that it needs.
        errors: other requests by kind: connect, eof, timeout, protocol, status_4xx, ..., aborted.
        statuses: replies by HTTP status.
        offered_rps: requests per second that were meant to be sent.
        throughput_rps: answers per second that arrived within the window.
        goodput_rps: of them, those within the loosest latency objective (all of them without one).
        replied_rps: replies of any status per second that arrived within the window.
        latency_ms: from the intended send time to the last byte; 2xx answers, and requests given up at their time-out.
            Quick failures are left out, so that refusing fast does not look like answering fast.
        lag_ms: from the intended to the actual send time: the generator's own lateness, and waits for a connection.
        stages_ms: per stage of Server-Timing.
        cache: answers by X-Tailcut-Cache.
        cache_total_ms: per cache outcome, the server's own total.
        cpu_s_per_1000: CPU seconds of the server's processes per 1,000 replies.
        findings: each objective and what was seen, over all requests but those refused as wrong (400, 404, 413, 422):
            one that was not answered is within no limit.
        warnings: what makes the figures weaker than they look.
    """

    plan: LoadPlan
    requests: int
    answered: int
    sheds: int
    errors: dict[str, int]
    statuses: dict[str, int]
    offered_rps: float
    throughput_rps: float
    goodput_rps: float
    replied_rps: float
    latency_ms: Percentiles | None
    lag_ms: Percentiles | None
    stages_ms: dict[str, Percentiles] = {}
    cache: dict[str, int] = {}
    cache_total_ms: dict[str, Percentiles] = {}
    cpu_s_per_1000: float | None = None
    findings: tuple[SloFinding, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def met(self) -> bool:
        """Whether every objective was met."""
        return not self.stopped and all(finding.met for finding in self.findings)

    @property
    def failed(self) -> int:
        """Requests without a 2xx answer, sheds included."""
        return self.requests - self.answered

    @property
    def first_miss(self) -> str:
        """The first objective that was missed, in words; empty where all were met."""
        return self.stopped or next((str(finding) for finding in self.findings if not finding.met), "")


def save_result(result: msgspec.Struct, path: Path) -> None:
    """Write the result of a run, or of a capacity search, as JSON; headers' values and the URL's query are left out.

    Raises:
        LoadTestError: the file cannot be written.
    """
    if isinstance(result, LoadResult):  # such files are kept and passed on
        headers = tuple((name, LEFT_OUT) for name, _ in result.plan.headers)
        plan = msgspec.structs.replace(result.plan, headers=headers, url=without_secrets(result.plan.url))
        result = msgspec.structs.replace(result, plan=plan)
    write_file(path, msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
