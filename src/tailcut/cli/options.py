"""Options that commands share, and flags that are made from the manifest's definition.

Whatever sends requests, plays them or compares them names the same thing by the same flag, with the same error.

from tailcut.cli.options import ManifestPaths, ModelName, Settings, examples, load_subject, manifest_option

def register(app: typer.Typer) -> None:
    app.command("serve", epilog=examples(("tailcut serve", "serve ./tailcut.toml")))(serve)

def serve(
    manifest: ManifestPaths = None,
    model: ModelName = "",
    settings: Settings = None,
    port: Annotated[str | None, manifest_option("server.port")] = None,
) -> None:
    deployment = load_subject(manifest, model, settings, port).manifest.deployment
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.markup import escape

from tailcut.cli.console import note, usage
from tailcut.common.redaction import command_without_secrets
from tailcut.common.slo import Objectives, parse_duration_s, parse_objectives
from tailcut.errors import LoadTestError, ManifestError

if TYPE_CHECKING:
    from tailcut.manifest.host import HostManifest
    from tailcut.manifest.subject import CommandSubject

DEFAULT_MANIFEST = Path("tailcut.toml")

AppFolder = Annotated[
    Path, typer.Option("--app-dir", metavar="FOLDER", help="Folder in which the application is imported and runs.")
]
ManifestPaths = Annotated[
    list[Path] | None,
    # Not typer's variable: it would take a path with a space for two.
    typer.Option(
        "--manifest",
        "-m",
        metavar="PATH",
        show_default="./tailcut.toml",
        help="A manifest or its folder, a host.toml, or a folder of models; repeatable, for the models that compute "
        f"features. {escape('[env: TAILCUT_MANIFEST]')}",
    ),
]
ModelName = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="NAME",
        show_default="the one that computes features for no other",
        help="Of several models the one that the command is about.",
    ),
]

FieldPairs = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="PILOT.PATH=OUTPUT",
        help="Fields of the replies that belong together; repeatable. A prediction that is a bare value is called "
        "prediction.",
        show_default="fields with equal names",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Set any key of the manifest, for example features.cache=off; repeatable. Of several models "
        "NAME:PATH=VALUE sets one.",
    ),
]


def _refuse_negative(value: int) -> int:
    if value < 0:
        raise ManifestError(f"--seed is {value}", hint="give a whole number of at least 0")
    return value


Warmup = Annotated[str, typer.Option(help="Load before the measurement; not counted.")]
Method = Annotated[str, typer.Option(help="HTTP method.", show_default="POST with payloads, else GET")]
Headers = Annotated[list[str] | None, typer.Option(metavar="'NAME: VALUE'", help="Request header; repeatable.")]
Timeout = Annotated[str, typer.Option(help="A request fails this long after its intended send time.")]
ServicePath = Annotated[
    str,
    typer.Option(
        "--path",
        help="Path that receives the requests, for example /predict.",
        show_default="the URL's, or the only suitable route",
    ),
]
ReadyTime = Annotated[str, typer.Option("--ready", help="Maximum time for a server to start.")]
Seed = Annotated[int, typer.Option(callback=_refuse_negative, help="Random seed: the same one gives the same run.")]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the whole result as JSON.")]
HtmlFile = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the result as an HTML page.")]
ResultFile = Annotated[
    Path | None, typer.Option("--from", metavar="FILE", help="Show a result written by --json; runs nothing.")
]


def payloads_option(default: str, *, takes_log: bool = True) -> Any:
    """Make the flag of the request bodies.

    Args:
        default: says what is sent without it.
        takes_log: whether they may be a request log.
    """
    files = f"a .jsonl file with one per line{', a request log' if takes_log else ''}"
    return typer.Option(
        "--payloads",
        metavar="SOURCE",
        help=f"Request bodies: {files}, or module:callable (seed) that yields them.",
        show_default=default,
    )


def rate_option(default: str) -> Any:
    """Make the flag of one rate."""
    return typer.Option("--rate", help="Requests per second.", show_default=default)


def slo_option(default: str) -> Any:
    """Make the flag of the objectives."""
    return typer.Option(
        "--slo", metavar="OBJECTIVES", help="SLO, for example p95=200ms,p99=1s,errors=0.1%.", show_default=default
    )


def manifest_option(path: str, *flags: str) -> Any:
    """Make a named flag from a key of the manifest: its help, variable and default are the schema's.

    The flag's value arrives as the override "path=value" (None where it was not given): hand it to
    ``load_subject``. Annotate it as ``str | None``.

    Args:
        path: dotted path of the key, such as "server.port".
        flags: names of the flag; the key's own name ("--port") where none is given.
    """
    from tailcut.manifest.keys import find, to_toml, variable

    key = find(path)
    name = variable(path.split("."))
    default = to_toml(key.default).strip('"')
    return typer.Option(
        *(flags or (f"--{key.name.replace('_', '-')}",)),
        # The variable is named, not read here: the loader reads it, so that its origin is not taken for a flag.
        help=f"{key.description[:1].upper()}{key.description[1:]}. {escape(f'[env: {name}]')}",
        metavar=key.name.upper(),
        show_default=default or "empty",
        parser=_override_parser(path),
    )


def manifest_paths(given: Sequence[Path] | None) -> list[Path]:
    """Return what ``--manifest`` names, else the variable, else the manifest in the working folder."""
    return list(given) if given else [Path(os.environ.get("TAILCUT_MANIFEST") or DEFAULT_MANIFEST)]


def load_subject(
    given: Sequence[Path] | None,
    model: str,
    settings: Sequence[str] | None,
    *named: str | None,
    keep_unset: bool = False,
) -> CommandSubject:
    """Load the model that a command is about, and those that compute its features.

    Named flags set this model only, and win over ``--set``.

    Args:
        given: what ``--manifest`` names.
        model: what ``--model`` names.

    Raises:
        ManifestError: see ``tailcut.manifest.subject.find_subject``.
    """
    from tailcut.manifest.subject import find_subject

    own = [one for one in named if one is not None]
    return find_subject(manifest_paths(given), model=model, overrides=settings or (), own=own, keep_unset=keep_unset)


def load_host(paths: Sequence[Path], settings: Sequence[str] | None, *named: str | None) -> HostManifest:
    """Load what a server serves, with ``--set`` texts and named flags over it; a named flag wins over ``--set``.

    Raises:
        ManifestError: see ``tailcut.manifest.host.load_host``.
    """
    from tailcut.manifest import host

    overrides = [*(settings or ()), *(one for one in named if one is not None)]
    return host.load_host(paths, overrides=overrides)


def examples(*pairs: tuple[str, str]) -> str:
    """The end of a command's help: real command lines, each with what it does.

    Args:
        pairs: (command line, what it does), in the order in which people would want them.
    """
    lines = [f"{escape(line)}  [dim]# {escape(what)}[/dim]" for line, what in pairs]
    # Typer joins the lines of a paragraph; a paragraph each keeps a line each.
    return "\n\n".join(["[bold]Examples:[/bold]", *lines])


def _override_parser(path: str) -> Any:
    def override(text: str) -> str:
        return text if text.startswith(f"{path}=") else f"{path}={text}"

    return override


def command_line() -> str:
    """Return the command line without its secrets, for the record of a result."""
    return shlex.join(command_without_secrets(["tailcut", *sys.argv[1:]]))


# -- Values of flags ---------------------------------------------------------------------------------------------------


def seconds(flag: str, text: str) -> float:
    """Read a duration; an error names the flag."""
    with usage(flag):
        return parse_duration_s(text)


def objectives(text: str) -> Objectives:
    """Read --slo. Failures are always judged: by what a manifest allows where the text does not say."""
    if not text:
        return Objectives()
    from tailcut.manifest import Slo

    with usage("--slo"):
        found = parse_objectives(text)
    if found.errors is None:
        found = msgspec.structs.replace(found, errors=float(Slo().errors))
        note(f"SLO: {found} (default for errors; set another share with errors=... in --slo)")
    return found


def read_headers(texts: Sequence[str] | None) -> tuple[tuple[str, str], ...]:
    """Read texts "Name: value".

    Raises:
        LoadTestError: one has no colon or no name.
    """
    found = []
    for text in texts or ():
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise LoadTestError(f"the header is {text!r}", hint="write it as --header 'Name: value'")
        found.append((name.strip(), value.strip()))
    return tuple(found)


def numbers(flag: str, text: str, *, least: float = 0.0, whole: bool = False) -> tuple[float, ...]:
    """Read numbers with commas between.

    Raises:
        LoadTestError: one is none, is infinite, is below ``least`` or, where they must be, is not whole.
    """
    try:
        found = tuple(float(part) for part in text.split(","))
        if not all(least <= one < inf and not (whole and one % 1) for one in found):
            raise ValueError
    except ValueError:
        kind = "whole numbers" if whole else "finite numbers"
        raise LoadTestError(
            f"{flag} is {text!r}", hint=f"write {kind} of at least {least:g}, with commas between, such as {flag} 1,2,4"
        ) from None
    return found


def one_of(flag: str, text: str, *known: str) -> str:
    """Return a word that a flag may have.

    Raises:
        LoadTestError: it is another one.
    """
    if text not in known:
        raise LoadTestError(f"{flag} is {text!r}", hint=f"use {', '.join(known[:-1])} or {known[-1]}")
    return text
