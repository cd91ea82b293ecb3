"""``tailcut simulate``: what a deployment would do at other rates and with other executors, without running it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import typer

from tailcut.cli.console import ExitCode, check_files, note, save_json, usage, write
from tailcut.cli.options import (
    JsonFile,
    ManifestPaths,
    ModelName,
    Seed,
    Settings,
    examples,
    load_subject,
    manifest_paths,
    numbers,
    one_of,
    seconds,
)
from tailcut.common.slo import Objectives, judge, parse_duration_s
from tailcut.errors import LoadTestError
from tailcut.load.arrivals import Kind, bursts_ns, offsets_ns, steady, trace_ns
from tailcut.load.replay import Replay, check_replay, read_arrivals
from tailcut.load.summary import percentiles_of_all
from tailcut.manifest import Batching, Deployment, Manifest, Slo
from tailcut.manifest.host import is_one_manifest
from tailcut.models.dispatch.scheduler_factory import make_target, make_window
from tailcut.registry.evidence import Tuning
from tailcut.scheduler.cost import LatencyLearner
from tailcut.scheduler.simulation import Scenario, SimulatedOutcomes, noisy
from tailcut.scheduler.simulation import simulate as simulated
from tailcut.serving.deployment_loader import find_variant

_NOISE = 0.1
"""Where nothing is known of the spread."""

_WAY_OUT = 'give --cost "1=5ms,8=12ms" (rows=duration), or run `tailcut build` here and serve one of its variants'


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "simulate",
        epilog=examples(
            (
                "tailcut simulate --rate 100,200,400 --executors 1,2,4",
                "the manifest's deployment, from the registry's evidence",
            ),
            (
                'tailcut simulate --cost "1=9ms,8=70ms" --rate 90,120 --json capacity.json',
                "without a manifest",
            ),
            ("tailcut simulate --replay requests/ --executors 1,2", "the arrivals and rows of a request log"),
        ),
    )(simulate)


def simulate(
    manifest: ManifestPaths = None,
    model: ModelName = "",
    settings: Settings = None,
    rate: Annotated[
        str,
        typer.Option(
            metavar="R,R,...",
            help="Requests per second; 0: the rate of the request log.",
            show_default="100; with --replay the log's own",
        ),
    ] = "",
    executors: Annotated[
        str,
        typer.Option(metavar="N,N,...", help="Executor counts."),
    ] = "1",
    arrivals: Annotated[
        str, typer.Option(metavar="KIND", help="poisson, constant or burst (0.25 s on, 0.25 s off).")
    ] = "poisson",
    replay: Annotated[
        str,
        typer.Option(
            metavar="LOG",
            help="Take arrival times, rows, priorities and tenants from this request log (a folder or a file). The "
            "rate of a sample is raised to that of all requests.",
        ),
    ] = "",
    duration: Annotated[str, typer.Option(help="Duration of the arrivals.")] = "30s",
    rows: Annotated[int, typer.Option(min=1, help="Rows per request.")] = 1,
    cost: Annotated[
        str,
        typer.Option(
            metavar="ROWS=TIME,...",
            help="Duration of a batch, per number of rows.",
            show_default="the registry's evidence",
        ),
    ] = "",
    noise: Annotated[
        float | None,
        typer.Option(
            min=0, max=2, help="Spread of batch durations: 0.1 is ten percent. Default: from the evidence, else 0.1."
        ),
    ] = None,
    hiccups: Annotated[float, typer.Option(min=0, max=1, help="Share of batches that take five times as long.")] = 0.0,
    request_cpu: Annotated[str, typer.Option(help="Event loop time per request.")] = "60us",
    inline: Annotated[bool, typer.Option("--inline", help="Run batches on the event loop.")] = False,
    shared_core: Annotated[
        bool, typer.Option("--shared-core", help="Let executors and event loop share one core.")
    ] = False,
    seed: Seed = 0,
    json_path: JsonFile = None,
) -> None:
    """Simulate the deployment: latencies, goodput and sheds at each rate with each number of executors.

    Uses the scheduler, admission and cost model of serving. Batch durations come from the build's evidence or --cost.
    Features, hooks and the executor's overhead are not included; the first line names what is left out. Exit code 0:
    every line meets the SLO; 1: a line misses it; 2: wrong flag.
    """
    with usage():
        check_files(json_path)
        one_of("--arrivals", arrivals, "poisson", "constant", "burst")
        loaded = _manifest(manifest, model, settings, needed=not cost)
        traffic = None
        if replay:
            of = loaded.deployment.name if loaded is not None else model
            traffic = read_traffic(replay, arrivals, rows, of)
        rates = numbers("--rate", rate or ("0" if traffic is not None else "100"))
        counts = [int(one) for one in numbers("--executors", executors, least=1, whole=True)]
        given = _costs(cost)
        if traffic is None and 0 in rates:
            raise LoadTestError(
                f"--rate is 0, but {arrivals} arrivals need a rate", hint="give a rate above 0, or --replay"
            )
        slo = loaded.deployment.slo if loaded is not None else Slo()
        batching = loaded.deployment.batching if loaded is not None else Batching()
        known = known_cost(loaded, given)
        if rows > batching.max_queue_rows:
            raise LoadTestError(
                f"--rows {rows} exceeds batching.max_queue_rows = {batching.max_queue_rows}: "
                "every request would be refused",
                hint="lower --rows, or raise batching.max_queue_rows",
            )
        request_us = seconds("--request-cpu", request_cpu) * 1e6
        assumed = Assumptions(
            cost_ms={size: ns / 1e6 for size, ns in known.points.items()},
            cost_from=known.found_in,
            sigma=next(one for one in (noise, known.sigma, _NOISE) if one is not None),
            hiccups=hiccups,
            request_us=request_us,
            missing=missing(loaded.deployment if loaded is not None else None, request_us),
            timeout_ms=float(slo.timeout_s) * 1e3,
            slo=slo.objectives,
            max_rows=1 if known.rows_alone else batching.max_rows,
            max_queue_rows=batching.max_queue_rows,
            rows_alone=known.rows_alone,
            inline=inline,
            cores=1.0 if shared_core else 0.0,
            arrivals=arrivals if traffic is None else traffic.said,
            duration_s=seconds("--duration", duration) if traffic is None else traffic.duration_s,
            rows=rows,
            seed=seed,
            replayed=traffic is not None,
        )
    lines = list(play(assumed, batching, slo, rates, counts, traffic))
    save_json({"assumed": assumed, "lines": lines}, json_path)
    write(render(assumed, lines))
    if not all(line.meets for line in lines):
        raise typer.Exit(ExitCode.FAILED)


def _manifest(given: list[Path] | None, model: str, settings: list[str] | None, *, needed: bool) -> Manifest | None:
    """Load the manifest; None where there is none and the costs are given."""
    paths = manifest_paths(given)
    there = not is_one_manifest(paths) or paths[0].is_file() or (paths[0] / "tailcut.toml").is_file()
    return load_subject(given, model, settings).manifest if needed or there else None


def _costs(text: str) -> dict[int, float]:
    """Read rows=duration pairs; nanoseconds by rows."""
    found: dict[int, float] = {}
    for part in text.split(",") if text else ():
        rows, equals, time = part.partition("=")
        try:
            if not equals or int(rows) < 1 or int(rows) in found:
                raise ValueError
            found[int(rows)] = parse_duration_s(time) * 1e9
        except (ValueError, LoadTestError):
            raise LoadTestError(
                f"--cost has {part!r}", hint='write rows=duration, each size once, such as --cost "1=5ms,8=12ms"'
            ) from None
    for fewer, more in pairwise(sorted(found)):
        if found[more] < found[fewer]:
            raise LoadTestError(
                f"--cost has {more} rows in {found[more] / 1e6:g} ms, but {fewer} in {found[fewer] / 1e6:g} ms",
                hint="give the duration of the whole batch, not of one row",
            )
    return found


# -- What is played and printed: one line per rate and number of executors ---------------------------------------------


class Assumptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is taken for true in all lines.

    Attributes:
        cost_ms: rows -> milliseconds of a batch; between them straight lines.
        cost_from: where that is known from.
        sigma: noise of a batch's time (of its logarithm).
        hiccups: share of the batches that take five times as long.
        request_us: event loop's time per request.
        missing: parts of the deployment that are not included.
        timeout_ms: deadline of a request.
        slo: what the lines are judged by.
        rows_alone: whether each row runs alone, those of one request too.
        arrivals: the kind; of a request log (``replayed``), which has its own rows, what it is.
    """

    cost_ms: dict[int, float]
    cost_from: str
    sigma: float
    hiccups: float
    request_us: float
    missing: str
    timeout_ms: float
    slo: Objectives
    max_rows: int
    max_queue_rows: int
    rows_alone: bool
    inline: bool
    cores: float
    arrivals: str
    duration_s: float
    rows: int
    seed: int
    replayed: bool = False


