"""``tailcut serve``: serve one model or several."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from tailcut.cli.console import exit_code
from tailcut.cli.options import Settings, examples, load_host, manifest_option, manifest_paths
from tailcut.errors import TailcutError
from tailcut.manifest.host import HostManifest
from tailcut.transport.lifecycle import serve as run


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "serve",
        epilog=examples(
            ("tailcut serve", "serve ./tailcut.toml"),
            ("tailcut serve models/", "every model in a subfolder of models/, or what models/host.toml names"),
            ("tailcut serve -m a/tailcut.toml -m b/tailcut.toml", "two models in one server"),
            ("tailcut serve --port 0 --variant onnx", "a free port, one variant"),
            ("tailcut serve --set features.cache=off --set batching.mode=off", "with two levers off"),
        ),
    )(serve)


def serve(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="PATH",
            help="A manifest or its folder, a host.toml, or a folder of models.",
            show_default="./tailcut.toml",
        ),
    ] = None,
    manifest: Annotated[
        list[Path] | None,
        typer.Option(
            "--manifest",
            "-m",
            metavar="PATH",
            show_default="./tailcut.toml",
            help="The manifest, or the folder of its tailcut.toml; repeatable: several models in one server. "
            + escape("[env: TAILCUT_MANIFEST]"),
        ),
    ] = None,
    settings: Settings = None,
    host: Annotated[str | None, manifest_option("server.host")] = None,
    port: Annotated[str | None, manifest_option("server.port")] = None,
    variant: Annotated[str | None, manifest_option("serve.variant")] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Serve the variant although the gate refused its answers: serve.force = true."),
    ] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Refuse a model that was judged with other features than it gets: serve.strict = true."
        ),
    ] = False,
) -> None:
    """Serve one model or several until SIGTERM or Ctrl-C.

    Ready (GET /v2/health/ready answers 200) once every batch size has been warmed up. On SIGTERM the server drains.
    Of several models each setting is set in all, but for those that begin with server: they belong to the server.
    """
    if path is not None and manifest:
        raise typer.BadParameter(f"give {path} or --manifest, not both; repeat --manifest for several models")
    paths = [path] if path is not None else manifest_paths(manifest)
    switches = ("serve.force=true" if force else None, "serve.strict=true" if strict else None)
    raise typer.Exit(_run(load_host(paths, settings, host, port, variant, *switches)))


def _run(loaded: HostManifest) -> int:
    """Serve, and return the exit code. A failed start is logged in the format of ``server.log``."""
    try:
        code = run(loaded)
    except TailcutError as error:
        if loaded.server.log == "text":
            raise
        logging.getLogger("tailcut.server").critical("%s", error, extra={"code": error.code})
        code = exit_code(error)
    return code
