"""Whether a host evaluates alerts, with what, and where they are sent."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from tailcut.errors import StartError
from tailcut.manifest.host import HostManifest
from tailcut.observe.alerts.evaluator import Alerts, Served, Sources
from tailcut.observe.alerts.evidence import MovedColumns, SlowRequest
from tailcut.observe.alerts.probes import Probes, open_gpu_reader
from tailcut.observe.alerts.standard_webhooks import read_secret
from tailcut.observe.alerts.webhook import Target, Webhook
from tailcut.observe.drift_sink import DriftSink
from tailcut.observe.history import History
from tailcut.observe.traces.sink import TraceSink
from tailcut.serving.history import server_key
from tailcut.system.machine import memory_bytes


def open_alerts(
    manifest: HostManifest,
    history: History | None,
    models: Callable[[], Iterable[str]],
    moved: Callable[[], Sequence[MovedColumns]],
    slow: Callable[[], Sequence[SlowRequest]],
    served: Callable[[], Served],
    environment: Mapping[str, str] | None = None,
) -> Alerts:
    """Return the alerts of a host; they are evaluated from their ``start`` on.

    Args:
        history: None: nothing is known of the time before the start, and no alarm is kept over it.
        models: names of the models; called on the event loop.
        moved: what has drifted; called in the thread of the alerts.
        slow: requests of which traces are kept; called on the event loop.
        served: models that are served, with their feature groups; called on the event loop.

    Raises:
        StartError: the webhook's secret cannot be read.
        ManifestError: it is none.
    """
    settings = manifest.observe.alerts
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = Probes(open_gpu=open_gpu_reader).read
    return Alerts(
        settings,
        Sources(probe, history, server_key(manifest), slow=slow, moved=moved, served=served),
        state_file=None if history is None else _state_file(manifest, history.path),
        webhook=Webhook(_target(manifest, environment)) if settings.webhook else None,
        labels={
            "server": manifest.observe.history.server or manifest.name,
            "host": socket.gethostname(),
            "port": str(manifest.server.port),
        },
        models=models,
        memory_bytes=memory_bytes(),
        most_descriptors=float("inf") if most == resource.RLIM_INFINITY else most,
    )


def check_webhook(manifest: HostManifest) -> None:
    """See whether the webhook's secret can be read.

    Raises:
        StartError: it cannot.
        ManifestError: it is none.
    """
    if manifest.observe.alerts.enabled and manifest.observe.alerts.webhook:
        _target(manifest, None)


def slow_requests(traces: TraceSink | None) -> list[SlowRequest]:
    """Return the requests of which traces are held; on the event loop."""
    if traces is None:
        return []
    return [
        SlowRequest(
            each.model,
            f"{each.trace.trace_id:032x}",
            (each.start_ns + each.total_ns + each.wall_ns) / 1e9,
            each.total_ns / 1e6,
        )
        for each in traces.ring
    ]


def moved_columns(drift: DriftSink, limits: Mapping[str, float]) -> list[MovedColumns]:
    """Return what the detectors of models say that have seen enough to judge; from any thread.

    Args:
        limits: population stability index that alarms, by model.
    """
    found = []
    for model, limit in limits.items():
        state = drift.state(model)
        columns = [column for column in state.columns if column.drifting] if state is not None else []
        if state is not None and not columns and state.is_judged:
            found.append(MovedColumns(model, [], 0.0, 0.0, limit))
        if columns:
            columns.sort(key=lambda column: -column.psi)
            since_s = min((column.since_s for column in columns if column.since_s is not None), default=0.0)
            found.append(MovedColumns(model, [each.name for each in columns], since_s, columns[0].psi, limit))
    return found


def _state_file(manifest: HostManifest, history: Path) -> Path:
    """Return a file beside the history, which servers may share."""
    return history.with_name(f"{history.stem}.alerts-{server_key(manifest).replace(':', '-')}.json")


def _target(manifest: HostManifest, environment: Mapping[str, str] | None) -> Target:
    settings = manifest.observe.alerts
    if settings.secret_env:
        where = f"the environment variable {settings.secret_env} (observe.alerts.secret_env)"
        text = (os.environ if environment is None else environment).get(settings.secret_env)
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
