"""``tailcut top``: what a server does now, in a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Annotated
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tailcut.cli.console import stdout, write
from tailcut.cli.options import examples, seconds
from tailcut.errors import ManifestError, StartError
from tailcut.observe.live.figures import AlertFigures, ModelFigures, Snapshot

_TIMEOUT_S = 5.0
_LONGEST_SAID = 300
_BAR = 24
_STATES = {"ready": "green", "failed": "red", "draining": "yellow", "loading": "yellow"}
_COLOURS = ("blue", "cyan", "magenta", "green", "yellow", "red")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "top",
        epilog=examples(
            ("tailcut top http://127.0.0.1:8700", "watch a server"),
            ("tailcut top https://models.example.com --token-file token --model risk", "one model in detail"),
            ("tailcut top 127.0.0.1:8700 --once --json", "the figures of this moment, for a script"),
        ),
    )(top)


def top(
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of the server.")],
    model: Annotated[str, typer.Option(help="Show this model in detail.", show_default="the only one")] = "",
    token: Annotated[str, typer.Option(help="Token for management; other users of this machine can see it.")] = "",
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the token; '-': standard input.")
    ] = None,
    every: Annotated[str, typer.Option(metavar="DURATION", help="Time between two looks.")] = "1s",
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one line per look.")] = False,
) -> None:
    """Show what a server does now: rates, latency by stage, SLO, queue, caches and alerts of each model.

    The figures are those of the page at /ui and of /metrics; rates and percentiles are of the last ten seconds. Colours
    are left out where the output is no terminal. Exit code 0: shown; 2: wrong flag; 3: the server cannot be reached, or
    refuses the token.
    """
    every_s = max(seconds("--every", every), 0.1)
    address = _address(url)
    headers = _headers(token, token_file)
    _known(_decoded(_read(address, headers)), model)
    if once or as_json:
        _print(address, headers, model, None if once else every_s, as_json=as_json)
    else:
        _follow(address, headers, model, every_s)


def _print(address: str, headers: dict[str, str], model: str, every_s: float | None, *, as_json: bool) -> None:
    while True:
        raw = _read(address, headers)
        if as_json:
            write(raw.decode())
        else:
            stdout().print(view(_decoded(raw), model))
        if every_s is None:
            return
        sys.stdout.flush()
        time.sleep(every_s)


def _follow(address: str, headers: dict[str, str], model: str, every_s: float) -> None:
    """Show until interrupted; a server that went away is waited for."""
    console = stdout()
    if not console.is_terminal:
        _print(address, headers, model, every_s, as_json=False)
    snapshot = _decoded(_read(address, headers))
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            notice = ""
            try:
                snapshot = _decoded(_read(address, headers))
            except StartError as error:
                notice = f"disconnected, trying again: {error.message}"
            live.update(view(snapshot, model, notice), refresh=True)
            time.sleep(every_s)


def _address(url: str) -> str:
    whole = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(whole)
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an IPv6 address, a port that is none
        is_address = False
    if not is_address:
        raise ManifestError(f"URL {url!r} is no address of a server", hint="such as http://127.0.0.1:8700")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/ui')}/ui/data"


def _headers(token: str, file: Path | None) -> dict[str, str]:
    if file is not None:
        try:
            token = (sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ManifestError(f"--token-file {file} cannot be read: {error}", hint="name a readable file") from error
        if not token:
            raise ManifestError(f"--token-file {file} is empty", hint="write the token into it")
    return {"authorization": f"Bearer {token}"} if token else {}


def _read(address: str, headers: dict[str, str]) -> bytes:
    try:
        with urlopen(Request(address, headers=headers), timeout=_TIMEOUT_S) as reply:  # noqa: S310 - http(s) only
            raw: bytes = reply.read()
            return raw
    except HTTPError as error:
        raise _refused(address, error.code, error.read(64 * 1024)) from error
    except (OSError, HTTPException, ValueError) as error:
        raise StartError(f"{address} cannot be read: {error}", hint="start the server, or name its address") from error


def _refused(address: str, status: int, body: bytes) -> StartError:
    try:
        said = msgspec.json.decode(body)
        text = str(said["error"])[:_LONGEST_SAID]
        hint = str(said["hint"])[:_LONGEST_SAID]
    except (msgspec.DecodeError, KeyError, TypeError):
        text, hint = "it is no reply of tailcut", "name the address of a server that has /ui"
    if status == 401:
        hint = "pass --token-file with a token for management (docs/how-to/secure.md)"
    return StartError(f"{address} answered {status}: {text}", hint=hint)


def _decoded(raw: bytes) -> Snapshot:
    try:
        return msgspec.json.decode(raw, type=Snapshot)
    except msgspec.DecodeError as error:
        raise StartError(
            f"the reply is no snapshot of a server: {error}", hint="use the tailcut of the server's version"
        ) from error


def _known(snapshot: Snapshot, model: str) -> None:
    names = [each.name for each in snapshot.models]
    if model and model not in names:
        raise ManifestError(f"--model {model!r} is not served there", hint=f"it serves {', '.join(names)}")


# -- A snapshot as tables ----------------------------------------------------------------------------------------------


def view(snapshot: Snapshot, model: str, notice: str = "") -> RenderableType:
    """Return what the terminal shows: the host, its models, and the parts of one model.

    Args:
        model: shown in detail; empty: the only one, where there is only one.
        notice: shown above everything.
    """
    chosen = [each for each in snapshot.models if each.name == model or (not model and len(snapshot.models) == 1)]
    parts: list[RenderableType] = [_head(snapshot)]
    if notice:
        parts.insert(0, Text(notice, style="bold yellow"))
    parts += [_alert(each) for each in snapshot.alerts or ()]
    parts += [Text(), _models(snapshot.models)]
    for each in chosen:
        parts += _details(each)
    return Group(*parts)


def _seconds(value: float | None) -> str:
    """Return a duration with its unit and three digits."""
    if value is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}" if value < 1000 * size else f"{value / size:.0f} {unit}"
    return f"{value * 1e6:.3g} us"


def _rate(value: float) -> str:
    """Return a number per second."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 0.05 or not value else "<0.1"


