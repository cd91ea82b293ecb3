"""A second, faster variant that is kept warm for what the served one has no room for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from tailcut.code.loaded import LoadedCode
from tailcut.errors import ArtifactError, TailcutError
from tailcut.models.background_loading import abandon, close_later, foreseen, in_background
from tailcut.models.deployment_version import is_live, opening_references
from tailcut.models.variant_loader import Warm, close_warm, open_variant
from tailcut.models.warm_up import BRIEF
from tailcut.observe.sample import Sample, gauge
from tailcut.registry import Registry, Variant
from tailcut.serving.deployment_loader import Opened, StandIn, open_beside
from tailcut.serving.variant_checks import FORCED, refuse_other_model, refuse_other_tensors, tell_code

if TYPE_CHECKING:
    from tailcut.serving.engine import Engine

FALLBACK_READY = gauge("tailcut_fallback_ready", "1 while a fallback variant is warm.", "variant")

log = logging.getLogger("tailcut.server")

Check = Callable[[Variant, LoadedCode], None]

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
                self._coming = loop.create_task(self._warm(opened.variant, opened.code.files, self._refuse))
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
        switcher = engine.repository.switcher()
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
                    switcher.failed(foreseen(error), self._what)
            if engine.follower is not None:
                return  # which tries again
            await asyncio.sleep(switcher.retry_s - asyncio.get_running_loop().time())
            if switcher.decisions == before:
                self._loading = asyncio.ensure_future(engine.repository.opened_again(opened))

    @property
    def _what(self) -> str:
        name = self._engine.deployment.serve.variant
        return "the promoted variant" if name == "promoted" else f"serve.variant = {name!r}"

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
        check(variant, files)
        self._engine.host.refuse_too_large(variant)
        code = files.snapshot(live=is_live(variant))
        return open_variant(self._engine.manifest, variant, BRIEF, code=code)

    def _tell_other_code(self, variant: Variant, files: LoadedCode) -> None:
        """Check a fallback at the start: other tensors are refused, other code is logged as a warning."""
        refuse_other_tensors(self._engine.deployment, variant)
        files.import_also(opening_references(self._engine.manifest, variant))
        tell_code(self._engine.deployment, variant, files)

    def _refuse(self, variant: Variant, files: LoadedCode) -> None:
        """Check the fallback of a switch: other code than this process has loaded is refused."""
        refuse_other_model(self._engine.manifest, files, variant)


def _let_go(opening: asyncio.Task[Warm | None] | None) -> None:
    if opening is not None:
        abandon(opening, close_warm)
