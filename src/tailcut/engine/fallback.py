"""A second, faster variant that is kept warm for what the served one has no room for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tailcut.core.validation import InputSpec
from tailcut.engine.opening import Opened, StandIn, open_beside
from tailcut.engine.seating import Warm, open_variant
from tailcut.engine.switch import foreseen, in_background, refuse_other_tensors
from tailcut.errors import ArtifactError, TailcutError
from tailcut.observe.exposition import Sample
from tailcut.registry import Registry, Variant

if TYPE_CHECKING:
    from tailcut.engine.engine import Engine

log = logging.getLogger("tailcut.server")

STALE = "stale"
"""Of ``serve.fallback``: the prediction caches' expired answers, which are the path's own business."""


class Fallbacks:
    """Opens the fallback of whatever is served. Owned by the event loop.

    At the start it is opened beside what it is the fallback of, and stands in for that where it is warm before.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._names = [name for name in engine.deployment.serve.fallback if name != STALE]
        self._attaching: asyncio.Task[None] | None = None
        self._relieving: asyncio.Task[None] | None = None
        self._first: asyncio.Task[Warm | None] | None = None
        self._standing: Opened | None = None

    @property
    def stand_in(self) -> StandIn | None:
        """Opens what answers until the variant to serve is warm; None where the manifest names none."""
        return self._begin if self._names else None

    def attach(self, opened: Opened) -> None:
        """Open the fallback of what is served from now on, in the background; nothing waits for it."""
        if not self._names:
            return
        first, self._first = self._first, None
        standing, self._standing = self._standing, None
        if opened.loading is not None:
            self._standing = opened
        elif standing is not None and standing.variant.version == opened.variant.version:
            opened.fallback, opened.path.fallback = standing, standing.path
        else:
            _cancel(self._attaching)
            self._attaching = asyncio.get_running_loop().create_task(self._attach(opened, first))

    def relieve(self, opened: Opened) -> None:
        """Where ``opened`` stands in for another variant, put that in its place as soon as it is warm."""
        if opened.loading is not None:
            self._relieving = asyncio.get_running_loop().create_task(self._relieve(opened, opened.loading))

    def stop(self) -> None:
        """Abandon what is being opened."""
        for task in (self._attaching, self._relieving, self._first):
            _cancel(task)

    def samples(self, opened: Opened) -> Iterator[Sample]:
        """Yield whether a fallback is warm."""
        if self._names:
            name = opened.fallback.variant.name if opened.fallback is not None else ""
            text = "1 while a fallback variant is warm."
            yield Sample("tailcut_fallback_ready", text, "gauge", {"variant": name}, float(bool(name)))

    # -- Inside ------------------------------------------------------------------------------------------------------

    def _begin(self, variant: Variant, specs: Sequence[InputSpec]) -> asyncio.Task[Warm | None]:
        self._first = asyncio.get_running_loop().create_task(self._warm(variant, specs))
        return self._first

    async def _attach(self, opened: Opened, first: asyncio.Task[Warm | None] | None) -> None:
        warm = await (first if first is not None else self._warm(opened.variant, opened.path.specs))
        if warm is not None:
            fallback = open_beside(self._engine.manifest, opened, warm, self._engine.recorder)
            opened.fallback, opened.path.fallback = fallback, fallback.path
            log.info("fallback %s of version %s is warm", warm.variant.name, opened.variant.version)

    async def _relieve(self, opened: Opened, loading: asyncio.Future[Warm]) -> None:
        variant = opened.variant
        log.info("fallback %s of version %s answers until what is to be served is warm", variant.name, variant.version)
        switcher = self._engine.repository.switcher()
        async with switcher.switching:  # what is promoted meanwhile is followed afterwards
            switcher.loading = True
            try:
                await switcher.switch(await loading)
            except Exception as error:
                switcher.failed(foreseen(error))
            finally:
                switcher.loading = False

    async def _warm(self, served: Variant, specs: Sequence[InputSpec]) -> Warm | None:
        """Open the first that can be opened; None where none can."""
        for name in self._names:
            if name == served.name:
                continue
            try:
                return await in_background(partial(self._open, served, specs, name), Warm.close)
            except TailcutError as error:
                log.error("fallback %s of version %s cannot be served: %s", name, served.version, error)
        return None

    def _open(self, served: Variant, specs: Sequence[InputSpec], name: str) -> Warm:
        """Open and warm up a variant of the version that is served; blocks."""
        deployment = self._engine.deployment
        registry = Registry.of(self._engine.manifest)
        variant: Variant = registry.variant(deployment.name, name, served.version)
        if variant.refused:
            raise ArtifactError(
                f"variant {name!r} was refused: {variant.refused}",
                hint="name a variant in serve.fallback that passed; see `tailcut registry show`",
            )
        refuse_other_tensors(deployment, variant)
        return open_variant(self._engine.manifest, variant, specs, min)


def _cancel(task: asyncio.Task[Any] | None) -> None:
    if task is not None:
        task.cancel()
