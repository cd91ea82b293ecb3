"""The models of one server by name: their start, loading and unloading, and what the process is as a whole."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from reprlib import repr as shown
from time import perf_counter, perf_counter_ns
from typing import Any

from tailcut import logs
from tailcut.code.digest import few
from tailcut.errors import NotFound, NotReady, StartError, TailcutError
from tailcut.features.sources.model import ServedModel
from tailcut.manifest import Manifest
from tailcut.manifest.host import Hosted, HostManifest, refuse_cycles
from tailcut.observe.live.figures import ModelAbout
from tailcut.observe.path_metrics import HOST_READY
from tailcut.observe.sample import Sample, counter
from tailcut.observe.sinks import Sinks
from tailcut.pipeline.request_context import Arrivals
from tailcut.serving.deployment_loader import Choose
from tailcut.serving.engine import TICK_S, Engine
from tailcut.serving.feature_chains import refuse_misfits
from tailcut.serving.host_state import HostState
from tailcut.serving.observation import Observation
from tailcut.serving.variant_checks import tell_ready, tell_unjudged

SINK_ERRORS = counter(
    "tailcut_sink_errors",
    "Errors raised by sinks, which receive finished requests and batches; requests are not affected.",
    of_host=True,
)

log = logging.getLogger("tailcut.server")

_SEVERITY = ("ready", "draining", "stopped", "unloaded", "loading", "failed")
"""States of models; the host as a whole is in the last of those that its required models are in."""

_LONGEST_NAMES = 10


OpenLocal = Callable[[str, Sequence[str]], ServedModel]
"""See ``DataPlane.local``."""


class Host:
    """Everything that a server serves. Owned by the event loop.

    Attributes:
        manifest: which models those are, and the server's settings.
        engines: models by name, loaded or not; those whose manifest could never be read are not among them.
        failures: the log of failures.
        on_added: called with the name of a model that came after the start.
        loop_lag: nanoseconds by which the event loop woke up later than asked.
        observed: metrics, traces, history, alerts and what else there is to see of it.
        open_local: opens a model for the feature group of another; set by the data plane, through which it is asked.
        where: " on " and the addresses that it listens on, for the log; empty where it listens on none.
    """

    def __init__(self, manifest: HostManifest) -> None:
        self.manifest = manifest
        self.server = manifest.server
        self._state = HostState(many=not manifest.is_single)
        self.failures = self._state.failures
        self.loop_lag = self._state.loop_lag
        self._hosted: dict[str, Hosted] = {hosted.name: hosted for hosted in manifest.models}
        self.engines: dict[str, Engine] = {
            name: Engine(hosted.manifest, self._state)
            for name, hosted in self._hosted.items()
            if hosted.manifest is not None
        }
        if self._state.many:
            self._state.models = self._model
            self._state.on_served = self._tell_unjudged
            self._state.wait_loaded = self._wait_loaded
        self._unjudged: dict[str, str] = {}
        self.observed = Observation(
            manifest,
            self._state,
            self.engines,
            about=self._about_models,
            state=lambda: self.state,
            samples=self._samples,
        )
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._unloads: Counter[str] = Counter()
        """Unloads of each model so far: a load that was asked for before the latest one is not carried out."""
        self._taken: dict[Path, str] = {each.file: each.listed for each in manifest.models if each.listed}
        """Manifests whose models have the name of another one, and what they are listed as."""
        self._timer: asyncio.TimerHandle | None = None
        self._phase = ""
        self.on_added: list[Callable[[str], object]] = []
        self.open_local: OpenLocal | None = None
        self.where = ""

    @classmethod
    def of(cls, manifest: Manifest) -> Host:
        """Return the host of one model."""
        return cls(HostManifest.of(manifest))

    # -- The process -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load all models side by side; returns when each is ready or has failed. Failures are in the log.

        Raises:
            TailcutError: of the only model, or the first one where all have failed.
        """
        loop = asyncio.get_running_loop()
        self.observed.start(loop)
        self._tick(loop)
        for hosted in self._hosted.values():
            if hosted.error is not None:
                log.error("the model cannot be loaded: %s", hosted.error, extra={"model": hosted.name})
        for name, engine in self.engines.items():
            read = partial(refuse_misfits, engine.manifest, self._known(name)) if self._state.many else None
            self._begin(name, engine, read=read)
        loading = list(self._loading.values())
        await asyncio.gather(*loading, return_exceptions=True)
        self._state.quiet = True  # from here on others may be serving
        errors = [task.exception() for task in loading if not task.cancelled()]
        if loading and len(errors) == len(loading) and all(errors) and (first := errors[0]) is not None:
            raise first

    def drain(self) -> None:
        """Stop being ready; requests are still answered."""
        self._phase = self._phase or "draining"
        for engine in self.engines.values():
            engine.drain()

    def end_streams(self) -> None:
        """End all streams, those of the page included."""
        self.observed.live.stop()
        for engine in self.engines.values():
            engine.streams.stop()

    async def stop(self, timeout_s: float) -> None:
        """Fail what waits, let running batches end for at most ``timeout_s``, close everything."""
        self._phase = "stopped"
        self.observed.live.stop()
        if self._timer is not None:
            self._timer.cancel()
        loading = list(self._loading.values())
        for task in loading:
            task.cancel()
        await asyncio.gather(*loading, return_exceptions=True)
        try:
            await asyncio.gather(*(engine.stop(timeout_s) for engine in self.engines.values()))
        finally:
            for engine in self.engines.values():
                engine.sinks.flush()
            logs = (engine.close_request_log() for engine in self.engines.values())
            await asyncio.gather(self.observed.stop(timeout_s), *logs)

    @property
    def sinks(self) -> Sinks:
        """Receive what models finish, besides each one's metrics."""
        return self._state.sinks

    @property
    def arrivals(self) -> Arrivals:
        """To be told of requests that are about to be handled."""
        return self._state.arrivals

    @property
    def state(self) -> str:
        """Of the whole: draining, stopped, or the worst state of its required models."""
        if self._phase:
            return self._phase
        states = [self._state_of(name) for name, hosted in self._hosted.items() if hosted.required]
        return max(states, key=_SEVERITY.index, default="ready")

    @property
    def is_ready(self) -> bool:
        """Whether requests should be sent here: all required models are ready."""
        required = (name for name, hosted in self._hosted.items() if hosted.required)
        return not self._phase and all(name in self.engines and self.engines[name].is_ready for name in required)

    def readiness(self) -> dict[str, Any]:
        """Return what GET /v2/health/ready answers: of one model its own state, of several each one's."""
        found: dict[str, Any] = {"ready": self.is_ready, "state": self.state}
        if self.manifest.is_single:
            return found | self.only.notices
        models = {}
        for name, hosted in self._hosted.items():
            engine = self.engines.get(name)
            ready = engine is not None and engine.is_ready
            models[name] = {"ready": ready, "state": self._state_of(name), "required": hosted.required}
            if engine is not None:
                models[name] |= engine.notices
                models[name] |= {"unjudged": why} if (why := engine.unjudged) else {}
            if (error := self._why_not(name)) is not None:
                models[name]["reason"] = error.message
        return found | {"models": models}

    # -- Models ------------------------------------------------------------------------------------------------------

    @property
    def only(self) -> Engine:
        """The only model of a host of one."""
        (engine,) = self.engines.values()
        return engine

    def engine(self, name: str) -> Engine:
        """Return a model.

        Raises:
            NotFound: there is none of that name.
            NotReady: its manifest could not be read.
        """
        found = self.engines.get(name)
        if found is not None:
            return found
        if (hosted := self._hosted.get(name)) is not None and hosted.error is not None:
            raise NotReady(f"model {name!r} failed to load: {hosted.error.message}", hint=hosted.error.hint)
        raise NotFound(
            f"model {shown(name)} is unknown",
            hint=f"this server has {few(tuple(map(repr, self._hosted)), _LONGEST_NAMES)}",
        )

    def outdated(self, name: str) -> dict[str, Any]:
        """Return what clients are told of a model whose code has changed on the disk; empty where it has not."""
        return self.engines[name].outdated if name in self.engines else {}

    def has_failed(self, name: str) -> bool:
        """Whether there is a model of that name whose manifest could not be read."""
        return name in self._hosted and name not in self.engines

    def _model(self, name: str, key: tuple[str, ...], where: str) -> ServedModel:
        """Return a model for the feature group of another."""
        engine = self.engines.get(name)
        if engine is None and (error := self._hosted[name].error if name in self._hosted else None) is not None:
            raise StartError(
                f"{where}: model {name!r} could not be read: {error.message}",
                hint=f"{error.hint}; then load {name!r}, and this model",
            )
        if engine is None:
            raise StartError(
                f"{where}: model {name!r} is not served here",
                hint=f"this server has {few(tuple(map(repr, self._hosted)), _LONGEST_NAMES)}",
            )
        assert self.open_local is not None, "a host with several models is asked through a data plane"
        return self.open_local(name, key)

    async def index(self, *, ready_only: bool = False) -> list[dict[str, str]]:
        """List every variant of every version of every model; see ``Repository.index``. New folders are found."""
        await self._look()
        entries: list[dict[str, str]] = []
        for name in list(self._hosted):
            entries += await self._listed(name, ready_only=ready_only)
        return entries

    async def _listed(self, name: str, *, ready_only: bool) -> list[dict[str, str]]:
        """List a model's variants; the model itself where it has none that can be listed."""
        engine = self.engines.get(name)
        unreadable: TailcutError | None = None
        if engine is not None:
            try:
                found = await engine.repository.index(ready_only=ready_only)
            except TailcutError as error:  # of this model's registry; the others are listed all the same
                found, unreadable = [], error
            if found or ready_only:
                return found
        if ready_only or name not in self._hosted:  # it has another name by now
            return []
        why = self._why_not(name) or unreadable
        reason = why.message if why is not None else engine.not_served if engine is not None else "failed"
        return [{"name": name, "version": "", "state": "UNAVAILABLE", "reason": reason}]

    async def load(self, name: str, *, version: str = "", variant: str = "") -> None:
        """Serve a model, or another variant of one that is served; returns when it is served.

        A model that is not loaded is loaded with its manifest as it is by now.

        Args:
            version, variant: see ``Repository.load``.

        Raises:
            NotFound: there is no such model, version or variant.
            NotReady: the server is draining, or the model is unloaded while it is loaded or its load waits.
            TailcutError: why it cannot be loaded.
        """
        unloads = self._unloads[name]
        await self._look()
        if self.has_failed(name):
            found = await self._read_failed(name)
            self._refuse_unloaded(name, unloads)
            name, unloads = found, self._unloads[found]
        while (task := self._loading.get(name)) is not None:
            await asyncio.wait({task})
        self._refuse_unloaded(name, unloads)
        if self._phase:
            raise NotReady(f"the server is {self._phase}", hint="load the model on another server")
        engine = self.engine(name)
        if engine.is_loaded:
            with _about(name):
                await engine.repository.load(version=version, variant=variant)
            return
        others = [other.manifest for other in self.engines.values() if other is not engine]
        read = partial(self._read_again, self._hosted[name], others, self._known(name))
        task = self._begin(name, engine, engine.repository.choose(version, variant), read)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                why = self._phase and f"the server is {self._phase}"
                raise NotReady(
                    why or f"model {name!r} was unloaded while it was loading", hint="load it again"
                ) from None
            raise  # the client is gone; the model is loaded all the same

    def unload(self, name: str) -> None:
        """Answer no more requests to a model until the next load; its memory is freed when its requests have ended.

        Raises:
            NotFound: there is no such model.
            NotReady: the server is draining.
        """
        if self._phase:
            raise NotReady(f"the server is {self._phase}", hint="it unloads everything when it stops")
        if name in self._hosted:
            self._unloads[name] += 1
        if self.has_failed(name):
            return  # there is nothing of it
        engine = self.engine(name)
        task = self._loading.get(name)
        if task is None or not task.cancel():  # else its state is "unloaded" then
            with _about(name):
                engine.unload()
        log.info("the model is unloaded; its memory is freed when its requests have ended", extra={"model": name})

    def _refuse_unloaded(self, name: str, unloads: int) -> None:
        """Refuse a load where an unload came after it.

        Args:
            unloads: of the model when the load was asked for.
        """
        if self._unloads[name] > unloads and not self._phase:
            raise NotReady(f"model {name!r} was unloaded while its load waited", hint="load it again")

    def _begin(
        self, name: str, engine: Engine, choose: Choose | None = None, read: Callable[[], Manifest] | None = None
    ) -> asyncio.Task[None]:
        """Load a model in a task of its own, so that it can be cancelled by an unload and by nothing else."""
        engine.begin_start()
        task = self._loading[name] = asyncio.get_running_loop().create_task(self._load(name, engine, choose, read))
        task.add_done_callback(lambda ended: self._loaded(name, engine, ended))
        return task

    async def _load(
        self, name: str, engine: Engine, choose: Choose | None, read: Callable[[], Manifest] | None
    ) -> None:
        logs.model.set(name)
        started_s = perf_counter()
        await engine.start(choose, read)
        if engine.state == "ready":  # not where the server began to drain meanwhile
            tell_ready(name, engine.opened, perf_counter() - started_s, self.where)

    def _loaded(self, name: str, engine: Engine, ended: asyncio.Task[None]) -> None:
        del self._loading[name]
        if ended.cancelled():
            engine.abandoned()
            return
        if (error := ended.exception()) is None or self.manifest.is_single:
            return
        cause = None if isinstance(error, TailcutError) else error
        log.error("the model could not be loaded: %s", error, exc_info=cause, extra={"model": name})

    def _known(self, name: str) -> dict[str, Manifest]:
        """Return the manifests of the other models that are not out of date: the models are in use, or will be."""
        used = {"ready", "loading", "draining"}
        return {key: each.manifest for key, each in self.engines.items() if key != name and each.state in used}

    def _read_again(self, hosted: Hosted, others: Sequence[Manifest], known: dict[str, Manifest]) -> Manifest:
        """Return a model's manifest as it is by now; blocks, so that it is given all that it looks at.

        Args:
            others: manifests of the other models, as they were loaded.
            known: those of them that are in use.

        Raises:
            TailcutError: what is wrong with it; or it has another name by now.
        """
        found = self.manifest.read_again(hosted)
        if found.manifest is None:
            raise found.error or StartError(f"{found.file}: cannot be read")
        if found.name != hosted.name:
            raise _renamed(found, hosted.name, f"but was started as {hosted.name!r}")
        refuse_cycles([*others, found.manifest])
        for name, other in known.items():
            try:
                refuse_misfits(other, {found.name: found.manifest})
            except TailcutError as error:
                log.warning("its feature groups no longer fit model %s: %s", found.name, error, extra={"model": name})
        return refuse_misfits(found.manifest, known)

    async def _read_failed(self, name: str) -> str:
        """Read the manifest again that could never be read; return the name that it gives the model.

        Raises:
            TailcutError: what is wrong with it; or another model has that name.
        """
        found = await asyncio.to_thread(self.manifest.read_again, self._hosted[name])
        if not self.has_failed(name):  # another load was faster
            return next((other for other, hosted in self._hosted.items() if hosted.file == found.file), name)
        if found.manifest is None:
            self._hosted[name] = found
            raise found.error or StartError(f"{found.file}: cannot be read")
        new = found.manifest.deployment.name
        if new != name and new in self._hosted:
            raise _renamed(found, name, f"which {self._hosted[new].file} has")
        del self._hosted[name]
        self._taken.pop(found.file, None)
        self._add(found)
        return new

    async def _look(self) -> None:
        """Find models in new subfolders."""
        looked = await asyncio.to_thread(self.manifest.look)
        for file in self._taken.keys() - {hosted.file for hosted in looked}:
            del self._hosted[self._taken.pop(file)]  # its folder is gone
        known = {hosted.file for hosted in self._hosted.values()} - self._taken.keys()
        for hosted in looked:
            if hosted.file in known:
                continue
            listed = self._taken.get(hosted.file)
            owner = self._hosted.get(hosted.name)
            if owner is not None and (owner.file != hosted.file or hosted.error is not None):
                self._add_taken(hosted, owner)
                continue
            if listed is not None:
                del self._hosted[listed], self._taken[hosted.file]
            self._add(hosted)

    def _add_taken(self, hosted: Hosted, owner: Hosted) -> None:
        """List a model whose name another one has as failed: by its folder's name, or its path where that is taken."""
        error = hosted.error or StartError(
            f"{hosted.file} says name = {hosted.name!r}, which {owner.file} has",
            hint="give it another name, and load it",
        )
        folder = hosted.file.parent
        listed = self._taken.get(hosted.file) or (str(folder) if folder.name in self._hosted else folder.name)
        before = self._hosted.get(listed)
        self._taken[hosted.file] = listed
        self._hosted[listed] = replace(hosted, manifest=None, error=error)
        if before is None or before.error is None or before.error.message != error.message:
            log.error("the model cannot be loaded: %s", error, extra={"model": listed})

    def _add(self, hosted: Hosted) -> None:
        """Add a model that was found after the start."""
        self._hosted[hosted.name] = hosted
        if hosted.manifest is not None:
            engine = self.engines[hosted.name] = Engine(hosted.manifest, self._state)
            engine.state, engine.is_new = "unloaded", True
            for tell in self.on_added:
                tell(hosted.name)

    async def _wait_loaded(self, names: Sequence[str]) -> None:
        while tasks := [self._loading[name] for name in names if name in self._loading]:
            await asyncio.wait(tasks)

    def _tell_unjudged(self) -> None:
        """Tell the operator of each model whose features now come from another version than it was judged with."""
        for name, engine in self.engines.items():
            before, self._unjudged[name] = self._unjudged.get(name, ""), engine.unjudged
            if self._unjudged[name] not in ("", before):
                tell_unjudged(engine.deployment, engine.opened.variant, self._unjudged[name])

    def _state_of(self, name: str) -> str:
        engine = self.engines.get(name)
        return "failed" if engine is None else engine.state

    def _why_not(self, name: str) -> TailcutError | None:
        engine = self.engines.get(name)
        return self._hosted[name].error if engine is None else engine.failure

    # -- Metrics and the tick ----------------------------------------------------------------------------------------

    def _about_models(self) -> dict[str, ModelAbout]:
        """Return what the page shows of each model beside its figures."""
        found = {}
        for name, hosted in self._hosted.items():
            engine, why = self.engines.get(name), self._why_not(name)
            costs = engine.variants.costs() if engine is not None and engine.variants is not None else {}
            found[name] = ModelAbout(
                state=self._state_of(name),
                ready=engine is not None and engine.is_ready,
                required=hosted.required,
                reason="" if why is None else why.message,
                costs=costs,
            )
        return found

    def _samples(self) -> Iterator[Sample]:
        yield HOST_READY(float(self.is_ready))
        yield SINK_ERRORS(float(self.sinks.errors))

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        due_ns = perf_counter_ns() + int(TICK_S * 1e9)

        def tick() -> None:
            now_ns = perf_counter_ns()
            if self._phase != "stopped":
                self._tick(loop)
            self.loop_lag.add(max(now_ns - due_ns, 0))
            for engine in self.engines.values():
                engine.sinks.flush()
                if engine.in_flight:
                    engine.watch_clients(loop)
            self.failures.flush(now_ns)
            self.observed.live.tick()

        self._timer = loop.call_later(TICK_S, tick)


@contextmanager
def _about(name: str) -> Iterator[None]:
    """Have log lines of the block, and of tasks that it starts, name a model."""
    before = logs.model.set(name)
    try:
        yield
    finally:
        logs.model.reset(before)


def _renamed(found: Hosted, name: str, why: str) -> StartError:
    new = found.manifest.deployment.name if found.manifest is not None else ""
    return StartError(f"{found.file} says name = {new!r}, {why}", hint=f"write name = {name!r}, or restart the server")
