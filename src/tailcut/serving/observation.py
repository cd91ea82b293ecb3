"""What observes a host: metrics, traces, drift and live figures; history and alerts where they are on."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tailcut.errors import StartError
from tailcut.manifest.host import HostManifest
from tailcut.observe.alerts.evaluation import MovedColumns
from tailcut.observe.alerts.evaluator import AlertEvaluator
from tailcut.observe.alerts.probes import SystemProbes
from tailcut.observe.alerts.webhook import Webhook, WebhookTarget, read_secret
from tailcut.observe.drift_sink import DriftSink
from tailcut.observe.exposition import Exposition, ModelSeries, process_samples
from tailcut.observe.history_recorder import HistoryRecorder
from tailcut.observe.live.figures import KeptRequest, ModelAbout, RequestDetail
from tailcut.observe.live.live import LiveFigures, alert_figures, drift_figures, kept_requests, request_detail
from tailcut.observe.sample import Source
from tailcut.observe.traces.kept import Ring
from tailcut.serving.engine import Engine
from tailcut.serving.host_state import HostState
from tailcut.serving.tracing import HostTraces, check_export
from tailcut.system.machine import memory_bytes

_REQUESTS_PER_S = 2_000
"""That are looked through: with many traces in memory the list is made less often than once a second."""


class _KeptRequests:
    """The slowest and the failed requests that are held, by model."""

    def __init__(self, ring: Ring, wall_s: Callable[[], float] = time.time) -> None:
        self._ring = ring
        self._wall_s = wall_s
        self._due_s = 0.0
        self._found: Mapping[str, Sequence[KeptRequest]] = {}

    def __call__(self) -> Mapping[str, Sequence[KeptRequest]]:
        now_s = self._wall_s()
        if not 0 <= self._due_s - now_s < 3600:  # a clock that was set back must not stop it
            self._due_s = now_s + len(self._ring) / _REQUESTS_PER_S
            self._found = kept_requests(self._ring, now_s)
        return self._found


OFF = "off"


def history_path(manifest: HostManifest, *, by_default: bool) -> Path | None:
    """Return the file of a host's history; None where it keeps none.

    Args:
        by_default: whether it keeps one where the manifest names no file.
    """
    named = manifest.observe.history.path
    if named == OFF or not (named or by_default):
        return None
    return manifest.history_file


def moved_columns(drift: DriftSink, limits: Mapping[str, float]) -> list[MovedColumns]:
    """Return what the detectors of models say that have seen enough to judge; from any thread.

    Args:
        limits: population stability index that alarms, by model.
    """
    found = []
    for model, limit in limits.items():
        state = drift.state(model)
        if state is None:
            continue
        columns = sorted((each for each in state.columns if each.drifting), key=lambda column: -column.psi)
        if columns or state.is_judged:
            effect = columns[0].psi if columns else 0.0
            found.append(MovedColumns(model, [each.name for each in columns], effect, limit))
    return found


def _target(manifest: HostManifest) -> WebhookTarget:
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
    return WebhookTarget(settings.webhook, read_secret(text, where), settings.allow_private)


def check_observation(manifest: HostManifest) -> None:
    """See whether a server could observe its models as the manifest says; opens and asks nothing.

    Raises:
        TailcutError: the webhook's secret cannot be read, or the collector cannot be used.
    """
    if manifest.observe.alerts.enabled and manifest.observe.alerts.webhook:
        _target(manifest)
    check_export(manifest)


def unwritable(manifest: HostManifest) -> Iterator[tuple[str, str]]:
    """Yield what a server could not write, and would go on without: the model (empty: the host), and why."""
    path = history_path(manifest, by_default=True)
    if path is not None and (why := why_unwritable_file(path)):
        yield "", f"the history at {path} cannot be written ({why}); set observe.history.path to a file that can be"
    for hosted in manifest.models:
        if hosted.manifest is None or not (named := hosted.manifest.deployment.request_log.path):
            continue
        if why := why_unwritable(hosted.manifest.directory / named):
            yield (
                hosted.name,
                f"the request log cannot be written ({why}); set request_log.path to a folder that can be",
            )


class Observation:
    """Starts and stops what observes a host's models. Owned by the event loop.

    Args:
        engines: the models by name; more may come.
        about: what the host knows of each of its models, those included that could not be loaded.
        state: of the host as a whole.
        samples: what /metrics shows of the host itself.

    Attributes:
        exposition: what /metrics shows.
        traces: of requests that are kept.
        drift: what has drifted, by model.
        live: what /ui shows.
        history: writes a row per minute; None where none is kept and no alerts are evaluated.
        alerts: evaluates them every minute; None where that is off.
    """

    def __init__(
        self,
        manifest: HostManifest,
        shared: HostState,
        engines: Mapping[str, Engine],
        *,
        about: Callable[[], Mapping[str, ModelAbout]],
        state: Callable[[], str],
        samples: Source,
    ) -> None:
        self._manifest = manifest
        self._engines = engines
        self._about = about
        self.drift = shared.drift
        self.traces = HostTraces(manifest, shared, engines)
        self.exposition = Exposition(self._series, shared.loop_lag, [samples, process_samples, self.traces.samples])
        self.live = LiveFigures(self._series, about, state, shared.loop_lag)
        self.live.drift = lambda name: drift_figures(self.drift.state(name))
        if self.traces.sink is not None:
            self.live.kept, self.live.request = _KeptRequests(self.traces.sink.ring), self._request
        self.history: HistoryRecorder | None = None
        self.alerts: AlertEvaluator | None = None

    def begin(self, *, in_application: bool) -> None:
        """Keep a history and evaluate alerts from the start on, unless the manifest switches them off.

        Args:
            in_application: whether the process is another application's: then only a history that the manifest names is
                kept, and alerts with it, and traces go to the application's OpenTelemetry provider where it has one.

        Raises:
            TailcutError: the webhook's secret cannot be read.
        """
        self.traces.in_application = in_application
        path = history_path(self._manifest, by_default=not in_application)
        settings, kept = self._manifest.observe.alerts, self._manifest.observe.history
        has_alerts = settings.enabled and (not in_application or path is not None or bool(settings.webhook))
        if path is None and not has_alerts:
            return
        self.history = HistoryRecorder(
            path, self._series, self.exposition.families, keep_s=kept.keep_s, size_bytes=kept.size_bytes
        )
        self.exposition.add(self.history.samples)
        if has_alerts:
            self._evaluate_alerts(self.history)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to export, to write and to evaluate.

        Raises:
            TailcutError: the collector cannot be used.
        """
        self.traces.start()
        if self.history is not None:
            self.history.start(loop)
        if self.alerts is not None:
            self.alerts.start()

    async def stop(self, timeout_s: float) -> None:
        """Write and export what is there, for at most ``timeout_s``; requests have ended."""
        self.live.stop()
        if self.history is not None:
            self.history.stop()
        closing = [each.close for each in (self.drift, self.history, self.alerts) if each is not None]
        await asyncio.gather(self.traces.close(), *(asyncio.to_thread(close, timeout_s) for close in closing))

    def _evaluate_alerts(self, recorder: HistoryRecorder) -> None:
        """Evaluate alerts; without a file nothing is known of the time before the start, and no alarm is kept."""
        manifest, settings, history = self._manifest, self._manifest.observe.alerts, recorder.history
        port, state_file = manifest.server.port, None
        if history is not None:
            state_file = history.path.with_name(f"{history.path.stem}.alerts-{manifest.name}-{port}.json")
        alerts = self.alerts = AlertEvaluator(
            settings,
            SystemProbes().read,
            self._served,
            moved=self._moved,
            history=recorder.own_history,
            state_file=state_file,
            webhook=Webhook(_target(manifest)) if settings.webhook else None,
            labels={"server": manifest.name, "host": socket.gethostname(), "port": str(port)},
            memory_bytes=memory_bytes(),
        )
        recorder.listeners.append(alerts)
        if "drift" not in settings.off:
            self.drift.alarm_level = logging.INFO
        self.live.alerts = lambda: alert_figures(alerts.active)
        self.exposition.add(alerts.samples)

    def _request(self, key: str) -> RequestDetail | None:
        found = self.traces.find(key)
        return None if found is None else request_detail(found)

    def _series(self) -> Iterable[ModelSeries]:
        for name, engine in self._engines.items():
            yield ModelSeries(name, engine.recorder, engine.samples)

    def _served(self) -> Collection[str]:
        """Return the names of the models that are not unloaded."""
        return [name for name, each in self._about().items() if each.state != "unloaded"]

    def _moved(self) -> Sequence[MovedColumns]:
        """Return what has drifted; called in the thread of the alerts."""
        limits = {name: engine.deployment.drift.psi for name, engine in list(self._engines.items())}
        return moved_columns(self.drift, limits)


# -- Folders that can be written ---------------------------------------------------------------------------------------


def why_unwritable(folder: Path) -> str:
    """Return why no file can be created in a folder; empty where one can. Nothing is left there.

    If the folder does not exist, its nearest existing parent decides: the folder would be created there.
    """
    nearest = next((place for place in (folder, *folder.parents) if place.exists()), folder)
    try:
        with tempfile.TemporaryFile(dir=nearest):
            return ""
    except OSError as error:
        return f"{nearest}: {error.strerror or error}"


def why_unwritable_file(path: Path) -> str:
    """Return why a file can be neither written nor created; empty where it can. Nothing is left there.

    An existing file is not opened: closing it would give up locks that this process may have on it (fcntl(2)).
    """
    if path.is_dir():
        return f"{path}: {os.strerror(errno.EISDIR)}"
    if path.exists():
        return "" if os.access(path, os.W_OK) else f"{path}: {os.strerror(errno.EACCES)}"
    return why_unwritable(path.parent)
