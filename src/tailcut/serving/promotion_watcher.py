"""Follows the registry: what is promoted there is served here, without a restart and without a disturbance."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from tailcut.errors import TailcutError
from tailcut.manifest import Manifest
from tailcut.models.background_loading import abandon, close_later, foreseen, in_background
from tailcut.models.deployment_version import is_live
from tailcut.models.runtime_import import bring_in
from tailcut.models.runtimes.priority import lower_priority
from tailcut.models.variant_loader import close_warm
from tailcut.models.warm_up import BRIEF
from tailcut.observe.recorder import ModelSinks
from tailcut.observe.sample import Sample, counter, gauge
from tailcut.registry import Registry, Variant
from tailcut.serving.deployment_loader import Warm, open_beside, open_variant
from tailcut.serving.variant_checks import refuse_other_model, refuse_unjudged, tell_trust
from tailcut.serving.variants import Variants

SWITCHES = counter(
    "tailcut_switches",
    "Switches to another promoted variant, by outcome; after a failure the old variant stays.",
    "outcome",
)
SWITCH_FAILED = gauge(
    "tailcut_switch_failed", "1 while the promoted variant could not be loaded and an older variant is served."
)
REGISTRY_UNREACHABLE = gauge(
    "tailcut_registry_unreachable",
    "1 while the registry cannot be read, so that promotions are not seen; the current variant stays.",
)

log = logging.getLogger("tailcut.server")

_UNREAD = object()

_RETRY_S = 30.0
_LONGEST_RETRY_S = 600.0
"""After a failure the same promotion is tried again after the first, then after twice as long, up to the second:
loading takes processor time from requests."""

_PATIENCE_S = 60.0
"""Loading that took this long is abandoned where something else was promoted meanwhile: it may hang for good."""


class _Overtaken(Exception):
    """Something else was promoted while a variant was being loaded."""

    def __init__(self, stamp: Hashable) -> None:
        super().__init__()
        self.stamp = stamp


class Follower:
    """Switches a running deployment to what is promoted. Owned by the event loop.

    One switch at a time, in this order: notice that the promotion changed, load and warm the new variant up in the
    background, make sure that nothing else was promoted meanwhile, put it in place, let the old one's requests end.
    Whatever fails leaves the old variant in place, and is tried again from time to time: a damaged artifact may have
    been built again, a variant been judged on this machine, a store be back, and none of these changes the promotion.

    Args:
        manifest: of the deployment.
        variants: returns the loaded variants; raises NotReady where there are none.
        say: tells the operator of a switch.
        refuse_too_large: see ``HostState.refuse_too_large``.

    Attributes:
        failure: why what is promoted, or named, is not served; None where it is.
        retry_s: when that is tried again at the earliest, by the clock of the event loop.
        loading: whether a variant is being loaded now.
        switches, failures: how many there were.
        decisions: how often it was settled what is served, whether or not that was served already.
        switching: the lock that is held while another variant is put in place.
    """

    def __init__(
        self,
        manifest: Manifest,
        *,
        variants: Callable[[], Variants],
        sinks: ModelSinks,
        say: Callable[[str], None],
        refuse_too_large: Callable[[Variant], None],
    ) -> None:
        self.failure: TailcutError | None = None
        self.loading = False
        self.switches = self.failures = self.decisions = 0
        self._manifest = manifest
        self._name = manifest.deployment.name
        self._registry = Registry.of(manifest)
        self._variants = variants
        self._sinks = sinks
        self._say = say
        self._refuse_too_large = refuse_too_large
        self._seen: Hashable = _UNREAD
        self._unreadable = ""
        self.retry_s = 0.0
        self.switching = asyncio.Lock()
        self._pause_s, self._told = _RETRY_S, ""
        self._task: asyncio.Task[None] | None = None

    async def note(self) -> None:
        """Record what is promoted, before it is loaded: what is promoted meanwhile is then followed."""
        self._seen = await asyncio.to_thread(self._stamp)

    def start(self) -> None:
        """Look every ``serve.follow`` from now on."""
        self._task = asyncio.get_running_loop().create_task(
            self._follow(float(self._manifest.deployment.serve.follow_s))
        )

    def end(self) -> None:
        """Look no more and abandon what is being loaded."""
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """End, and return when it has."""
        self.end()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def look(self) -> None:
        """Look once, and follow where the promotion has changed; what fails is told, not raised."""
        stamp = await self._look()
        again = self.failure is not None and asyncio.get_running_loop().time() >= self.retry_s
        while stamp is not _UNREAD and (again or stamp != self._seen):
            if stamp != self._seen:
                self._pause_s, self._told = _RETRY_S, ""
            self._seen, again = stamp, False
            self.loading = True
            try:
                warm = await self._loaded()
                try:
                    stamp = await self._look()
                except BaseException:  # ended meanwhile
                    close_later(close_warm, warm)
                    raise
                if stamp in (self._seen, _UNREAD):
                    await self.switch(warm)
                else:
                    close_later(close_warm, warm)  # overtaken: the last promotion wins
            except _Overtaken as overtaken:
                stamp = overtaken.stamp
            except Exception as error:
                self.failed(foreseen(error))
                return
            finally:
                self.loading = False

    def describe(self) -> dict[str, Any]:
        """What there is to say of a promotion that is not served (yet); empty where there is nothing."""
        if self.failure is not None:
            said = {"error": self.failure.message, "hint": self.failure.hint}
            return {"promotion": {"state": "failed", **said}}
        if self._unreadable:
            return {"promotion": {"state": "unreadable", "error": self._unreadable}}
        return {"promotion": {"state": "loading"}} if self.loading else {}

    def samples(self) -> Iterator[Sample]:
        """Yield the counts of switches."""
        for outcome, count in (("done", self.switches), ("failed", self.failures)):
            yield SWITCHES(count, outcome)
        yield SWITCH_FAILED(float(self.failure is not None))
        yield REGISTRY_UNREACHABLE(float(bool(self._unreadable)))

    # -- Inside ------------------------------------------------------------------------------------------------------

    async def _follow(self, period_s: float) -> None:
        while True:
            await asyncio.sleep(period_s)
            try:
                async with self.switching:
                    await self.look()
            except Exception:  # a bug must not end the following for good, and in silence
                log.exception("cannot follow promotions; the old variant stays")

    def _stamp(self) -> Hashable:
        return self._registry.promotion_stamp(self._name)

    async def _look(self) -> Hashable:
        """Read the stamp; ``_UNREAD`` where that fails, which is told once."""
        try:
            stamp = await asyncio.to_thread(self._stamp)
        except Exception as error:
            said = error.explained if isinstance(error, TailcutError) else f"{type(error).__name__}: {error}"
            if not self._unreadable:
                log.error("cannot read the promoted variant, the current variant stays: %s", said)
            self._unreadable = said
            return _UNREAD
        if self._unreadable:
            self._say("the registry can be read again")
        self._unreadable = ""
        return stamp

    async def _loaded(self) -> Warm | None:
        """Open and warm up what is promoted, in the background.

        Raises:
            _Overtaken: something else was promoted, and this takes so long that it may never end.
        """
        loading = asyncio.ensure_future(in_background(self._load, close_warm))
        try:
            while not (await asyncio.wait({loading}, timeout=_PATIENCE_S))[0]:
                stamp = await self._look()
                if stamp not in (self._seen, _UNREAD):
                    log.error("stopped loading a variant: another one was promoted meanwhile")
                    raise _Overtaken(stamp)
            return loading.result()
        except BaseException:
            abandon(loading, close_warm)
            raise

    def _load(self) -> Warm | None:
        """Open and warm up what is promoted; None where it is served already. Runs in the background."""
        running = self._variants().opened
        promotion = self._registry.promotion(self._name)
        served = running.variant
        if promotion is not None and (promotion.version, promotion.variant) == (served.version, served.name):
            return None
        variant = self._registry.variant(self._name)
        refuse_other_model(self._manifest, running.code.files, variant)
        refuse_unjudged(self._manifest.deployment, variant, running.versions)
        self._refuse_too_large(variant)
        for runtime in (variant.runtime, *variant.part_runtimes):
            bring_in(runtime)
        pool = self._manifest.deployment.pool
        if variant.runtime == "onnxruntime" and pool.threads_of(variant.settings) == 1:
            lower_priority()  # it starts no thread that would inherit this for good
        # The least of several runs: others use the processor meanwhile, and this thread gives way to them.
        code = running.code.files.snapshot(live=is_live(variant))
        return open_variant(self._manifest, variant, BRIEF, code=code, must_answer=running.answers_invented)

    async def switch(self, warm: Warm | None) -> None:
        """Put a variant in place: one assignment on the event loop, so that every request sees one or the other."""
        if warm is None:
            self.failure = None
            self.decisions += 1
            return
        variants = self._variants()
        old = variants.opened
        try:
            new = open_beside(self._manifest, old, warm, self._sinks)
        except BaseException:
            close_later(close_warm, warm)
            raise
        variants.put(new)
        self.failure = None
        self.switches += 1
        self.decisions += 1
        self._say(
            f"switched to variant {new.variant.name} ({new.variant.runtime}, version {new.variant.version}) from "
            f"{old.variant.name} of {old.variant.version}"
        )
        tell_trust(new.variant)

    def failed(self, error: TailcutError, what: str = "the promoted variant") -> None:
        """Note that it could not be loaded; it is tried again from time to time."""
        served = self._variants().opened.variant
        self.failure = error
        self.failures += 1
        self.retry_s = asyncio.get_running_loop().time() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_RETRY_S)
        if self._told == error.message:
            return
        self._told = error.message
        log.error(
            "%s cannot be served, variant %s of version %s stays: %s",
            what,
            served.name,
            served.version,
            error,
            exc_info=error.__cause__ if error.__cause__ and not isinstance(error.__cause__, TailcutError) else None,
        )
