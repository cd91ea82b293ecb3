"""``tailcut serve``: serve the deployment."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from tailcut.cli.console import exit_code
from tailcut.cli.options import DEFAULT_MANIFEST, ManifestPath, Settings, examples, load_manifest, manifest_option
from tailcut.errors import TailcutError


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "serve",
        epilog=examples(
            ("tailcut serve", "serve ./tailcut.toml"),
            ("tailcut serve --port 0 --variant onnx", "a free port, one variant"),
            ("tailcut serve --set features.cache=off --set batching.mode=off", "with two levers off"),
        ),
    )(serve)


def serve(
    manifest: ManifestPath = DEFAULT_MANIFEST,
    settings: Settings = None,
    host: Annotated[str | None, manifest_option("server.host")] = None,
    port: Annotated[str | None, manifest_option("server.port")] = None,
    variant: Annotated[str | None, manifest_option("serve.variant")] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Serve the variant although the gate refused its answers: serve.force = true."),
    ] = False,
) -> None:
    """Serve the deployment until SIGTERM or Ctrl-C.

    Ready (GET /v2/health/ready answers 200) once every batch size has been warmed up. On SIGTERM the server drains.
    """
    loaded = load_manifest(manifest, settings, host, port, variant, "serve.force=true" if force else None)
    from tailcut.transport.lifecycle import serve as run

    try:
        code = run(loaded)
    except TailcutError as error:
        if loaded.deployment.server.log == "text":
            raise
        logging.getLogger("tailcut.server").critical("%s", error, extra={"code": error.code})
        code = exit_code(error)
    raise typer.Exit(code)