class RateLine(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen at one rate with so many executors. Latencies in milliseconds, of those that were answered.

    Attributes:
        missed: objectives of the SLO; the percentiles that they are about are of all requests, see ``Objectives``.
    """

    rate: float
    executors: int
    offered: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    goodput: float
    shed: float
    broken: float
    batch_rows: float
    busy: float
    loop_busy: float
    meets: bool
    missed: tuple[str, ...]


class MeasuredCost(NamedTuple):
    """What batches take: rows -> nanoseconds, where that is from, and their spread where that is known, too.

    ``rows_alone`` says whether each row of the variant runs alone.
    """

    points: dict[int, float]
    found_in: str
    sigma: float | None = None
    rows_alone: bool = False


class Traffic(NamedTuple):
    """Requests of a log: when each came, and what the scheduler looks at.

    Attributes:
        said: what it is, for people.
    """

    arrivals_ns: npt.NDArray[np.int64]
    rows: list[int]
    priorities: list[int]
    tenants: list[str]
    said: str

    @property
    def duration_s(self) -> float:
        """From the first request to the last."""
        return float(self.arrivals_ns[-1]) / 1e9


def read_traffic(log: str, arrivals: str, rows: int, model: str) -> Traffic:
    """Read a request log, and tell what is to know of it.

    Args:
        model: whose requests are taken; empty: those of all.

    Raises:
        LoadTestError: it is none, a flag says what the log does, or its requests came at no two times.
    """
    check_replay(log)
    for flag, is_given in (("--arrivals", arrivals != "poisson"), ("--rows", rows > 1)):
        if is_given:
            raise LoadTestError(f"{flag} and --replay were both given", hint=f"leave {flag} out: the log says it")
    found = _of_model(log, read_arrivals(log), model)
    arrivals_ns = trace_ns(found.times_s())
    if not arrivals_ns[-1]:
        raise LoadTestError(
            f"the arrivals of {log} last 0 s, which is no rate",
            hint="a simulation needs requests at two times at least: record more",
        )
    sampled = [line for line in found.differences() if "sample" in line]
    for line in (*found.notes, *sampled):
        note(f"{log}: {line}")
    counts = found.rows()
    many = f"{min(counts)} to {max(counts)} rows" if min(counts) < max(counts) else f"{counts[0]} rows"
    return Traffic(
        arrivals_ns=arrivals_ns,
        rows=counts,
        priorities=[record.priority for record in found.records],
        tenants=[str(record.tenant) for record in found.records],
        said=f"replay of {log} ({len(counts)} requests of {many})",
    )


def _of_model(log: str, found: Replay, model: str) -> Replay:
    """Return the requests of one model, with a note of how many are of others."""
    own = tuple(record for record in found.records if not model or record.model == model)
    if not own:
        models = ", ".join(sorted({record.model for record in found.records}))
        raise LoadTestError(
            f"the request log {log} has no requests of model {model!r}; it has those of {models}",
            hint="name the log of this model, or another model with --model",
        )
    if others := len(found.records) - len(own):
        notes = f"{others} of {len(found.records)} requests are left out: they are of other models than {model}"
        return Replay(own, (*found.notes, notes))
    return found


def known_cost(manifest: Manifest | None, given: Mapping[int, float]) -> MeasuredCost:
    """Find what batches take: as given, else as the build measured it, tuned or bare.

    Raises:
        TailcutError: nothing is known, or the evidence is of another machine.
    """
    if given:
        return MeasuredCost(dict(given), "--cost")
    if manifest is None:
        raise LoadTestError("the duration of a batch is unknown: there is no manifest here", hint=_WAY_OUT)
    variant = find_variant(manifest)
    evidence, tuning = variant.evidence, variant.evidence.tuning or Tuning()
    points = tuning.points or {rows: median(ms) * 1e6 for rows, ms in evidence.bare_ms.items()}
    if not points:
        raise LoadTestError(f"variant {variant.name!r} has no timings in its evidence", hint=_WAY_OUT)
    if variant.trust.level != "trusted":
        raise LoadTestError(
            f"the timings of variant {variant.name!r} do not hold on this machine: {variant.trust.reason}",
            hint=_WAY_OUT,
        )
    return MeasuredCost(points, f"evidence of variant {variant.name}", tuning.spread, evidence.rows_alone)


def missing(deployment: Deployment | None, request_us: float) -> str:
    """Say what the simulation leaves out, and what it assumes instead."""
    assumed = f"assumed: an executor without overhead, {request_us:g} us on the event loop per request"
    if deployment is None:
        return f"not included: features and hooks (there is no manifest); {assumed}"
    groups = len(deployment.features.groups)
    parts = [f"{groups} feature group{'s' * (groups > 1)}"] if groups else []
    parts += [name for name in ("preprocess", "postprocess") if getattr(deployment.model, name)]
    parts += [f"cache.{name}" for name in ("entity", "tensor") if getattr(deployment.cache, name).enabled]
    return f"not included: {', '.join(parts)}; {assumed}" if parts else assumed


def play(
    assumed: Assumptions,
    batching: Batching,
    slo: Slo,
    rates: Sequence[float],
    executors: Sequence[int],
    traffic: Traffic | None = None,
) -> Iterator[RateLine]:
    """Simulate every rate with every number of executors.

    Args:
        traffic: of a request log, stretched to each rate that is not 0; None: arrivals and rows are as assumed.
    """
    target = make_target(batching, slo)
    known = {rows: ms * 1e6 for rows, ms in assumed.cost_ms.items()}
    costs = LatencyLearner()
    costs.seed(known)
    for rate in rates:
        arrivals = _arrivals(assumed, rate) if traffic is None else scaled(traffic.arrivals_ns, rate)
        for count in executors:
            scenario = Scenario(
                arrivals_ns=arrivals,
                service=noisy(costs.cost, assumed.seed, sigma=assumed.sigma, hiccups=assumed.hiccups),
                known=known,
                executors=count,
                timeout_ns=int(assumed.timeout_ms * 1e6),
                limit_ns=target.limit_ns if target is not None else 0,
                max_rows=assumed.max_rows,
                max_queue_rows=assumed.max_queue_rows,
                merge=batching.mode != "off" and not assumed.rows_alone,
                window=None if assumed.rows_alone else partial(make_window, batching, slo),
                loop_ns=assumed.request_us * 1e3,
                inline=assumed.inline and count == 1,
                cores=assumed.cores,
                rows=(assumed.rows,) if traffic is None else traffic.rows,
                priorities=(0,) if traffic is None else traffic.priorities,
                tenants=("",) if traffic is None else traffic.tenants,
            )
            yield _line(rate, count, simulated(scenario), assumed)


def _arrivals(assumed: Assumptions, rate: float) -> npt.NDArray[np.int64]:
    if assumed.arrivals == "burst":
        return bursts_ns(rate, assumed.duration_s, assumed.seed)
    kind: Kind = "poisson" if assumed.arrivals == "poisson" else "constant"
    return offsets_ns(steady(rate, assumed.duration_s, kind=kind), assumed.seed)


def scaled(offsets_ns: npt.NDArray[np.int64], rate: float) -> npt.NDArray[np.int64]:
    """Bring a trace to a rate on average, by stretching its time; as it is where the rate is 0."""
    if not rate or len(offsets_ns) < 2:
        return offsets_ns
    own_rate = (len(offsets_ns) - 1) / (offsets_ns[-1] / 1e9)
    stretched: npt.NDArray[np.int64] = np.round(offsets_ns * (own_rate / rate)).astype(np.int64)
    return stretched


def _line(rate: float, executors: int, outcome: SimulatedOutcomes, assumed: Assumptions) -> RateLine:
    offered = len(outcome.shed)
    in_time = int(outcome.in_time.sum())
    span_s = max(outcome.end_ns, 1.0) / 1e9
    seen_ms = percentiles_of_all(assumed.slo, outcome.latency_ns / 1e6, outcome.in_time)
    found = judge(assumed.slo, seen_ms, offered - in_time, offered)
    missed = tuple(finding.objective for finding in found if not finding.met)
    return RateLine(
        rate=rate or offered / span_s,  # of a request log as it is
        executors=executors,
        offered=offered,
        p50_ms=outcome.percentile_ms(0.5),
        p95_ms=outcome.percentile_ms(0.95),
        p99_ms=outcome.percentile_ms(0.99),
        goodput=in_time / span_s,
        shed=float(outcome.shed.mean()) if offered else 0.0,
        broken=outcome.broken,
        batch_rows=outcome.mean_rows,
        busy=outcome.busy_ns / max(outcome.end_ns * executors, 1.0),
        loop_busy=outcome.loop_ns / max(outcome.end_ns, 1.0),
        meets=not missed,
        missed=missed,
    )


def render(assumed: Assumptions, lines: Sequence[RateLine]) -> str:
    """Lay the lines out as a table, readable without colour."""
    costs = ", ".join(f"{rows}: {ms:.3g} ms" for rows, ms in sorted(assumed.cost_ms.items()))
    where = (
        "on the event loop" if assumed.inline else f"on {assumed.cores:g} core(s) shared by all" * bool(assumed.cores)
    )
    came = assumed.arrivals if assumed.replayed else f"{assumed.arrivals} arrivals"
    each = "" if assumed.replayed else f"{assumed.rows} rows each, "
    request = f"{assumed.request_us:g} us on the event loop per request"
    head = [
        assumed.missing,
        f"batch duration by rows: {costs} ({assumed.cost_from}), noise {assumed.sigma:.0%}, "
        f"hiccups {assumed.hiccups:.2%}",
        *(["each row runs alone: other rows in its batch would change its answer"] if assumed.rows_alone else []),
        f"{came} for {assumed.duration_s:g} s, {each}deadline {assumed.timeout_ms:g} ms; "
        f"{request}{f', batches {where}' if where else ''}",
        "",
        "    rate/s  exec     p50 ms     p95 ms     p99 ms  goodput/s    shed   late  rows/batch  busy  loop  SLO",
    ]
    body = [
        f"{line.rate:10.1f} {line.executors:5d} {line.p50_ms:10.2f} {line.p95_ms:10.2f} {line.p99_ms:10.2f} "
        f"{line.goodput:10.1f} {line.shed:7.2%} {line.broken:6.2%} {line.batch_rows:11.1f} {line.busy:5.0%} "
        f"{line.loop_busy:5.0%}  {'met' if line.meets else ' '.join(('MISSED', *line.missed))}"
        for line in lines
    ]
    return "\n".join([*head, *body])
