"""``tailcut export prometheus-rules``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailcut.cli.console import write
from tailcut.cli.options import ManifestPaths, Settings, manifest_paths
from tailcut.manifest.host import HostManifest, load_host
from tailcut.observe.alerts.prometheus_rules import Subject, rules_text
from tailcut.observe.latency_figures import LatencyFigures, Objective

Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", show_default="stdout", help="File to write.")
]


def prometheus_rules(manifest: ManifestPaths = None, settings: Settings = None, output: Output = None) -> None:
    """Write recording and alert rules for Prometheus, from the SLOs and thresholds of the manifest."""
    host = load_host(manifest_paths(manifest), overrides=settings or (), keep_unset=True)
    text = rules_text(host.observe.alerts, _subject(host))
    if output is None:
        write(text.rstrip("\n"))
    else:
        output.write_text(text, encoding="utf-8")


def _subject(host: HostManifest) -> Subject:
    """Return the objectives as the servers count them.

    Raises:
        TailcutError: a model's manifest cannot be read.
    """
    objectives: list[Objective] = []
    has_features = False
    for hosted in host.models:
        if hosted.manifest is None:
            assert hosted.error is not None
            raise hosted.error
        deployment = hosted.manifest.deployment
        figures = LatencyFigures()
        figures.set_objectives(deployment.slo.latency, deployment.slo.errors)
        objectives += figures.objectives
        has_features |= bool(deployment.features.groups)
    return Subject(objectives, has_features)
