"""Which variant is served: what the registry promotes, or what is loaded by name, without a restart or a disturbance.

Source of loading by name: Triton's model repository extension (https://github.com/triton-inference-server/server,
docs/protocol/extension_model_repository.md).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Hashable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tailcut.errors import BadRequest, NotFound, NotInRegistry, NotReady, TailcutError
from tailcut.manifest import Manifest
from tailcut.models.background_loading import abandon, close_later, foreseen, in_background
from tailcut.models.variant_loader import Warm, close_warm
from tailcut.observe.sample import Sample, counter, gauge
from tailcut.registry import Registry, Variant, Version, state_of
from tailcut.serving.deployment_loader import Choose, Opened, find_variant, open_beside, open_candidate
from tailcut.serving.variant_checks import FORCED, refuse_unproven, tell_trust

if TYPE_CHECKING:
    from tailcut.serving.engine import Engine

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


class Follower:
    """Switches a running deployment to what is promoted. Owned by the event loop.

    One switch at a time, in this order: notice that the promotion changed, load and warm the new variant up in the
    background, make sure that nothing else was promoted meanwhile, put it in place, let the old one's requests end.
    Whatever fails leaves the old variant in place, and is tried again from time to time: a damaged artifact may have
    been built again, a variant been judged on this machine, a store be back, and none of these changes the promotion.

    Attributes:
        failure: why what is promoted, or named, is not served; None where it is.
        retry_s: when that is tried again at the earliest, by the clock of the event loop.
        loading: whether a variant is being loaded now.
        switches, failures: how many there were.
        decisions: how often it was settled what is served, whether or not that was served already.
        switching: the lock that is held while another variant is put in place.
    """

    def __init__(self, engine: Engine) -> None:
        self.failure: TailcutError | None = None
        self.loading = False
        self.switches = self.failures = self.decisions = 0
        self._engine = engine
        self._manifest = engine.manifest
        self._name = engine.manifest.deployment.name
        self._registry = Registry.of(engine.manifest)
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
            loading = asyncio.ensure_future(in_background(self._load, close_warm))
            is_overtaken = is_taken = False
            try:
                while not is_overtaken and not (await asyncio.wait({loading}, timeout=_PATIENCE_S))[0]:
                    stamp = await self._look()
                    is_overtaken = stamp not in (self._seen, _UNREAD)
                if is_overtaken:
                    log.error("stopped loading a variant: another one was promoted meanwhile")
                    continue
                warm = loading.result()
                stamp = await self._look()
                if stamp in (self._seen, _UNREAD):  # else overtaken: the last promotion wins
                    is_taken = True  # what fails from here on closes it
                    await self.switch(warm)
            except Exception as error:
                self.failed(foreseen(error))
                return
            finally:
                self.loading = False
                if not is_taken:
                    abandon(loading, close_warm)

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
            self._engine.say("the registry can be read again")
        self._unreadable = ""
        return stamp

    def _load(self) -> Warm | None:
        """Open and warm up what is promoted; None where it is served already. Runs in the background."""
        running = self._engine.loaded_variants().opened
        promotion = self._registry.promotion(self._name)
        served = running.variant
        if promotion is not None and (promotion.version, promotion.variant) == (served.version, served.name):
            return None
        variant = self._registry.variant(self._name)
        return open_candidate(self._manifest, running, variant)

    async def switch(self, warm: Warm | None) -> None:
        """Put a variant in place: one assignment on the event loop, so that every request sees one or the other."""
        if warm is None:
            self.failure = None
            self.decisions += 1
            return
        variants = self._engine.loaded_variants()
        old = variants.opened
        try:
            new = open_beside(self._manifest, old, warm, self._engine.sinks)
        except BaseException:
            close_later(close_warm, warm)
            raise
        variants.put(new)
        self.failure = None
        self.switches += 1
        self.decisions += 1
        self._engine.say(
            f"switched to variant {new.variant.name} ({new.variant.runtime}, version {new.variant.version}) from "
            f"{old.variant.name} of {old.variant.version}"
        )
        tell_trust(new.variant)

    def failed(self, error: TailcutError, what: str = "the promoted variant") -> None:
        """Note that it could not be loaded; it is tried again from time to time."""
        served = self._engine.loaded_variants().opened.variant
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


# -- The registry as clients see it ------------------------------------------------------------------------------------


_LONGEST_ID = 64
"""Longer than any; a longer one could be no file's name, which is an error of the disk."""

