"""``tailcut export``: what other tools are given to watch a server with."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tailcut.cli._export_rules import Output, check_output, deliver, prometheus_rules
from tailcut.cli.options import ManifestPaths, Settings, examples, load_host, manifest_paths

_RULES = (
    ("tailcut export prometheus-rules > tailcut.rules.yml", "rules for ./tailcut.toml"),
    ("tailcut export prometheus-rules -m host.toml -o tailcut.rules.yml", "for all models of a host"),
)


def register(app: typer.Typer) -> None:
    """Add the group of commands to the application."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
    group.command("grafana", epilog=examples(("tailcut export grafana > dashboard.json", "for Grafana's import")))(
        grafana
    )
    group.command("prometheus-rules", epilog=examples(*_RULES))(prometheus_rules)
    app.add_typer(group, name="export", help="Write a Grafana dashboard, or alert rules for Prometheus.")


def grafana(
    manifest: ManifestPaths = None,
    settings: Settings = None,
    title: Annotated[str, typer.Option("--title", metavar="TEXT", help="Title of the dashboard.")] = "",
    output: Output = None,
) -> None:
    """Write a Grafana dashboard (JSON): SLOs, stages, batches, caches, executors.

    It asks for a Prometheus data source when it is imported, and shows all models that the data source knows.
    """
    from tailcut.report.monitoring.grafana import dashboard

    check_output(output)
    host = load_host(manifest_paths(manifest), settings)
    deployments = [each.manifest.deployment for each in host.models if each.manifest is not None]
    names = ", ".join(each.name for each in deployments)
    deliver(json.dumps(dashboard(deployments, title or f"tailcut: {names}"), indent=2) + "\n", output)
