"""``tailcut simulate``: what a deployment would do at other rates and with other executors, without running it."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailcut.cli.console import ExitCode, check_files, note, usage, write
from tailcut.cli.options import ManifestPaths, ModelName, Settings, examples, load_subject, manifest_paths
from tailcut.common.slo import Objectives, parse_duration_s
from tailcut.errors import LoadTestError

if TYPE_CHECKING:
    from tailcut.manifest import Manifest

_NOISE = 0.1
"""Where nothing is known of the spread."""


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
    seed: Annotated[int, typer.Option(help="Random seed of arrivals and noise.")] = 0,
    json_path: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")] = None,
) -> None:
    """Simulate the deployment: latencies, goodput and sheds at each rate with each number of executors.

    Uses the scheduler, admission and cost model of serving. Batch durations come from the build's evidence or --cost.
    Features, hooks and the executor's overhead are not included; the first line names what is left out. Exit code 0:
    every line meets the SLO; 1: a line misses it; 2: wrong flag.
    """
    import msgspec

    from tailcut.cli import _simulation
    from tailcut.manifest import Batching, Slo
    from tailcut.system.atomic_files import write_file

    with usage():
        check_files(json_path)
        loaded = _manifest(manifest, model, settings, needed=not cost)
        traffic = None
        if replay:
            of = loaded.deployment.name if loaded is not None else model
            traffic = _simulation.read_traffic(replay, arrivals, rows, of)
        rates = _numbers("--rate", rate or ("0" if traffic is not None else "100"))
        counts = [int(one) for one in _numbers("--executors", executors, whole=True)]
        given = _costs(cost)
        if traffic is None:
            _simulation.check_arrivals(arrivals, rates)
        slo = loaded.deployment.slo if loaded is not None else Slo()
        batching = loaded.deployment.batching if loaded is not None else Batching()
        known = _simulation.known_cost(loaded, given)
        if rows > batching.max_queue_rows:
            raise LoadTestError(
                f"--rows {rows} exceeds batching.max_queue_rows = {batching.max_queue_rows}: "
                "every request would be refused",
                hint="lower --rows, or raise batching.max_queue_rows",
            )
        request_us = parse_duration_s(request_cpu) * 1e6
        assumed = _simulation.Assumptions(
            cost_ms={size: ns / 1e6 for size, ns in known.points.items()},
            cost_from=known.found_in,
            sigma=next(one for one in (noise, known.sigma, _NOISE) if one is not None),
            hiccups=hiccups,
            request_us=request_us,
            missing=_simulation.missing(loaded.deployment if loaded is not None else None, request_us),
            timeout_ms=float(slo.timeout_s) * 1e3,
            slo=Objectives(latency=slo.latency, errors=float(slo.errors)),
            max_rows=1 if known.rows_alone else batching.max_rows,
            max_queue_rows=batching.max_queue_rows,
            rows_alone=known.rows_alone,
            inline=inline,
            cores=1.0 if shared_core else 0.0,
            arrivals=arrivals if traffic is None else traffic.said,
            duration_s=parse_duration_s(duration) if traffic is None else traffic.duration_s,
            rows=rows,
            seed=seed,
            replayed=traffic is not None,
        )
    lines = list(_simulation.play(assumed, batching, slo, rates, counts, traffic))
    if json_path is not None:
        found = {"assumed": assumed, "lines": lines}
        write_file(json_path, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
        note(f"wrote {json_path}")
    write(_simulation.render(assumed, lines))
    if not all(line.meets for line in lines):
        raise typer.Exit(ExitCode.FAILED)


def _manifest(given: list[Path] | None, model: str, settings: list[str] | None, *, needed: bool) -> Manifest | None:
    """Load the manifest; None where there is none and the costs are given."""
    from tailcut.manifest.host import is_one_manifest

    paths = manifest_paths(given)
    there = not is_one_manifest(paths) or paths[0].is_file() or (paths[0] / "tailcut.toml").is_file()
    return load_subject(given, model, settings).manifest if needed or there else None


def _numbers(flag: str, text: str, *, whole: bool = False) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
        if not all(0 <= one < inf for one in found) or (whole and any(one < 1 or one % 1 for one in found)):
            raise ValueError
    except ValueError:
        kind = "whole numbers of at least 1" if whole else "finite numbers of at least 0,"
        raise LoadTestError(
            f"{flag} is {text!r}", hint=f"write {kind} with commas between, such as {flag} 1,2,4"
        ) from None
    return found


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
