"""Start the server of a rung, and measure it at a rate or search its capacity."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tailcut.common.slo import Objectives
from tailcut.ladder.options import LadderOptions, warmup_of
from tailcut.ladder.places import FileNames
from tailcut.load import LoadPlan, LoadResult, SearchLimits, find_capacity, measure, save_samples, summarise_run
from tailcut.load.machine import Cores
from tailcut.load.payloads import bodies
from tailcut.load.serve_command import serve_command
from tailcut.load.server_process import ServerProcess, free_port
from tailcut.load.text import render_step
from tailcut.manifest.subject import CommandSubject
from tailcut.report.ladder.file import Capacity, Measurement, RungRecord


class Bench:
    """Where rungs are put to be measured."""

    def __init__(
        self,
        subject: CommandSubject,
        options: LadderOptions,
        environment: Mapping[str, str],
        cores: Cores,
        slo: Objectives,
    ) -> None:
        self._subject = subject
        self._manifest = subject.manifest
        self._options = options
        self._environment = environment
        self._cores = cores
        self._slo = slo
        self._starts = 0
        self._file_names = FileNames()

    @contextmanager
    def server(self, rung: RungRecord) -> Iterator[ServerProcess]:
        """Start a rung's server and hand it out once it has answered one request of the traffic.

        Raises:
            StartError: it does not come up, or does not answer the traffic.
        """
        port = free_port()
        rung.command = self._command(rung, port)
        self._starts += 1
        log = self._options.out / "logs" / f"{self._starts:03d}-{self._file_names.of(rung.name)}.log"
        process = ServerProcess(
            rung.command,
            port,
            log,
            environment=self._environment,
            directory=self._manifest.directory,
            core=self._cores.server,
        )
        with process:
            ready = ("/", ()) if rung.pilot else ("/v2/health/ready", (200,))
            process.wait_until_ready(ready[0], timeout_s=self._options.ready_s, ok=ready[1])
            first = next(bodies(self._plan(process, pilot=rung.pilot)))
            process.try_one(first.path or self._request_path(rung.pilot), first.content, timeout_s=30.0)
            yield process

    def measure(
        self, server: ServerProcess, rung: RungRecord, name: str, rate: float, round_index: int, *, sent: int
    ) -> Measurement:
        """Measure one rung at one rate. The traffic depends on the round only: all rungs get the same.

        Args:
            server: where it runs.
            rung: which one.
            name: of the rate.
            rate: requests per second.
            round_index: from 0.
            sent: requests of this round's traffic that the server has had already; this run goes on from there.
        """
        options = self._options
        plan = msgspec.structs.replace(
            self._plan(server, pilot=rung.pilot),
            rate=rate,
            duration_s=options.duration_s,
            warmup_s=warmup_of(options, sent),
            seed=options.seed + round_index,
            payload_offset=sent,
        )
        samples, facts = measure(plan)
        raw = Path("raw") / f"{self._file_names.of(rung.name)}-{name}-{round_index + 1}.npz"
        save_samples(samples, options.out / raw)
        return _measurement(summarise_run(plan, samples, facts), name, rate, round_index, str(raw))

    def search(
        self, server: ServerProcess, rung: RungRecord, start_rate: float, tell: Callable[[str], None]
    ) -> Capacity:
        """Search the highest rate of a rung within the SLO."""
        found = find_capacity(
            self.search_plan(server, pilot=rung.pilot),
            self._slo,
            start_rate=start_rate,
            on_step=lambda step: tell(f"{rung.name}: {render_step(step)}"),
            limits=self.search_limits(),
        )
        return msgspec.convert(found, Capacity, from_attributes=True)

    def search_plan(self, server: ServerProcess, *, pilot: bool) -> LoadPlan:
        """The plan of one step of a search."""
        options = self._options
        return msgspec.structs.replace(
            self._plan(server, pilot=pilot),
            duration_s=options.step_s,
            warmup_s=options.step_warmup_s,
        )

    def search_limits(self) -> SearchLimits:
        """When a search ends."""
        options = self._options
        return SearchLimits(tolerance=options.tolerance, max_rate=options.max_rate, max_total_s=options.search_s)

    def url(self, server: ServerProcess, *, pilot: bool) -> str:
        """Where the traffic goes."""
        return f"http://127.0.0.1:{server.port}{self._request_path(pilot)}"

    def _plan(self, server: ServerProcess, *, pilot: bool) -> LoadPlan:
        deployment = self._manifest.deployment
        return LoadPlan(
            url=self.url(server, pilot=pilot),
            payloads=deployment.ladder.traffic,
            timeout_s=float(deployment.slo.timeout_s),
            slo=self._slo,
            pid=server.pid,
            seed=self._options.seed,
        )

    def _request_path(self, pilot: bool) -> str:
        deployment = self._manifest.deployment
        return deployment.ladder.pilot_path if pilot else f"/predict/{deployment.name}"

    def _command(self, rung: RungRecord, port: int) -> tuple[str, ...]:
        if rung.pilot:
            words = self._manifest.deployment.ladder.pilot
            return tuple(word.replace("{port}", str(port)).replace("{python}", sys.executable) for word in words)
        return tuple(serve_command(self._subject, port, settings=rung.settings))


def _measurement(result: LoadResult, name: str, rate: float, round_index: int, raw: str) -> Measurement:
    return Measurement(
        round=round_index + 1,
        rate_name=name,
        rate=rate,
        requests=result.requests,
        answered=result.answered,
        sheds=result.sheds,
        errors=result.errors,
        offered_rps=result.offered_rps,
        throughput_rps=result.throughput_rps,
        goodput_rps=result.goodput_rps,
        latency_ms=result.latency_ms,
        lag_ms=result.lag_ms,
        stages_ms={stage: shape.mean for stage, shape in result.stages_ms.items()},
        cache=result.cache,
        cache_total_ms=result.cache_total_ms,
        cpu_s_per_1000=result.cpu_s_per_1000,
        warnings=result.warnings,
        raw=raw,
    )