_NAMES = ("promoted", "latest")
"""Names of versions that are no ids."""


class Repository:
    """The registry as one engine's clients see it. Owned by the event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._own: Follower | None = None

    async def index(self, *, ready_only: bool = False) -> list[dict[str, str]]:
        """List every variant of every version: name, version, state, reason, variant, and its status in the registry.

        Where the registry cannot be read, what is served is listed, with that as the reason.

        Args:
            ready_only: only what answers requests now.

        Raises:
            TailcutError: the registry cannot be read, and nothing is served.
        """
        engine = self._engine
        served = engine.opened.variant if engine.is_loaded else None  # read here: it is the event loop's
        is_ready, unjudged = engine.is_ready, engine.unjudged
        try:
            entries = await asyncio.to_thread(self._entries, served, is_ready, unjudged)
        except TailcutError as error:
            if served is None:
                raise
            state = "READY" if is_ready else "UNAVAILABLE"
            entries = [_entry(served.model, served.version, served.name, "", (state, error.message))]
        return [entry for entry in entries if entry["state"] == "READY" or not ready_only]

    async def load(self, *, version: str = "", variant: str = "") -> None:
        """Serve a variant from now on, without an error and with nothing cold; returns when it is served.

        Where neither is named, what the manifest says is served: the promoted variant, or the one that it names. What
        was chosen here is served until something else is promoted, or until the next start.

        Args:
            version: "promoted", "latest" or an id; by default the one that is served.
            variant: by default the version's promoted one, else the one of the same name as the one that is served.

        Raises:
            NotFound: the registry has no such version or variant.
            BadRequest: the gate has refused the variant's answers.
            NotReady: the deployment is not loaded, or draining.
            ArtifactError: the variant cannot be opened here, or is of another model.
        """
        engine = self._engine
        self._check_state()
        switcher = self.switcher()
        if not (version or variant):
            await engine.fallbacks.loaded()  # which would be opened a second time
        async with switcher.switching:
            self._check_in_use()
            self._check_state()  # again: it has waited, and another variant may have been put in place
            running = engine.opened
            chosen = self.choose(version, variant)
            if engine.follower is not None and not (version or variant):
                await switcher.note()  # what is promoted from here on is followed
            warm = await in_background(partial(self._open, running, chosen), close_warm)
            if not self._is_in_use:  # unloaded meanwhile
                close_later(close_warm, warm)
                self._check_in_use()
            await switcher.switch(warm)
            switcher.loading = False  # what is being loaded still will not be put in place

    def choose(self, version: str = "", variant: str = "") -> Choose:
        """Return what finds the variant to serve: the manifest's where none is named. It blocks; raises as ``load``.

        Args:
            version, variant: see ``load``; where nothing is served, the promoted version.
        """
        if not (version or variant):
            return self._configured
        served = self._engine.opened.variant if self._engine.is_loaded else None
        return partial(self._named, served, version, variant)

    def opened_again(self, running: Opened) -> Coroutine[Any, Any, Warm | None]:
        """Open what the manifest says, in the background; None where that is ``running``."""
        return in_background(partial(self._open, running, self._configured), close_warm)

    @property
    def used(self) -> Follower | None:
        """What puts another variant in place, where it has been needed so far."""
        return self._engine.follower or self._own

    def switcher(self) -> Follower:
        """Return what puts another variant in place."""
        if self._engine.follower is not None:
            return self._engine.follower
        if self._own is None:
            self._own = Follower(self._engine)
        return self._own

    # -- Inside ------------------------------------------------------------------------------------------------------

    def _check_state(self) -> None:
        state = self._engine.state
        if state != "ready":
            raise NotReady(f"the model is {state}", hint="load it when it is ready, unloaded or failed")

    def _check_in_use(self) -> None:
        if self._is_in_use:
            return
        name, state = self._engine.deployment.name, self._engine.state
        if state == "stopped":
            raise NotReady("the server has stopped", hint="load the model on another server")
        raise NotReady(f"model {name!r} was unloaded while this load waited", hint="load it again")

    @property
    def _is_in_use(self) -> bool:
        """Whether a model is served that was not unloaded since this repository was made."""
        engine = self._engine
        return engine.is_loaded and engine.repository is self and engine.state != "stopped"

    def _entries(self, served: Variant | None, is_ready: bool, unjudged: str) -> list[dict[str, str]]:
        """Read the registry; blocks."""
        engine = self._engine
        model = engine.deployment.name
        registry = Registry.of(engine.manifest)
        promotion = registry.promotion(model)
        entries: list[dict[str, str]] = []
        seen = False
        for found_id, version in registry.scan(model):
            if isinstance(version, TailcutError):
                reason = version.message
                entries.append({"name": model, "version": found_id, "state": "UNAVAILABLE", "reason": reason})
                continue
            for name, variant in version.variants.items():
                status = state_of(version, name, promotion)
                is_served = served is not None and (served.version, served.name) == (version.id, name)
                seen = seen or is_served
                why_not = "not served" if served is not None else engine.not_served
                if variant.refused:
                    why_not = f"{'refused' if variant.sha256 else 'not built'}: {variant.refused}"
                state = self._state(is_served, is_ready, unjudged if is_served else why_not)
                entries.append(_entry(model, version.id, name, status, state))
        if served is not None and not seen:
            entries.insert(0, _entry(model, served.version, served.name, "source", self._state(True, is_ready)))
        return entries

    def _state(self, is_served: bool, is_ready: bool, reason: str = "") -> tuple[str, str]:
        if not is_served:
            return "UNAVAILABLE", reason
        return ("READY", f"unjudged: {reason}" * bool(reason)) if is_ready else ("UNAVAILABLE", self._engine.state)

    def _open(self, running: Opened, choose: Choose) -> Warm | None:
        """Open and warm up what is wanted; None where it is served already. Runs in the background."""
        engine = self._engine
        variant = choose(engine.manifest)
        served = running.variant
        if (variant.version, variant.name, variant.sha256) == (served.version, served.name, served.sha256):
            # It may have been judged again, with other features. One assignment: the event loop sees it or does not.
            running.variant = replace(served, feature_models=variant.feature_models)
            return None
        return open_candidate(engine.manifest, running, variant)

    @staticmethod
    def _configured(manifest: Manifest) -> Variant:
        found = find_variant(manifest)
        refuse_unproven(manifest, found)
        return found

    def _named(self, served: Variant | None, version: str, variant: str, manifest: Manifest) -> Variant:
        engine = self._engine
        model = manifest.deployment.name
        registry = Registry.of(manifest)
        version = version or (served.version if served is not None else "promoted")
        if version not in _NAMES and not (version.isascii() and version.isalnum() and len(version) <= _LONGEST_ID):
            raise NotFound(f"{version[:100]!r} is not a version", hint="POST /v2/repository/index lists the versions")
        try:
            record = registry.version(model, version)
            found = registry.variant(model, variant or self._usual(registry, record, served), record.id)
        except NotInRegistry as error:
            raise NotFound(error.message, hint=error.hint) from error
        promotion = registry.promotion(model)
        why = found.evidence.quality_refusal
        if why and not engine.deployment.serve.force and state_of(record, found.name, promotion) != "promoted":
            raise BadRequest(
                f"variant {found.name!r} of version {record.id} was refused by the quality gate: {why}",
                hint=f"load another variant, promote this one with `tailcut registry promote --force`, or set {FORCED}",
            )
        return found

    def _usual(self, registry: Registry, record: Version, served: Variant | None) -> str:
        """Name the variant of a version that is meant where none is named."""
        promotion = registry.promotion(record.model)
        if promotion is not None and (promotion.version == record.id or served is None):
            return promotion.variant
        return served.name if served is not None else next(iter(record.variants))


def _entry(model: str, version: str, variant: str, status: str, state: tuple[str, str]) -> dict[str, str]:
    return {
        "name": model,
        "version": version,
        "state": state[0],
        "reason": state[1],
        "variant": variant,
        "status": status,
    }
