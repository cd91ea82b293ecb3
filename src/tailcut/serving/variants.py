"""The loaded variants of one deployment: the one that is served, its fallback, and those that are replaced."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter

from tailcut.observe.model_sinks import ModelSinks
from tailcut.observe.sample import Sample, gauge
from tailcut.observe.sinks import VariantSwitch
from tailcut.pipeline.request_context import RequestContext
from tailcut.serving.deployment_loader import Opened

RETIRING = gauge("tailcut_variants_retiring", "Variants no longer served whose last requests are still in flight.")

log = logging.getLogger("tailcut.server")

_LOOK_S = 0.01

_STORES_S = 1.0
"""For hooks, features and caches to close after the last request has ended."""


class Variants:
    """Changes which variant is served, and closes those that are replaced. Owned by the event loop.

    One object per load of the deployment: ``retire`` or ``stop`` is its end. A switch is one call of ``put``, by the
    follower of promotions, the repository API, or the fallback that stands in for a slow load. It changes the router at
    once, so that every request sees the variants before it or those after it. A replaced variant is closed when the
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
        self.pipeline.router.put(opened.served)
        before = ("", "") if old is opened else (old.variant.name, old.variant.version)
        self._sinks.switch(VariantSwitch(opened.variant.name, opened.variant.version, before))
        self._on_put(opened)
        if old is not opened and opened.fallback is not old:
            self._replaced[old] = task = asyncio.get_running_loop().create_task(self._close_after_requests(old))
            task.add_done_callback(lambda ended: self._closed(old, ended))

    def set_fallback(self, fallback: Opened) -> None:
        """Have another variant take what the one that is served has no room for."""
        self.opened.fallback = fallback
        self.pipeline.router.put(self.opened.served, fallback.served)

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
                if each is not None and each.executor == "inline":
                    # Freeing a large model takes long; executors with a thread of their own do it there.
                    await loop.run_in_executor(None, each.close)
        finally:
            await old.stop(max(give_up_s - loop.time(), _LOOK_S))

    def _closed(self, old: Opened, ended: asyncio.Task[None]) -> None:
        if ended.cancelled():
            return  # by a stop, which closes it
        self._replaced.pop(old, None)
        if (error := ended.exception()) is not None:
            what = f"variant {old.variant.name} of version {old.variant.version}"
            log.error("%s is no longer served but did not close", what, exc_info=error)
