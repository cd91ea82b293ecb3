"""``tailcut export prometheus-rules``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailcut.cli.console import note, usage, write
from tailcut.cli.options import ManifestPaths, Settings, load_host, manifest_paths

if TYPE_CHECKING:
    from tailcut.manifest.host import HostManifest
    from tailcut.report.monitoring.prometheus_rules import Subject

Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", show_default="stdout", help="File to write.")
]


def prometheus_rules(manifest: ManifestPaths = None, settings: Settings = None, output: Output = None) -> None:
    """Write recording and alert rules for Prometheus, from the SLOs and thresholds of the manifest."""
    from tailcut.report.monitoring.prometheus_rules import rules_text

    check_output(output)
    host = load_host(manifest_paths(manifest), settings)
    deliver(rules_text(host.observe.alerts, _subject(host)), output)


def check_output(output: Path | None) -> None:
    """Refuse before the work what could not be written after it."""
    if output is not None:
        from tailcut.load.files import prepare

        with usage("--output"):
            prepare(output)


def deliver(text: str, output: Path | None) -> None:
    """Write a text to a file, or to stdout."""
    if output is None:
        write(text.rstrip("\n"))
        return
    from tailcut.system.whole_files import write_file

    write_file(output, text.encode())
    note(f"wrote {output}")


def _subject(host: HostManifest) -> Subject:
    """Return the objectives as the servers count them.

    Raises:
        TailcutError: a model's manifest cannot be read.
    """
    from tailcut.observe.latency_figures import LatencyFigures, Objective
    from tailcut.report.monitoring.prometheus_rules import Subject

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
