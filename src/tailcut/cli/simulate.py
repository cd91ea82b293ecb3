"""``tailcut simulate``: what a deployment would do at other rates and with other executors, without running it."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailcut.cli.console import ExitCode, note, usage, write
from tailcut.cli.options import DEFAULT_MANIFEST, ManifestPath, Settings, examples, load_manifest
from tailcut.core.slo import parse_duration_s
from tailcut.errors import LoadTestError

if TYPE_CHECKING:
    from tailcut.cli._simulation import Assumptions, Known, Line
    from tailcut.manifest import Batching, Manifest, Slo

_NOISE = 0.1
"""Where nothing is known of the spread."""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "simulate",
        epilog=examples(
            ("tailcut simulate --rate 100,200,400 --executors 1,2,4", "the manifest's deployment, from its evidence"),
            ("tailcut simulate --rate 2000 --executors 8,16 --arrivals burst --measure", "time the variant here first"),
            (
                'tailcut simulate --cost "1=9ms,8=70ms" --rate 90,120 --json capacity.json',
                "without a manifest",
            ),
            ("tailcut simulate --arrivals times.txt --rate 0", "replay a trace as it was"),
        ),
    )(simulate)


def simulate(
    manifest: ManifestPath = DEFAULT_MANIFEST,
    settings: Settings = None,
    rate: Annotated[str, typer.Option(metavar="R,R,...", help="Requests per second; 0: a trace's own.")] = "100",
    executors: Annotated[str, typer.Option(metavar="N,N,...", help="Numbers of executors.")] = "1",
    arrivals: Annotated[
        str, typer.Option(metavar="KIND", help="poisson, constant, burst (0.25 s on, 0.25 s off), or a trace file.")
    ] = "poisson",
    duration: Annotated[str, typer.Option(help="How long requests come.")] = "30s",
    rows: Annotated[int, typer.Option(min=1, help="Rows of a request.")] = 1,
    cost: Annotated[
        str, typer.Option(metavar="ROWS=TIME,...", help="What batches take.", show_default="the registry's evidence")
    ] = "",
    measure: Annotated[bool, typer.Option("--measure", help="Open the variant and time its batches here.")] = False,
    noise: Annotated[
        float | None,
        typer.Option(
            min=0, max=2, help="Spread of a batch's time: 0.1 is ten percent. Default: the evidence's, else 0.1."
        ),
    ] = None,
    hiccups: Annotated[float, typer.Option(min=0, max=1, help="Share of batches that take 5 times as long.")] = 0.0,
    request_cpu: Annotated[str, typer.Option(help="Event loop's time per request.")] = "60us",
    inline: Annotated[bool, typer.Option("--inline", help="Batches run on the event loop.")] = False,
    shared_core: Annotated[bool, typer.Option("--shared-core", help="Executors and event loop share a core.")] = False,
    seed: Annotated[int, typer.Option(help="Of arrivals and noise.")] = 0,
    json_path: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")] = None,
) -> None:
    """Simulate the deployment: latencies, goodput and sheds at each rate with each number of executors.

    The planner, the admission and the cost model are those of serving; what a batch takes is known from the build's
    evidence, from --measure, or given. Exit code 0: every line meets the SLO; 1: one does not; 2: a flag is wrong.
    """
    import msgspec

    from tailcut.cli import _simulation
    from tailcut.manifest import Batching, Slo

    with usage():
        rates, counts = _numbers("--rate", rate), [int(one) for one in _numbers("--executors", executors, whole=True)]
        given = _costs(cost)
        if given and measure:
            raise LoadTestError(
                "--cost and --measure were both given", hint="give one: --measure times the variant here"
            )
        _simulation.check_arrivals(arrivals, rates)
        loaded = _manifest(manifest, settings, needed=not given)
        slo = loaded.deployment.slo if loaded is not None else Slo()
        batching = loaded.deployment.batching if loaded is not None else Batching()
        known = _simulation.known_cost(loaded, given, measure)
        if rows > batching.max_queue_rows:
            raise LoadTestError(
                f"--rows {rows} is more than batching.max_queue_rows = {batching.max_queue_rows}: all would be refused",
                hint="ask for fewer rows at once, or raise batching.max_queue_rows",
            )
        assumed = _assumptions(batching, slo, known)
        assumed = msgspec.structs.replace(
            assumed,
            sigma=next(one for one in (noise, known.sigma, _NOISE) if one is not None),
            hiccups=hiccups,
            request_us=parse_duration_s(request_cpu) * 1e6,
            inline=inline,
            shared_core=shared_core,
            arrivals=arrivals,
            duration_s=parse_duration_s(duration),
            rows=rows,
            seed=seed,
        )
    lines: list[Line] = list(_simulation.play(assumed, batching, slo, rates, counts))
    write(_simulation.render(assumed, lines))
    if json_path is not None:
        found = {"assumed": assumed, "lines": lines}
        json_path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
        note(f"wrote {json_path}")
    if not all(line.meets for line in lines):
        raise typer.Exit(ExitCode.FAILED)


def _manifest(path: Path, settings: list[str] | None, *, needed: bool) -> Manifest | None:
    """Load the manifest; None where there is none and the costs are given."""
    there = path.is_file() or (path / "tailcut.toml").is_file()
    if not there and not needed:
        return None
    return load_manifest(path, settings)


def _assumptions(batching: Batching, slo: Slo, known: Known) -> Assumptions:
    from tailcut.cli._simulation import Assumptions

    named = ((0.99, slo.p99_s), (0.95, slo.p95_s), (0.5, slo.p50_s))
    target = next(((share, float(limit) * 1e3) for share, limit in named if limit is not None), None)
    return Assumptions(
        cost_ms={rows: ns / 1e6 for rows, ns in known.points.items()},
        cost_from=known.found_in,
        sigma=0.0,
        hiccups=0.0,
        request_us=0.0,
        timeout_ms=float(slo.timeout_s) * 1e3,
        target=target,
        max_rows=1 if known.rows_alone else batching.max_rows,
        max_queue_rows=batching.max_queue_rows,
        rows_alone=known.rows_alone,
        inline=False,
        shared_core=False,
        arrivals="poisson",
        duration_s=1.0,
        rows=1,
        seed=0,
    )


def _numbers(flag: str, text: str, *, whole: bool = False) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
        if not all(0 <= one < inf for one in found) or (whole and any(one < 1 or one % 1 for one in found)):
            raise ValueError
    except ValueError:
        kind = "whole numbers from 1 on" if whole else "finite numbers, none below 0,"
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
                hint="a larger batch takes no less time: is it the time of a row? Give that of the whole batch",
            )
    return found