def _share(value: float | None) -> str:
    """Return a share as per cent."""
    return "-" if value is None else f"{value:.1%}" if value < 0.9995 or value == 1.0 else ">99.9%"


def _head(snapshot: Snapshot) -> Text:
    process = snapshot.process
    parts = [f"tailcut {snapshot.version}"]
    if process.started_s is not None:
        parts.append(f"up {_span(snapshot.at_s - process.started_s)}")
    if process.cpu_cores is not None:
        parts.append(f"{process.cpu_cores:.2f} cores")
    if process.memory_bytes is not None:
        parts.append(_size(process.memory_bytes))
    if process.loop_lag_s is not None:
        parts.append(f"loop lag {_seconds(process.loop_lag_s)}")
    return Text.assemble((process.state, _STATES.get(process.state, "red")), "  ", "  ".join(parts))


def _alert(alert: AlertFigures) -> Text:
    where = f"{alert.model}: " if alert.model else ""
    about = [f"likely stage: {alert.stage}"] if alert.stage else []
    about += [alert.hint] if alert.hint else []
    told = "".join(f"; {each}" for each in about)
    return Text.assemble((f"{alert.severity} {alert.name}", "bold red"), f"  {where}{alert.text}", (told, "dim"))


def _models(models: Sequence[ModelFigures]) -> Table:
    table = _table("model", "req/s", "p50", "p95", "p99", "not ok/s", "burn 5m", "queue", "in flight")
    for model in models:
        requests, whole, now = model.requests, model.stages[-1], model.now
        state = "" if model.state == "ready" else f" {model.state}"
        burns = [each.burn_recent for each in model.objectives if each.burn_recent is not None]
        table.add_row(
            Text.assemble(model.name, (state, _STATES.get(model.state, "dim"))),
            _rate(requests.all.rate),
            *map(_seconds, (whole.p50_s, whole.p95_s, whole.p99_s)),
            _rate(requests.shed.rate + requests.failed.rate),
            _times(max(burns, default=None)),
            _number(now.queue_rows),
            _number(now.in_flight),
        )
    return table


def _details(model: ModelFigures) -> Iterator[RenderableType]:
    if model.reason:
        yield Text(f"{model.name}: {model.reason}", style="red")
    yield from (Text(), _parts(model))
    rows = "" if model.batches.rows_mean is None else f", {model.batches.rows_mean:.1f} rows per batch"
    yield Text(f"executors: {_number(model.now.executors)}{rows}")
    codes = ", ".join(f"{code} {count.total}" for code, count in sorted(model.requests.codes.items()))
    if codes:
        yield Text(f"errors since the start: {codes}")


def _parts(model: ModelFigures) -> Table:
    """Return the stages, variants, look-ups and objectives of a model, with a remark in the last column."""
    table = _table("stage", "mean", "p50", "p95", "p99", "")
    whole = model.stages[-1].mean_s
    for place, stage in enumerate(model.stages):
        if stage.count or stage.name == "request":
            times = (stage.mean_s if stage.count else None, stage.p50_s, stage.p95_s, stage.p99_s)
            part = (stage.mean_s or 0.0) / whole if whole and stage.name != "request" else 0.0
            bar = Text("█" * round(part * _BAR), style=_COLOURS[place % len(_COLOURS)], no_wrap=True, overflow="crop")
            table.add_row(stage.name, *map(_seconds, times), bar)
    if len(model.variants) > 1 or any(each.cost for each in model.variants):
        table.add_section()
        for each in model.variants:
            cost = "" if each.cost is None else f", {each.cost:.3g} {each.currency} per 1M"
            name = Text(f"variant {each.name}", style="bold" if each.served else "")
            quantiles = map(_seconds, (each.p50_s, each.p95_s, each.p99_s))
            table.add_row(name, "", *quantiles, f"{_share(each.share)} of requests{cost}")
    table.add_section()
    for looked in (*model.features, *model.caches):
        about = f" ({looked.about})" if looked.about else ""
        counts = f"{looked.hits.total} hits, {looked.misses.total} misses, {looked.stale} stale, {looked.errors} errors"
        table.add_row(f"{looked.name}{about}", "", "", "", "", f"hit rate {_share(looked.share)}: {counts}")
    table.add_section()
    for goal in model.objectives:
        limit = "" if goal.limit_s is None else f" within {_seconds(goal.limit_s)}"
        burn = f"burn {_times(goal.burn)}, 5m {_times(goal.burn_recent)}"
        met = f"{goal.good} of {goal.total}{limit}, objective {goal.share:.4g}; {burn}"
        table.add_row(f"SLO {goal.name}", "", "", "", "", met)
    return table


def _table(first: str, *heads: str) -> Table:
    """Return a table without rows; in a narrow terminal its cells wrap."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column(first, overflow="fold")
    for head in heads:
        table.add_column(head, justify="right" if head else "left", overflow="fold")
    return table


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _size(value: float) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1024:.3g} KiB"


def _span(value_s: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if value_s >= size:
            return f"{value_s / size:.1f} {unit}"
    return f"{value_s:.0f} s"


def _times(burn: float | None) -> str:
    return "-" if burn is None else f"{burn:.2g}x" if burn < 10 else f"{burn:.0f}x"
