"""``tailcut export``: what other tools are given to watch a server with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tailcut.cli.console import check_files, note, usage, write
from tailcut.cli.options import ManifestPaths, Settings, examples, load_host, manifest_paths
from tailcut.observe.latency_figures import LatencyFigures, Objective
from tailcut.report.monitoring.grafana import dashboard
from tailcut.report.monitoring.prometheus_rules import rules_text
from tailcut.system.atomic_files import write_file

Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", show_default="stdout", help="File to write.")
]
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
    with usage("--output"):
        check_files(output)
    host = load_host(manifest_paths(manifest), settings)
    deployments = [each.manifest.deployment for each in host.models if each.manifest is not None]
    names = ", ".join(each.name for each in deployments)
    _deliver(json.dumps(dashboard(deployments, title or f"tailcut: {names}"), indent=2) + "\n", output)


def prometheus_rules(manifest: ManifestPaths = None, settings: Settings = None, output: Output = None) -> None:
    """Write recording and alert rules for Prometheus, from the SLOs and thresholds of the manifest."""
    with usage("--output"):
        check_files(output)
    host = load_host(manifest_paths(manifest), settings)
    deployments = [hosted.loaded().deployment for hosted in host.models]
    objectives: list[Objective] = []
    for deployment in deployments:
        figures = LatencyFigures()  # the servers' own, so that the rules name what they count
        figures.set_objectives(deployment.slo.latency, deployment.slo.errors)
        objectives += figures.objectives
    has_features = any(deployment.features.groups for deployment in deployments)
    _deliver(rules_text(host.observe.alerts, objectives, has_features=has_features), output)


def _deliver(text: str, output: Path | None) -> None:
    """Write a text to a file, or to stdout."""
    if output is None:
        write(text.rstrip("\n"))
        return
    write_file(output, text.encode())
    note(f"wrote {output}")
