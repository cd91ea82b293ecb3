"""Options that commands share, and flags that are made from the manifest's definition.

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
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

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
