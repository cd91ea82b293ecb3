"""``tailcut compare``: which stage grew since an earlier span of the history."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailcut.cli._load_flags import seconds
from tailcut.cli.console import ExitCode, note, usage, write
from tailcut.cli.options import ManifestPaths, Settings, examples, load_host, manifest_paths
from tailcut.common.units import format_duration
from tailcut.errors import LoadTestError, StoreError

if TYPE_CHECKING:
    from tailcut.observe.comparison.records import Comparison


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "compare",
        epilog=examples(
            ("tailcut compare", "the last day against the same day a week ago"),
            ("tailcut compare --since 2h --against 1d", "the last two hours against those of yesterday"),
            ("tailcut compare --from 2026-11-20T09:00 --to 2026-11-20T12:00 --against 1w", "a morning"),
            ("tailcut compare --history history.sqlite --model risk --json out.json", "a copied history, one model"),
        ),
    )(compare)


def compare(
    manifest: ManifestPaths = None,
    settings: Settings = None,
    since: Annotated[str, typer.Option(help="Length of the recent span, which ends now.")] = "1d",
    against: Annotated[str, typer.Option(help="How much earlier the other span is; at least its length.")] = "1w",
    from_: Annotated[
        str,
        typer.Option("--from", metavar="TIME", help="Begin of the recent span instead of --since: ISO 8601, UTC."),
    ] = "",
    to: Annotated[str, typer.Option(metavar="TIME", help="With --from: its end.", show_default="now")] = "",
    history: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The history's file.", show_default="the manifest's observe.history.path"),
    ] = None,
    model: Annotated[str, typer.Option(metavar="NAME", help="Compare this model only.", show_default="all")] = "",
    min_change: Annotated[str, typer.Option(help="Smallest change of a stage that counts.")] = "5%",
    json_path: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the resampling.")] = 0,
) -> None:
    """Say which stage of which model grew, by how much, and what is within noise, from the history of `tailcut serve`.

    The recent span is compared with the same span earlier, so that both are of the same hours. Intervals are of 95 %;
    a stage is named where its growth is certain among all that were tested (Holm, 5 %) and at least --min-change.
    Exit code 0: no stage grew; 1: one did; 2: wrong flag; 3: no history, or too little in it.
    """
    from tailcut.load.files import prepare
    from tailcut.observe.comparison.compare import compare as run
    from tailcut.observe.comparison.stages import Terms
    from tailcut.observe.history import History

    with usage():
        since_s, until_s = _span(since, from_, to)
        against_s = _against(against, until_s - since_s)
        terms = Terms(min_change=_share(min_change), seed=seed)
        if json_path is not None:
            prepare(json_path)
    path = history if history is not None else _history_file(manifest, settings)
    found = run(History(path), since_s, until_s, against_s, model=model or None, terms=terms)
    if not found.models:
        described = History(path).describe()
        raise StoreError(_nothing(found, described.oldest_s, described.newest_s, model), hint=_HINT)
    _show(found, json_path)
    if not found.said:
        raise typer.Exit(ExitCode.NOT_STARTED)
    if found.grew:
        raise typer.Exit(ExitCode.FAILED)


def _history_file(manifest: list[Path] | None, settings: list[str] | None) -> Path:
    host = load_host(manifest_paths(manifest), settings)
    if host.observe.history.path == "off":
        raise StoreError(
            'observe.history.path is "off", so the server keeps no history',
            hint="set it to a file and serve for a while, or name a file with --history",
        )
    return host.history_file


_HINT = "compare a span that the history has with --from, --to and --against, or wait until it has both"


def _show(found: Comparison, json_path: Path | None) -> None:
    import msgspec

    from tailcut.report.comparison.text import render_comparison
    from tailcut.system.whole_files import write_file

    if json_path is not None:
        write_file(json_path, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
        note(f"wrote {json_path}")
    write(render_comparison(found))


def _span(since: str, from_: str, to: str) -> tuple[float, float]:
    """Return begin and end of the recent span in Unix seconds."""
    if to and not from_:
        raise LoadTestError("--to is given without --from", hint="give both, or --since")
    if not from_:
        now_s = time.time()
        return now_s - seconds("--since", since), now_s
    begin_s, end_s = _time("--from", from_), _time("--to", to) if to else time.time()
    if end_s - begin_s < 60:
        raise LoadTestError(
            f"the span from {from_} to {to or 'now'} is shorter than a minute", hint="give a longer one"
        )
    return begin_s, end_s


def _against(text: str, span_s: float) -> float:
    against_s = seconds("--against", text)
    if against_s < span_s:
        days = ceil(span_s / 86_400)
        longer = format_duration(86_400 * (days if days <= 1 else 7 * ceil(days / 7)))
        raise LoadTestError(
            f"--against {text} is shorter than the span of {span_s / 3600:g} h: both would overlap",
            hint=f"write a longer one, such as --against {longer}, or a shorter --since",
        )
    return against_s


def _time(flag: str, text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise LoadTestError(f"{flag} is {text!r}", hint="write it as 2026-11-20T09:00, in UTC") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _share(text: str) -> float:
    from tailcut.common.units import UnitError, parse_share

    try:
        return float(parse_share(text))
    except UnitError as error:
        raise LoadTestError(f"--min-change: {error}", hint='write for example "5%"') from None


def _nothing(found: Comparison, oldest_s: int | None, newest_s: int | None, model: str) -> str:
    what = f"model {model!r}" if model else "any model"
    if oldest_s is None or newest_s is None:
        return f"the history at {found.history} is empty"
    begin, end = (datetime.fromtimestamp(each, UTC).strftime("%Y-%m-%dT%H:%M") for each in (oldest_s, newest_s))
    return f"the history at {found.history} has nothing of {what} in either span; it has {begin} to {end} UTC"
