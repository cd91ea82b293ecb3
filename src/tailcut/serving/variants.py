"""The loaded variants of one deployment: the one that is served, its fallback, and those that are replaced."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from tailcut.code.loaded import LoadedCode
from tailcut.errors import ArtifactError, TailcutError
from tailcut.models.background_loading import abandon, close_later, foreseen, in_background
from tailcut.models.deployment_version import is_live, opening_references
from tailcut.models.variant_loader import Warm, close_warm, open_variant
from tailcut.models.warm_up import BRIEF
from tailcut.observe.recorder import ModelSinks
from tailcut.observe.sample import Sample, gauge
from tailcut.observe.sinks import VariantSwitch
from tailcut.pipeline.request_context import RequestContext
from tailcut.registry import Registry, Variant
from tailcut.serving.deployment_loader import Opened, StandIn, open_beside
from tailcut.serving.variant_checks import FORCED, refuse_other_model, refuse_other_tensors, tell_code

if TYPE_CHECKING:
    from tailcut.serving.engine import Engine

FALLBACK_READY = gauge("tailcut_fallback_ready", "1 while a fallback variant is warm.", "variant")
RETIRING = gauge("tailcut_variants_retiring", "Variants no longer served whose last requests are still in flight.")

log = logging.getLogger("tailcut.server")

_LOOK_S = 0.01

_STORES_S = 1.0
"""For hooks, features and caches to close after the last request has ended."""


class Variants:
    """Changes which variant is served, and closes those that are replaced. Owned by the event loop.

    One object per load of the deployment: ``retire`` or ``stop`` is its end. A switch is one call of ``put``, by the
    follower of promotions, the repository API, or the fallback that stands in for a slow load. It changes the pipeline
    at once, so that every request sees the variants before it or those after it. A replaced variant is closed when the
    requests that it admitted have ended.

    Args:
        opened: the variant to begin with; ``put`` it.
        in_flight: requests that are being answered.
        longest_s: the longest that a request may take; what is still in flight then, fails.
        on_put: called with each variant that is served from now on.

    Attributes:
        opened: the variant that is served.
        pipeline: the stages that all of them share.
    """

    def __init__(
        self,
        opened: Opened,
        *,
        sinks: ModelSinks,
        in_flight: Mapping[RequestContext, None],
        longest_s: float,
        on_put: Callable[[Opened], None],
    ) -> None:
        self.opened = opened
        self.pipeline = opened.pipeline
        self._sinks = sinks
        self._in_flight = in_flight
        self._longest_s = longest_s
        self._on_put = on_put
        self._replaced: dict[Opened, asyncio.Task[None]] = {}

    def put(self, opened: Opened) -> None:
        """Serve a variant from now on. Requests that were admitted before end where they began."""
        old, self.opened = self.opened, opened
        self.pipeline.put(opened.served)
        before = ("", "") if old is opened else (old.variant.name, old.variant.version)
        self._sinks.switch(VariantSwitch(opened.variant.name, opened.variant.version, before))
        self._on_put(opened)
        if old is not opened and opened.fallback is not old:
            self._replaced[old] = task = asyncio.get_running_loop().create_task(self._close_after_requests(old))
            task.add_done_callback(lambda ended: self._closed(old, ended))

    def set_fallback(self, fallback: Opened) -> None:
        """Have another variant take what the one that is served has no room for."""
        self.opened.fallback = fallback
        self.pipeline.put(self.opened.served, fallback.served)

    async def retire(self) -> None:
        """Let all requests end, then close everything; no request is admitted any more."""
        try:
            await self._close_after_requests(self.opened)
        finally:
            await asyncio.gather(*self._replaced.values(), return_exceptions=True)
            await self.pipeline.close(_STORES_S)

    async def stop(self, timeout_s: float) -> None:
        """Fail what waits, let running batches end for at most ``timeout_s``, close everything."""
        give_up_s = perf_counter() + timeout_s
        replaced = dict(self._replaced)
        for task in replaced.values():
            task.cancel()
        await asyncio.gather(*replaced.values(), return_exceptions=True)
        closing = [opened.stop(timeout_s) for opened in (*replaced, self.opened)]
        ended = await asyncio.gather(*closing, return_exceptions=True)
        await self.pipeline.close(max(give_up_s - perf_counter(), 0.0))
        for error in ended:
            if error is not None:
                raise error

    def costs(self) -> dict[str, tuple[float, str]]:
        """Return what the build found a million requests to cost, as money and currency, by variant."""
        found = {}
        for each in (self.opened, self.opened.fallback, *self._replaced):
            cost = each.variant.evidence.cost if each is not None else None
            if each is not None and cost is not None and cost.currency:
                found[each.variant.name] = cost.money, cost.currency
        return found

    def samples(self) -> Iterator[Sample]:
        """Yield how many replaced variants are still open."""
        yield RETIRING(len(self._replaced))

    # -- Inside ------------------------------------------------------------------------------------------------------

    async def _close_after_requests(self, old: Opened) -> None:
        """Let the requests of a variant end to which none is admitted any more, then close it and its fallback."""
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + self._longest_s
        served = {each.served for each in (old, old.fallback) if each is not None}
        left = [context for context in self._in_flight if context.served in served]
        # Looked after from time to time, so that the end of a request costs nothing more.
        while any(context in self._in_flight for context in left) and loop.time() < give_up_s:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        try:
            for each in (old, old.fallback):
                if each is not None and each.warm.choice.executor == "inline":
                    # Freeing a large model takes long; executors with a thread of their own do it there.
                    await loop.run_in_executor(None, each.warm.close)
        finally:
            await old.stop(max(give_up_s - loop.time(), _LOOK_S))

    def _closed(self, old: Opened, ended: asyncio.Task[None]) -> None:
        if ended.cancelled():
            return  # by a stop, which closes it
        self._replaced.pop(old, None)
        if (error := ended.exception()) is not None:
            what = f"variant {old.variant.name} of version {old.variant.version}"
            log.error("%s is no longer served but did not close", what, exc_info=error)


# -- Fallbacks ---------------------------------------------------------------------------------------------------------


Check = Callable[[LoadedCode, Variant], None]

STALE = "stale"
"""Of ``serve.fallback``: the prediction caches' expired answers, which the pipeline handles itself."""


