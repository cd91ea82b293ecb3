"""Makes the alerts of a host from its manifest."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Mapping, Sequence

from tailcut.errors import StartError
from tailcut.manifest.host import HostManifest
from tailcut.observe.alerts.evaluation import MovedColumns
from tailcut.observe.alerts.evaluator import Alerts
from tailcut.observe.alerts.probes import Probes
from tailcut.observe.alerts.webhook import Target, Webhook, read_secret
from tailcut.observe.drift.state import ColumnState
from tailcut.observe.drift_sink import DriftSink
from tailcut.observe.history.recorder import HistoryRecorder
from tailcut.system.machine import memory_bytes


def open_alerts(
    manifest: HostManifest,
    recorder: HistoryRecorder,
    models: Callable[[], Collection[str]],
    moved: Callable[[], Sequence[MovedColumns]],
) -> Alerts:
    """Return the alerts of a host; they are evaluated from their ``start`` on.

    Args:
        recorder: of the history; without a file nothing is known of the time before the start, and no alarm is kept.
        models: names of the models that are served, or about to be; called on the event loop.
        moved: what has drifted; called in the thread of the alerts.

    Raises:
        StartError: the webhook's secret cannot be read.
        ManifestError: it is none.
    """
    settings, port = manifest.observe.alerts, manifest.server.port
    history = recorder.history
    return Alerts(
        settings,
        Probes().read,
        models,
        moved=moved,
        history=recorder.own_history,
        state_file=None
        if history is None
        else history.path.with_name(f"{history.path.stem}.alerts-{manifest.name}-{port}.json"),
        webhook=Webhook(_target(manifest)) if settings.webhook else None,
        labels={
            "server": manifest.name,
            "host": socket.gethostname(),
            "port": str(port),
        },
        memory_bytes=memory_bytes(),
    )


def check_webhook(manifest: HostManifest) -> None:
    """See whether the webhook's secret can be read.

    Raises:
        StartError: it cannot.
        ManifestError: it is none.
    """
    if manifest.observe.alerts.enabled and manifest.observe.alerts.webhook:
        _target(manifest)


def moved_columns(drift: DriftSink, limits: Mapping[str, float]) -> list[MovedColumns]:
    """Return what the detectors of models say that have seen enough to judge; from any thread.

    Args:
        limits: population stability index that alarms, by model.
    """
    found = []
    for model, limit in limits.items():
        state = drift.state(model)
        columns = [] if state is None else sorted((each for each in state.columns if each.drifting), key=_by_effect)
        if state is not None and (columns or state.is_judged):
            effect = columns[0].psi if columns else 0.0
            found.append(MovedColumns(model, [each.name for each in columns], effect, limit))
    return found


def _by_effect(column: ColumnState) -> float:
    return -column.psi


def _target(manifest: HostManifest) -> Target:
    settings = manifest.observe.alerts
    if settings.secret_env:
        where = f"the environment variable {settings.secret_env} (observe.alerts.secret_env)"
        text = os.environ.get(settings.secret_env)
        if text is None:
            raise StartError(f"{where} is not set", hint="set it, or name a file with observe.alerts.secret_file")
    else:
        file = manifest.directory / settings.secret_file
        where = f"{file} (observe.alerts.secret_file)"
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StartError(f"{where} cannot be read: {error}", hint="correct the path or its permissions") from None
    return Target(settings.webhook, read_secret(text, where), settings.allow_private)
