"""One deployment's life: loading, ready, unloaded, draining, stopped; and the counting of every request's one end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from time import perf_counter_ns, time_ns
from typing import Any, Literal

from tailcut import logs
from tailcut.code.digest import few
from tailcut.common.timings import Stage
from tailcut.errors import NotReady, StartError, TailcutError
from tailcut.manifest import Manifest
from tailcut.observe.failures import ModelFailures
from tailcut.observe.path_metrics import IN_FLIGHT, READY, SERVED
from tailcut.observe.recorder import DEVICE_BUSY, ModelSinks, Recorder
from tailcut.observe.request_log import RequestLog, Sampler
from tailcut.observe.sample import Sample
from tailcut.pipeline.pipeline import Pipeline
from tailcut.pipeline.request_context import InFlight, RequestContext
from tailcut.pipeline.streaming import Streams
from tailcut.serving.deployment_loader import Choose, Opened, open_deployment
from tailcut.serving.host_state import HostState
from tailcut.serving.promotion import Follower, Repository
from tailcut.serving.variant_checks import answering_version, tell_code, tell_trust, unjudged
from tailcut.serving.variants import Fallbacks, Variants

log = logging.getLogger("tailcut.server")

State = Literal["loading", "ready", "unloaded", "draining", "failed", "stopped"]

TICK_S = 0.1
"""Between two calls of ``Engine.watch_clients``."""


class Engine:
    """One model, as the protocols use it. Owned by the event loop.

    Args:
        host: state that it shares with the other models of the process.

    Attributes:
        state: "ready" only between a finished warm-up and the start of draining.
        failure: why loading failed, where it did.
        variants: the loaded ones; None where there are none.
        is_new: whether it was found after the start, and never loaded or unloaded since.
        last_version: deployment version of what was served before the latest unload; empty before the first one.
        follower: keeps the deployment on what the registry promotes; None where it serves a named variant.
        say: tells the operator what happened, one line at a time.
    """

    def __init__(self, manifest: Manifest, host: HostState | None = None) -> None:
        self.host = HostState() if host is None else host
        self.sinks = ModelSinks(manifest.deployment.name, self.host.sinks, float(manifest.deployment.observe.window_s))
        self.recorder = self.sinks.metrics
        self.adopt(manifest)
        self.state: State = "loading"
        self.failure: TailcutError | None = None
        self.is_new = False
        self.failures = ModelFailures(self.host.failures, self.deployment.name)
        self.in_flight: dict[RequestContext, None] = {}
        self._in_flight_count = InFlight(self.in_flight, self.host.arrivals)
        self._late: set[RequestContext] = set()
        self._watchers: dict[RequestContext, asyncio.Task[None]] = {}
        self.variants: Variants | None = None
        self.last_version = b""
        self._retiring: dict[asyncio.Task[None], tuple[Variants, Follower | None]] = {}
        self._variant = ""
        self.say: Callable[[str], None] = log.info
        self.follower: Follower | None = None
        self.statistics = Statistics(self.deployment.name, self.recorder)
        self.request_log: RequestLog | None = None
        self._sampler: Sampler | None = None
        self.streams = Streams()
        self.repository = Repository(self)
        self.fallbacks = Fallbacks(self)

    def adopt(self, manifest: Manifest) -> None:
        """Take a manifest for the next start; it has the same name."""
        self.manifest = manifest
        self.deployment = manifest.deployment
        slo = manifest.deployment.slo
        self.timeout_ns = int(slo.timeout_s * 1e9)
        self.recorder.set_objectives(slo.latency, float(slo.errors))

    def begin_start(self) -> None:
        """Be loading from now on: ``start`` follows."""
        if self.state not in {"draining", "stopped"}:
            self.state = "loading"
        self.failure, self.is_new = None, False

    def abandoned(self) -> None:
        """Note that ``start`` was cancelled, maybe before it had its first turn."""
        if self.state == "loading":
            self.state = "unloaded"

    async def start(self, choose: Choose | None = None, read: Callable[[], Manifest] | None = None) -> None:
        """Load and warm up; the state is "ready" afterwards. Also after an unload, and where an earlier start failed.

        Args:
            choose: finds the variant to serve; by default that which the manifest says.
            read: returns the manifest to start with; it blocks. It is called when what was unloaded is gone.

        Raises:
            TailcutError: what could not be loaded; the state is then "failed".
        """
        self.begin_start()
        try:
            if read is not None:
                await self.gone()
                self.adopt(await asyncio.to_thread(read))
            await self._open_request_log()
            self.repository, self.fallbacks = Repository(self), Fallbacks(self)
            serve, follower = self.deployment.serve, None
            if serve.variant == "promoted" and serve.follow_s:
                follower = Follower(self)
                await follower.note()
            opened = await open_deployment(
                self.manifest,
                self.sinks,
                self.host,
                self._in_flight_count,
                self.fallbacks.stand_in,
                choose,
            )
        except Exception as error:
            self.fallbacks.stop()
            unforeseen = StartError(f"unexpected {type(error).__name__}: {error}", hint="see the server's log")
            self.failure = error if isinstance(error, TailcutError) else unforeseen
            if self.state == "loading":
                self.state = "failed"
            raise
        except asyncio.CancelledError:
            self.fallbacks.stop()
            self.abandoned()
            raise
        self._serve(opened, follower)

    def _serve(self, opened: Opened, follower: Follower | None) -> None:
        """Begin to answer requests."""
        self.variants = Variants(
            opened,
            sinks=self.sinks,
            in_flight=self.in_flight,
            longest_s=float(self.deployment.server.max_timeout_s),
            on_put=self._served,
        )
        self.variants.put(opened)
        tell_trust(opened.variant)
        tell_code(self.deployment, opened.variant, opened.code.files)
        if self.state == "loading":
            self.state = "ready"
            if follower is not None:
                self.follower = follower
                follower.start()
            self.fallbacks.relieve(opened)

    async def _open_request_log(self) -> None:
        """Open the request log of the manifest, in place of an earlier one."""
        await self.close_request_log()
        if self.deployment.request_log.path:
            self.request_log = opened = RequestLog(self.manifest)
            opened.start()
            self.host.sinks.add(opened, batches=False)
            self._sampler = opened.sampler

    async def close_request_log(self) -> None:
        """Write what the request log has; requests that end from now on are not logged."""
        closing, self.request_log, self._sampler = self.request_log, None, None
        if closing is not None:
            self.sinks.flush()
            self.host.sinks.remove(closing)
            await asyncio.to_thread(closing.close)

    def _served(self, opened: Opened) -> None:
        """Note which variant is served from now on."""
        self._variant = opened.variant.name
        self.statistics.begin(opened.variant.version)
        self.fallbacks.attach(opened)
        self.host.note_served(self.deployment.name, answering_version(opened.variant))
        self.host.watch_drift(self.deployment.name, opened.warm.drift)

    def unload(self) -> None:
        """Answer no more requests until the next ``start``; those that were admitted end, then all memory is freed.

        Raises:
            NotReady: the deployment is not loaded, or draining.
        """
        self.is_new = False
        if self.state in {"unloaded", "failed"}:
            self.state, self.failure = "unloaded", None
            return
        variants = self.variants
        if self.state != "ready" or variants is None:
            raise NotReady(f"the model is {self.state}", hint="unload it when it is ready")
        self.last_version = variants.pipeline.serving.deployment_version
        self.variants, self.state = None, "unloaded"
        self.host.note_served(self.deployment.name, "")
        self.host.watch_drift(self.deployment.name, None)
        self.fallbacks.stop()
        switcher, self.follower = self.repository.used, None
        if switcher is not None:
            switcher.end()
        task = asyncio.get_running_loop().create_task(variants.retire())
        self._retiring[task] = variants, switcher
        task.add_done_callback(self._retired)

    def _retired(self, task: asyncio.Task[None]) -> None:
        self._retiring.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("model %s was unloaded but did not close", self.deployment.name, exc_info=error)

    async def gone(self) -> None:
        """Return when all that was unloaded has freed its memory."""
        while self._retiring:
            await asyncio.wait(self._retiring)

    async def stop(self, timeout_s: float) -> None:
        """Fail what waits, let running batches end for at most ``timeout_s``, close everything."""
        self.state = "stopped"
        self.fallbacks.stop()
        await asyncio.sleep(0)  # let answered requests leave first
        closing = list(self._retiring.values())
        for task in list(self._retiring):
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)
        if self.variants is not None:
            closing.append((self.variants, self.repository.used))
        await asyncio.gather(*(switcher.stop() for _, switcher in closing if switcher is not None))
        await asyncio.gather(*(variants.stop(timeout_s) for variants, _ in closing))

    def drain(self) -> None:
        """Stop being ready, and following; requests are still answered."""
        if self.state in {"ready", "loading", "unloaded"}:
            self.state = "draining"
        if self.follower is not None:
            self.follower.end()

    @property
    def opened(self) -> Opened:
        """The variant that is served.

        Raises:
            NotReady: none is (yet).
        """
        return self.loaded_variants().opened

    def loaded_variants(self) -> Variants:
        """Return the loaded variants; raises NotReady as ``opened`` does."""
        if self.variants is not None:
            return self.variants
        name = self.deployment.name
        if self.state == "unloaded":
            raise NotReady(f"model {name!r} is unloaded", hint=f"load it: POST /v2/repository/models/{name}/load")
        if self.failure is not None:
            raise NotReady(f"model {name!r} failed to load: {self.failure.message}", hint=self.failure.hint)
        raise NotReady(f"model {name!r} is loading and warming up", hint="poll /v2/health/ready and retry")

    @property
    def not_served(self) -> str:
        """Why no variant answers, for the index: the state, or that the model was never loaded."""
        if self.failure is not None:
            return f"failed: {self.failure.message}"
        return "not loaded yet" if self.state == "unloaded" and self.is_new else self.state

    @property
    def is_loaded(self) -> bool:
        """Whether there is a loaded deployment."""
        return self.variants is not None

    @property
    def pipeline(self) -> Pipeline:
        """The request path; raises NotReady as ``opened`` does."""
        variants = self.variants
        return variants.pipeline if variants is not None else self.opened.pipeline

    @property
    def outdated(self) -> dict[str, Any]:
        """Notice for clients that code has changed on the disk; empty where it has not."""
        stale = self.variants.opened.code.files.stale if self.variants is not None else ()
        if not stale:
            return {}
        said = f"{few(stale)} changed on the disk after this process had imported the code, which goes on running"
        return {"code": {"state": "outdated", "error": said, "hint": "restart the server to run the new code"}}

    @property
    def notices(self) -> dict[str, Any]:
        """Notices for clients beside the state: what is promoted but not served (yet), and changed code."""
        switcher = self.repository.used
        return (switcher.describe() if switcher is not None else {}) | self.outdated

    @property
    def unjudged(self) -> str:
        """Why the verdict on what is served is not about the features that it gets; see ``variant_checks.unjudged``."""
        if self.variants is None:
            return ""
        return unjudged(self.deployment, self.variants.opened.variant, self.host.served)

    @property
    def is_ready(self) -> bool:
        """Whether requests should be sent here: warm, not draining, not all executors or hook threads stuck.

        Where all executors are, a fallback will do.
        """
        if self.state != "ready" or self.variants is None:
            return False
        pipeline = self.variants.pipeline
        return pipeline.healthy and (pipeline.hooks is None or pipeline.hooks.healthy)

    def begin(self, route: str, start_ns: int, timeout_ns: int = 0) -> RequestContext:
        """Start the record of one request.

        Args:
            timeout_ns: the client's own; 0 for the SLO's.
        """
        if self.host.many:
            logs.model.set(self.deployment.name)  # for what features, say, log in its course
        context = RequestContext(route, start_ns, start_ns + (timeout_ns or self.timeout_ns), "", self._variant)
        self.in_flight[context] = None
        sampler = self._sampler
        if sampler is not None:
            left = sampler.left
            if left:
                sampler.left = left - 1
            else:
                context.logged = sampler.draw()
        return context

    def end(self, context: RequestContext, code: str) -> None:
        """Count the request's one end; code is "ok" or the error's."""
        del self.in_flight[context]
        if self._late:
            self._late.discard(context)
        if self._watchers:
            watcher = self._watchers.pop(context, None)
            if watcher is not None:
                watcher.cancel()
        context.code = code
        self.sinks.request(context)

    def is_late(self, context: RequestContext) -> bool:
        """Whether the reading of the request's body was cancelled here because its deadline had passed."""
        return context in self._late

    def watch_clients(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look after requests that take long: is the client still there, is its body late?

        A watcher or a timer per request would cost more than most requests; one look every ``TICK_S`` costs nothing
        when all is fast.
        """
        now_ns = perf_counter_ns()
        old_ns = now_ns - int(TICK_S * 1e9)
        for context in self.in_flight:
            if context.timings.start_ns > old_ns:
                break  # in order of arrival: all others are younger
            if context.timings.last_ns == context.timings.start_ns:  # no stage has ended: its body is still being read
                if now_ns >= context.deadline_ns and context.waiting is not None and context not in self._late:
                    self._late.add(context)
                    context.waiting.cancel()
            elif context.disconnected is not None:
                watcher = loop.create_task(_abandon_when_gone(context, context.disconnected))
                context.disconnected = None
                self._watchers[context] = watcher

    def samples(self) -> Iterator[Sample]:
        """Yield what /metrics shows of the model besides the recorder's counts."""
        yield READY(float(self.is_ready))
        yield from self.recorder.latency.samples()
        yield IN_FLIGHT(len(self.in_flight))
        if self.request_log is not None:
            yield from self.request_log.samples()
        if self.variants is None:
            return
        opened = self.variants.opened
        yield from opened.pipeline.samples()
        yield from opened.pool.samples()
        yield from self.variants.samples()
        yield from self.fallbacks.samples(opened)
        variant = opened.variant
        yield SERVED(1.0, variant.name, variant.version)
        if opened.device is not None:
            yield DEVICE_BUSY(opened.device.busy_ns / 1e9, variant.name, variant.version)
        if (switcher := self.repository.used) is not None:
            yield from switcher.samples()
        yield from self.host.drift.samples(self.deployment.name)


async def _abandon_when_gone(context: RequestContext, disconnected: Callable[[], Awaitable[None]]) -> None:
    await disconnected()
    context.abandon()


# -- Statistics --------------------------------------------------------------------------------------------------------


# What has been answered since the start, per version that was served: from the recorder, at no cost to a request.
# Source: Triton's statistics extension (https://github.com/triton-inference-server/server,
# docs/protocol/extension_statistics.md).

_KEPT = 16
"""Versions that are no longer served of which the figures are kept."""

_Totals = dict[str, tuple[int, int]]
"""Count and nanoseconds by name."""


class Statistics:
    """Cumulative figures per version. Owned by the event loop.

    A version's figures are what was counted between its begin and its end; of requests that were on their way at a
    switch, those that end after it are the next version's.

    Args:
        name: of the model.
    """

    def __init__(
        self,
        name: str,
        recorder: Recorder,
        clock_ns: Callable[[], int] = perf_counter_ns,
        wall_ns: Callable[[], int] = time_ns,
    ) -> None:
        self._name = name
        self._recorder = recorder
        self._clock_ns = clock_ns
        self._wall_ns = wall_ns
        self._version = ""
        self._before: tuple[_Totals, dict[int, tuple[int, int]]] = ({}, {})
        self._ended: dict[str, dict[str, Any]] = {}

    def begin(self, version: str) -> None:
        """Count for another version from now on; what it counted earlier, before another came between, is dropped."""
        if version == self._version:
            return
        if self._version:
            self._ended[self._version] = self._current()
            while len(self._ended) > _KEPT:
                del self._ended[next(iter(self._ended))]
        self._ended.pop(version, None)
        self._version = version
        self._before = _totals(self._recorder), _batches(self._recorder)

    def describe(self, version: str = "") -> list[dict[str, Any]]:
        """Return the figures of a version, of the one that is served first and then of all where none is named."""
        found = [*([self._current()] if self._version else []), *reversed(self._ended.values())]
        return [each for each in found if not version or each["version"] == version]

    def _current(self) -> dict[str, Any]:
        totals_before, batches_before = self._before
        totals = {
            name: (count - totals_before.get(name, (0, 0))[0], ns - totals_before.get(name, (0, 0))[1])
            for name, (count, ns) in _totals(self._recorder).items()
        }
        batches = {
            rows: (count - batches_before.get(rows, (0, 0))[0], ns - batches_before.get(rows, (0, 0))[1])
            for rows, (count, ns) in _batches(self._recorder).items()
        }
        ran = {rows: found for rows, found in sorted(batches.items()) if found[0]}
        last_ns = self._wall_ns() - (self._clock_ns() - self._recorder.last_ns)
        return {
            "name": self._name,
            "version": self._version,
            "last_inference": last_ns // 1_000_000 if totals["success"][0] or totals["fail"][0] else 0,
            "inference_count": sum(rows * count for rows, (count, _) in ran.items()),
            "execution_count": sum(count for count, _ in ran.values()),
            "inference_stats": {name: {"count": count, "ns": ns} for name, (count, ns) in totals.items()},
            "batch_stats": [
                {
                    "batch_size": rows,
                    "compute_input": {"count": count, "ns": 0},
                    "compute_infer": {"count": count, "ns": ns},
                    "compute_output": {"count": count, "ns": 0},
                }
                for rows, (count, ns) in ran.items()
            ],
        }


def _totals(recorder: Recorder) -> _Totals:
    """Triton's names for what the recorder counts: its input and output stages are preprocess and postprocess."""
    stages = recorder.stages

    def stage(*which: Stage) -> tuple[int, int]:
        return sum(stages[each].count for each in which), sum(stages[each].total for each in which)

    ended = recorder.totals
    failed = [total for outcome, total in ended.items() if outcome != "ok"]
    hits = sum(count for (*_, outcome, cache), count in recorder.requests.items() if (outcome, cache) == ("ok", "hit"))
    return {
        "success": ended["ok"],
        "fail": (sum(count for count, _ in failed), sum(ns for _, ns in failed)),
        "queue": stage(Stage.QUEUE),
        "compute_input": stage(Stage.PREPROCESS),
        "compute_infer": stage(Stage.INFER),
        "compute_output": stage(Stage.POSTPROCESS),
        "cache_hit": (hits, stage(Stage.ENTITY_CACHE, Stage.TENSOR_CACHE)[1]),
    }


def _batches(recorder: Recorder) -> dict[int, tuple[int, int]]:
    return {rows: (count, ns) for rows, (count, ns) in recorder.by_rows.items()}