class Fallbacks:
    """Opens the fallback of whatever is served. Owned by the event loop.

    At the start it is opened beside what it is the fallback of, and stands in for that where it is warm before, until
    that can be opened.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._names = [name for name in engine.deployment.serve.fallback if name != STALE]
        self._attaching: asyncio.Task[None] | None = None
        self._relieving: asyncio.Task[None] | None = None
        self._standing: Opened | None = None
        # Opened here and not handed over yet: a fallback, and the variant that it stands in for.
        self._coming: asyncio.Task[Warm | None] | None = None
        self._loading: asyncio.Task[Warm | None] | None = None

    @property
    def stand_in(self) -> StandIn | None:
        """Opens what answers until the variant to serve is warm; None where the manifest names none."""
        return self._begin if self._names else None

    def attach(self, opened: Opened) -> None:
        """Open the fallback of what is served from now on, in the background; nothing waits for it."""
        if not self._names:
            return
        standing, self._standing = self._standing, None
        if opened.loading is not None:
            self._standing, self._loading, self._coming = opened, opened.loading, None
        elif standing is not None and standing.variant.version == opened.variant.version:
            self._engine.loaded_variants().set_fallback(standing)
        else:
            loop = asyncio.get_running_loop()
            if self._attaching is not None:
                self._attaching.cancel()
                _let_go(self._coming)  # of what is served no more
                self._coming = None
            if self._coming is None:
                refuse = partial(refuse_other_model, self._engine.manifest)
                self._coming = loop.create_task(self._warm(opened.variant, opened.code.files, refuse))
            self._attaching = loop.create_task(self._attach(opened, self._coming))

    def relieve(self, opened: Opened) -> None:
        """Where ``opened`` stands in for another variant, put that in its place as soon as it is warm."""
        if self._loading is not None:
            self._relieving = asyncio.get_running_loop().create_task(self._relieve(opened))

    async def loaded(self) -> None:
        """Wait for what is being opened to take the place of what stands in for it; at once where nothing is."""
        if self._loading is not None:
            await asyncio.wait({self._loading})

    def stop(self) -> None:
        """Abandon what is being opened."""
        for task in (self._attaching, self._relieving):
            if task is not None:
                task.cancel()
        _let_go(self._coming)
        _let_go(self._loading)
        self._coming = self._loading = self._standing = None

    def samples(self, opened: Opened) -> Iterator[Sample]:
        """Yield whether a fallback is warm."""
        if self._names:
            name = opened.fallback.variant.name if opened.fallback is not None else ""
            yield FALLBACK_READY(float(bool(name)), name)

    # -- Inside ------------------------------------------------------------------------------------------------------

    def _begin(self, variant: Variant, files: LoadedCode) -> asyncio.Task[Warm | None]:
        self._coming = asyncio.get_running_loop().create_task(self._warm(variant, files, self._tell_other_code))
        return self._coming

    async def _attach(self, opened: Opened, coming: asyncio.Task[Warm | None]) -> None:
        warm = await coming
        self._coming = None
        if warm is not None:
            try:
                fallback = open_beside(self._engine.manifest, opened, warm, self._engine.sinks)
            except BaseException:
                close_later(Warm.close, warm)
                raise
            self._engine.loaded_variants().set_fallback(fallback)
            log.info("fallback %s of version %s is warm", warm.variant.name, opened.variant.version)

    async def _relieve(self, opened: Opened) -> None:
        """Put what is to be served in the place of ``opened``, unless somebody puts anything there before.

        Where nothing follows the registry, a variant that could not be opened is tried again here, from time to time.
        """
        engine, variant = self._engine, opened.variant
        log.info("fallback %s of version %s answers until the served variant is warm", variant.name, variant.version)
        switcher, named = engine.repository.switcher(), engine.deployment.serve.variant
        what = "the promoted variant" if named == "promoted" else f"serve.variant = {named!r}"
        before = switcher.decisions
        while self._loading is not None:
            switcher.loading = True
            # Not while it holds others up: what hangs here must not keep them from putting something else in place.
            await asyncio.wait({self._loading})
            async with switcher.switching:
                switcher.loading = False
                warm, self._loading = self._loading, None
                if switcher.decisions != before:
                    abandon(warm, close_warm)
                    return
                try:
                    await switcher.switch(warm.result())
                    return
                except Exception as error:
                    switcher.failed(foreseen(error), what)
            if engine.follower is not None:
                return  # which tries again
            await asyncio.sleep(switcher.retry_s - asyncio.get_running_loop().time())
            if switcher.decisions == before:
                self._loading = asyncio.ensure_future(engine.repository.opened_again(opened))

    async def _warm(self, served: Variant, files: LoadedCode, check: Check) -> Warm | None:
        """Open the first that can be opened and that the check passes; None where there is none."""
        for name in self._names:
            if name == served.name:
                continue
            try:
                return await in_background(partial(self._open, served, name, files, check), Warm.close)
            except TailcutError as error:
                log.error("fallback %s of version %s cannot be served: %s", name, served.version, error)
        return None

    def _open(self, served: Variant, name: str, files: LoadedCode, check: Check) -> Warm:
        """Open and warm up a variant of the version that is served; blocks."""
        deployment = self._engine.deployment
        registry = Registry.of(self._engine.manifest)
        variant: Variant = registry.variant(deployment.name, name, served.version)
        if (why := variant.evidence.quality_refusal) and not deployment.serve.force:
            raise ArtifactError(
                f"variant {name!r} was refused by the quality gate: {why}",
                hint="name a variant in serve.fallback that passed the gate (`tailcut registry show`), or set "
                f"{FORCED}",
            )
        check(files, variant)
        self._engine.host.refuse_too_large(variant)
        code = files.snapshot(live=is_live(variant))
        return open_variant(self._engine.manifest, variant, BRIEF, code=code)

    def _tell_other_code(self, files: LoadedCode, variant: Variant) -> None:
        """Check a fallback at the start: other tensors are refused, other code is logged as a warning."""
        refuse_other_tensors(self._engine.deployment, variant)
        files.import_also(opening_references(self._engine.manifest, variant))
        tell_code(self._engine.deployment, variant, files)


def _let_go(opening: asyncio.Task[Warm | None] | None) -> None:
    if opening is not None:
        abandon(opening, close_warm)
