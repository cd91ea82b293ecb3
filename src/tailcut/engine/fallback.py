"""A second, faster variant that is kept warm for what the served one has no room for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from tailcut.engine.opening import Opened, open_beside
from tailcut.engine.seating import Warm, open_variant
from tailcut.engine.switch import in_background, refuse_other_model
from tailcut.errors import ArtifactError, TailcutError
from tailcut.observe.exposition import Sample
from tailcut.registry import Registry, Variant

if TYPE_CHECKING:
    from tailcut.engine.engine import Engine

log = logging.getLogger("tailcut.server")

STALE = "stale"
"""Of ``serve.fallback``: the prediction caches' expired answers, which are the path's own business."""


class Fallbacks:
    """Opens the fallback of whatever is served. Owned by the event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._names = [name for name in engine.deployment.serve.fallback if name != STALE]
        self._task: asyncio.Task[None] | None = None

    def attach(self, opened: Opened) -> None:
        """Open the fallback of what is served from now on, in the background; nothing waits for it."""
        if self._names:
            self.stop()
            self._task = asyncio.get_running_loop().create_task(self._attach(opened))

    def stop(self) -> None:
        """Abandon what is being opened."""
        if self._task is not None:
            self._task.cancel()

    def samples(self, opened: Opened) -> Iterator[Sample]:
        """Yield whether a fallback is warm."""
        if self._names:
            name = opened.fallback.variant.name if opened.fallback is not None else ""
            text = "1 while a fallback variant is warm."
            yield Sample("tailcut_fallback_ready", text, "gauge", {"variant": name}, float(bool(name)))

    async def _attach(self, opened: Opened) -> None:
        for name in self._names:
            if name == opened.variant.name:
                continue
            try:
                warm = await in_background(partial(self._open, opened, name), Warm.close)
            except TailcutError as error:
                log.error("fallback %s of version %s cannot be served: %s", name, opened.variant.version, error)
                continue
            fallback = open_beside(self._engine.manifest, opened, warm, self._engine.recorder)
            opened.fallback, opened.path.fallback = fallback, fallback.path
            log.info("fallback %s of version %s is warm", name, opened.variant.version)
            return

    def _open(self, opened: Opened, name: str) -> Warm:
        """Open and warm up a variant of the version that is served; blocks."""
        deployment = self._engine.deployment
        registry = Registry.of(self._engine.manifest)
        variant: Variant = registry.variant(deployment.name, name, opened.variant.version)
        if variant.refused:
            raise ArtifactError(
                f"variant {name!r} was refused: {variant.refused}",
                hint="name a variant in serve.fallback that passed; see `tailcut registry show`",
            )
        refuse_other_model(deployment, opened, variant)
        return open_variant(self._engine.manifest, variant, opened.path.specs, min)
