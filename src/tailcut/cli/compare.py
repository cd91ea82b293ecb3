"""``tailcut compare``: which stage grew since an earlier span of the history."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from tailcut.cli.console import ExitCode, check_files, save_json, usage, write
from tailcut.cli.options import JsonFile, ManifestPaths, Seed, Settings, examples, load_host, manifest_paths, seconds
from tailcut.common.units import UnitError, format_duration, parse_share
from tailcut.errors import LoadTestError, StoreError
from tailcut.observe.comparison import ComparisonTerms, HistoryComparison
from tailcut.observe.comparison import compare as run
from tailcut.observe.history import MINUTE_S, History
from tailcut.report.comparison import comparison_document
from tailcut.report.document import terminal


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
    json_path: JsonFile = None,
    seed: Seed = 0,
) -> None:
    """Say which stage of which model grew, by how much, and what is within noise, from the history of `tailcut serve`.

    The recent span is compared with the same span earlier, so that both are of the same hours. Intervals are of 99.5 %;
    a stage is named where the interval of its growth is above 0 and the growth at least --min-change.
    Exit code 0: no stage grew; 1: one did; 2: wrong flag; 3: no history, or too little in it.
    """
    with usage():
        since_s, until_s = _span(since, from_, to)
        against_s = _against(against, since_s, until_s)
        terms = ComparisonTerms(min_change=_share(min_change), seed=seed)
        check_files(json_path)
    stored = History(history if history is not None else _history_file(manifest, settings))
    found = run(stored, since_s, until_s, against_s, model=model or None, terms=terms)
    if not found.models:
        raise StoreError(
            _nothing(found, stored.extent(), model),
            hint="compare a span that the history has with --from, --to and --against, or wait until it has both",
        )
    save_json(found, json_path)
    write(terminal(comparison_document(found)))
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


def _span(since: str, from_: str, to: str) -> tuple[float, float]:
    """Return begin and end of the recent span in Unix seconds."""
    if to and not from_:
        raise LoadTestError("--to is given without --from", hint="give both, or --since")
    if not from_:
        end_s, named, flag = time.time(), f"of --since {since}", f"--since {since}"
        begin_s = end_s - seconds("--since", since)
    else:
        named, flag = f"from {from_} to {to or 'now'}", f"--from {from_}"
        begin_s, end_s = _time("--from", from_), _time("--to", to) if to not in {"", "now"} else time.time()
    if end_s - begin_s < MINUTE_S:
        raise LoadTestError(f"the span {named} is shorter than a minute", hint="give a longer one, such as --since 1d")
    if begin_s < 0:
        raise LoadTestError(
            f"{flag} has the span begin before 1970", hint="give a later begin: --since 1d, or --from 2026-11-20T09:00"
        )
    return begin_s, end_s


def _against(text: str, begin_s: float, end_s: float) -> float:
    against_s, span_s = seconds("--against", text), end_s - begin_s
    if against_s > begin_s:
        raise LoadTestError(
            f"--against {text} has the earlier span begin before 1970", hint="write a shorter one, such as --against 1w"
        )
    if against_s < span_s:
        raise LoadTestError(
            f"--against {text} is shorter than the span of {format_duration(round(span_s))}: both would overlap",
            hint="give an --against of at least that length, or a shorter span, such as --since 1d",
        )
    return against_s


def _time(flag: str, text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise LoadTestError(
            f"{flag} is {text!r}: {error}", hint=f"write it as {flag} 2026-11-20T09:00, in UTC"
        ) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _share(text: str) -> float:
    try:
        return float(parse_share(text))
    except UnitError as error:
        raise LoadTestError(f"--min-change: {error}", hint='write for example "5%"') from None


def _nothing(found: HistoryComparison, extent: tuple[int, int] | None, model: str) -> str:
    what = f"model {model!r}" if model else "any model"
    if extent is None:
        return f"the history at {found.history} is empty"
    begin, end = (datetime.fromtimestamp(each, UTC).strftime("%Y-%m-%dT%H:%M") for each in extent)
    return f"the history at {found.history} has nothing of {what} in either span; it has {begin} to {end} UTC"
