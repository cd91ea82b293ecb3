"""Options that commands share, and flags that are made from the manifest's definition.

from tailcut.cli.options import ManifestPath, Settings, examples, load_manifest, manifest_option

def register(app: typer.Typer) -> None:
    app.command("serve", epilog=examples(("tailcut serve", "serve ./tailcut.toml")))(serve)

def serve(
    manifest: ManifestPath = DEFAULT_MANIFEST,
    settings: Settings = None,
    port: Annotated[str | None, manifest_option("server.port")] = None,
) -> None:
    deployment = load_manifest(manifest, settings, port).deployment
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

if TYPE_CHECKING:
    from tailcut.manifest import Manifest
    from tailcut.manifest.host import HostManifest

DEFAULT_MANIFEST = Path("tailcut.toml")

AppFolder = Annotated[
    Path, typer.Option("--app-dir", metavar="FOLDER", help="Folder in which the application is imported and runs.")
]
ManifestPath = Annotated[
    Path,
    typer.Option(
        "--manifest",
        "-m",
        envvar="TAILCUT_MANIFEST",
        metavar="PATH",
        show_default="./tailcut.toml",
        help="The manifest, or the folder of its tailcut.toml.",
    ),
]

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Set any key of the manifest, for example features.cache=off; repeatable.",
    ),
]


def manifest_option(path: str, *flags: str) -> Any:
    """Make a named flag from a key of the manifest: its help, variable and default are the schema's.

    The flag's value arrives as the override "path=value" (None where it was not given): hand it to
    ``load_manifest``. Annotate it as ``str | None``.

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


def load_manifest(path: Path, settings: Sequence[str] | None, *named: str | None, keep_unset: bool = False) -> Manifest:
    """Load the manifest with ``--set`` texts and named flags over it; a named flag wins over ``--set``.

    Raises:
        ManifestError: see ``tailcut.manifest.load``.
    """
    from tailcut.manifest import load

    return load(path, overrides=_overrides(settings, named), keep_unset=keep_unset)


def load_host(paths: Sequence[Path], settings: Sequence[str] | None, *named: str | None) -> HostManifest:
    """Load what a server serves; see ``load_manifest``.

    Raises:
        ManifestError: see ``tailcut.manifest.host.load_host``.
    """
    from tailcut.manifest import host

    return host.load_host(paths, overrides=_overrides(settings, named))


def _overrides(settings: Sequence[str] | None, named: Sequence[str | None]) -> list[str]:
    """Return ``--set`` texts, and behind them the named flags that were given."""
    return [*(settings or ()), *(one for one in named if one is not None)]


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
