"""What observes a host: metrics, traces, drift and live figures; history and alerts where they are on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from tailcut.manifest.host import HostManifest
from tailcut.observe.alerts.evaluation import MovedColumns
from tailcut.observe.alerts.evaluator import Alerts
from tailcut.observe.exposition import Exposition, ModelSeries, process_samples
from tailcut.observe.history.recorder import HistoryRecorder
from tailcut.observe.live.figures import ModelAbout
from tailcut.observe.live.live import Live
from tailcut.observe.live.providers import alert_figures
from tailcut.observe.sample import Source
from tailcut.serving.alerts import check_webhook, moved_columns, open_alerts
from tailcut.serving.deployment import Engine
from tailcut.serving.history import history_path
from tailcut.serving.host_state import HostState
from tailcut.serving.live_parts import show_parts
from tailcut.serving.tracing import HostTraces, check_export
from tailcut.system.writable import why_unwritable, why_unwritable_file


def check_observation(manifest: HostManifest) -> None:
    """See whether a server could observe its models as the manifest says; opens and asks nothing.

    Raises:
        TailcutError: the webhook's secret cannot be read, or the collector cannot be used.
    """
    check_webhook(manifest)
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
        self.live = Live(self._series, about, state, shared.loop_lag)
        show_parts(self.live, self.drift, self.traces)
        self.history: HistoryRecorder | None = None
        self.alerts: Alerts | None = None

    def begin_in_server(self) -> None:
        """Keep a history and evaluate alerts from the start on, unless the manifest switches them off.

        Raises:
            TailcutError: the webhook's secret cannot be read.
        """
        self._begin(by_default=True)

    def begin_in_application(self) -> None:
        """As ``begin_in_server``, in a process of others: only a history that the manifest names, and alerts with it.

        Traces go to the application's OpenTelemetry provider, where it has one.

        Raises:
            TailcutError: the webhook's secret cannot be read.
        """
        self._begin(by_default=False)
        self.traces.in_application = True

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

    def _begin(self, *, by_default: bool) -> None:
        path, kept = history_path(self._manifest, by_default=by_default), self._manifest.observe.history
        if path is not None:
            self.history = HistoryRecorder(
                path,
                self._series,
                self.exposition.families,
                keep_s=kept.keep_s,
                size_bytes=kept.size_bytes,
            )
            self.exposition.add(self.history.samples)
        settings = self._manifest.observe.alerts
        if settings.enabled and (by_default or self.history is not None or settings.webhook):
            self._evaluate_alerts()

    def _evaluate_alerts(self) -> None:
        if self.history is None:
            self.history = HistoryRecorder(None, self._series, self.exposition.families, keep_s=0, size_bytes=0)
            self.exposition.add(self.history.samples)
        alerts = self.alerts = open_alerts(self._manifest, self.history, self._served, self._moved)
        self.history.listeners.append(alerts)
        if "drift" not in self._manifest.observe.alerts.off:
            self.drift.alarm_level = logging.INFO
        self.live.alerts = lambda: alert_figures(alerts.state.active)
        self.exposition.add(alerts.samples)

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
