"""``tailcut top``: what a server does now, in a terminal."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailcut.cli._load_flags import seconds
from tailcut.cli.console import stdout, write
from tailcut.cli.options import examples
from tailcut.errors import ManifestError, StartError

if TYPE_CHECKING:
    from tailcut.observe.live.figures import Snapshot

_TIMEOUT_S = 5.0
_LONGEST_SAID = 300


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
            _show(_decoded(raw), model)
        if every_s is None:
            return
        sys.stdout.flush()
        time.sleep(every_s)


def _show(snapshot: Snapshot, model: str) -> None:
    from tailcut.cli._top_view import view

    console = stdout()
    console.print(view(snapshot, model))


def _follow(address: str, headers: dict[str, str], model: str, every_s: float) -> None:
    """Show until interrupted; a server that went away is waited for."""
    from rich.live import Live

    from tailcut.cli._top_view import view

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
    from urllib.parse import urlsplit

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
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    try:
        with urlopen(Request(address, headers=headers), timeout=_TIMEOUT_S) as reply:  # noqa: S310 - http(s) only
            raw: bytes = reply.read()
            return raw
    except HTTPError as error:
        raise _refused(address, error.code, error.read(64 * 1024)) from error
    except (OSError, HTTPException, ValueError) as error:
        raise StartError(f"{address} cannot be read: {error}", hint="start the server, or name its address") from error


def _refused(address: str, status: int, body: bytes) -> StartError:
    import msgspec

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
    import msgspec

    from tailcut.observe.live.figures import Snapshot

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
