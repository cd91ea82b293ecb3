"""``tailcut export``: what other tools are given to watch a server with."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tailcut.cli.console import write
from tailcut.cli.options import ManifestPaths, Settings, examples, load_host, manifest_paths


def register(app: typer.Typer) -> None:
    """Add the group of commands to the application."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
    group.command("grafana", epilog=examples(("tailcut export grafana > dashboard.json", "for Grafana's import")))(
        grafana
    )
    app.add_typer(group, name="export", help="Write a Grafana dashboard for the server's metrics.")


def grafana(
    manifest: ManifestPaths = None,
    settings: Settings = None,
    title: Annotated[str, typer.Option("--title", metavar="TEXT", help="Title of the dashboard.")] = "",
) -> None:
    """Write a Grafana dashboard (JSON) to stdout: SLOs, stages, batches, caches, executors.

    It asks for a Prometheus data source when it is imported, and shows all models that the data source knows.
    """
    from tailcut.report.monitoring.grafana import dashboard

    host = load_host(manifest_paths(manifest), settings)
    deployments = [each.manifest.deployment for each in host.models if each.manifest is not None]
    names = ", ".join(each.name for each in deployments)
    write(json.dumps(dashboard(deployments, title or f"tailcut: {names}"), indent=2))
