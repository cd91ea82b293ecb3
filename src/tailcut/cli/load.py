"""``tailcut load``: open-loop load against a URL, judged by an SLO."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, cast

import typer

from tailcut.cli.console import ExitCode, check_files, note, usage, write
from tailcut.cli.options import (
    Headers,
    JsonFile,
    Method,
    Seed,
    Timeout,
    Warmup,
    examples,
    objectives,
    one_of,
    payloads_option,
    rate_option,
    read_headers,
    seconds,
    slo_option,
)
from tailcut.cli.progress import ProgressLine
from tailcut.errors import LoadTestError
from tailcut.load import LoadPlan, SearchLimits, capacity, measure, save_result, save_samples, summarise_run
from tailcut.load.arrivals import Kind
from tailcut.load.files import prepare
from tailcut.load.payloads import check_payloads
from tailcut.load.plan import check_plan, intended_times, parse_url
from tailcut.load.replay import check_replay, read_replay
from tailcut.load.text import render_capacity, render_result, render_step


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "load",
        epilog=examples(
            ("tailcut load http://127.0.0.1:8700/v2/health/ready --rate 500", "500 requests/s for 30 s"),
            (
                "tailcut load http://127.0.0.1:8700/predict/risk --payloads bodies.jsonl --slo p95=25ms,errors=0.1%",
                "exit code 1 if the SLO is missed",
            ),
            (
                "tailcut load http://127.0.0.1:8700 --replay requests/ --speed 2",
                "a request log again, each request at its time, twice as fast",
            ),
            ("tailcut load URL --payloads traffic:board --slo p95=25ms --find-capacity", "highest rate within the SLO"),
            ("tailcut load URL --ramp 10:500 --duration 60s --json out.json --raw out.npz", "write result and samples"),
        ),
    )(load)


def load(
    url: Annotated[str, typer.Argument(metavar="URL", help="URL that receives the requests.")],
    rate: Annotated[float | None, rate_option("100")] = None,
    ramp: Annotated[
        str, typer.Option(metavar="A:B", help="Raise the rate from A to B requests per second over the duration.")
    ] = "",
    trace: Annotated[
        str, typer.Option(metavar="FILE", help="Send at the times in this file: one per line, in seconds.")
    ] = "",
    replay: Annotated[
        str,
        typer.Option(
            metavar="LOG",
            help="Send the requests of this request log (a folder or a file) again, each to its own route at its own "
            "time; the rate of a sample is raised to that of all requests.",
        ),
    ] = "",
    speed: Annotated[float, typer.Option(help="With --replay or --trace: how many times as fast as they came.")] = 1.0,
    arrivals: Annotated[str, typer.Option(help="Arrival process: poisson or constant.")] = "poisson",
    duration: Annotated[str, typer.Option(help="Duration of the measurement.")] = "30s",
    warmup: Warmup = "2s",
    payloads: Annotated[str, payloads_option("requests without a body")] = "",
    method: Method = "",
    header: Headers = None,
    timeout: Timeout = "1s",
    connections: Annotated[int, typer.Option(help="Maximum number of connections.")] = 512,
    slo: Annotated[str, slo_option("none")] = "",
    find_capacity: Annotated[
        bool, typer.Option("--find-capacity", help="Search for the highest rate that meets --slo.")
    ] = False,
    max_search: Annotated[str, typer.Option(help="With --find-capacity: start no new step after this time.")] = "5m",
    pid: Annotated[int, typer.Option(help="Measure the CPU time of this server process and its children.")] = 0,
    json_path: JsonFile = None,
    raw: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the raw samples, as .npz.")] = None,
    seed: Seed = 0,
) -> None:
    """Send open-loop load to a URL: every request at its planned time, independent of earlier answers.

    Latency counts from the intended send time. A failed request exceeds every latency limit; at most 0.1 % may fail
    unless --slo sets errors=... Exit code 0: SLO met, or none given; 1: SLO missed; 2: wrong flag; 3: the test could
    not run.
    """
    sys.path.insert(0, "")  # payload modules of the current folder
    with usage():
        trace, payloads = _replayed(replay, trace, payloads)
        plan = LoadPlan(
            url=url,
            rate=rate,
            ramp=_ramp(ramp),
            trace=trace,
            speed=speed,
            arrivals=cast(Kind, one_of("--arrivals", arrivals, "poisson", "constant")),
            duration_s=seconds("--duration", duration),
            warmup_s=seconds("--warmup", warmup),
            payloads=payloads,
            method=method,
            headers=read_headers(header),
            timeout_s=seconds("--timeout", timeout),
            connections=connections,
            slo=objectives(slo),
            pid=pid,
            seed=seed,
        )
        check_plan(plan)
        parse_url(url)
        check_payloads(plan)
        max_search_s = seconds("--max-search", max_search)
        if find_capacity:
            _check_search(plan, raw)
        elif plan.trace and (hours := float(intended_times(plan)[-1]) / 3.6e12) > 1:
            note(f"{plan.trace}: its arrivals last {hours:,.1f} hours at --speed {plan.speed:g}; raise it to take less")
        check_files(json_path)
        if raw is not None:
            prepare(raw, ".npz")
    met = _search(plan, json_path, max_search_s) if find_capacity else _run(plan, json_path, raw)
    if not met:
        raise typer.Exit(ExitCode.FAILED)


def _run(plan: LoadPlan, json_path: Path | None, raw: Path | None) -> bool:
    with ProgressLine() as line:
        samples, facts = measure(plan, on_progress=line.show)
    result = summarise_run(plan, samples, facts)
    # Before the text, so that the files are complete even if the reader of the text closes the pipe.
    if raw is not None:
        save_samples(samples, raw)
    if json_path is not None:
        save_result(result, json_path)
    write(render_result(result))
    return result.met


def _search(plan: LoadPlan, json_path: Path | None, max_total_s: float) -> bool:
    with ProgressLine() as line:
        found = capacity.find_capacity(
            plan,
            plan.slo,
            start_rate=plan.rate or 50.0,
            limits=SearchLimits(max_total_s=max_total_s),
            on_step=lambda step: line.note(render_step(step)),
            on_progress=line.show,
        )
    if json_path is not None:
        save_result(found, json_path)
        note(f"wrote {json_path}")
    write(render_capacity(found))
    return found.rate > 0


def _replayed(replay: str, trace: str, payloads: str) -> tuple[str, str]:
    """Return trace and payloads: both are the request log if one is replayed, and a note describes it."""
    if not replay:
        return trace, payloads
    for flag, given in (("--trace", trace), ("--payloads", payloads)):
        if given:
            raise LoadTestError(f"{flag} and --replay exclude each other", hint="leave one of them out")
    check_replay(replay)
    found = read_replay(replay)
    for line in (*found.notes, *found.differences()):
        note(f"{replay}: {line}")
    return replay, replay


def _check_search(plan: LoadPlan, raw: Path | None) -> None:
    """Refuse what a capacity search would ignore."""
    for flag, given in (("--ramp", plan.ramp), (plan.trace_flag, plan.trace), ("--raw", raw)):
        if given:
            raise LoadTestError(
                f"{flag} has no effect with --find-capacity, which runs many short steps at its own rates",
                hint="leave one of them out; --json writes the figures of every step",
            )


def _ramp(text: str) -> tuple[float, float] | None:
    if not text:
        return None
    start, colon, end = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return float(start), float(end)
    except ValueError:
        raise LoadTestError(f"--ramp is {text!r}", hint="write two rates, for example --ramp 10:500") from None
