"""What the registry has of the served model, and loading and unloading it: for every protocol in front.

Source: Triton's model repository extension (https://github.com/triton-inference-server/server,
docs/protocol/extension_model_repository.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tailcut.errors import BadRequest, NotFound, NotInRegistry, NotReady, TailcutError
from tailcut.manifest import Manifest
from tailcut.models.background_loading import close_later, in_background
from tailcut.models.deployment_version import is_live
from tailcut.models.variant_loader import close_warm
from tailcut.models.warm_up import BRIEF
from tailcut.registry import Registry, Variant, Version, state_of
from tailcut.registry.records import VariantRecord
from tailcut.serving.deployment_loader import Choose, Opened, Warm, find_variant, open_variant
from tailcut.serving.promotion_watcher import Follower
from tailcut.serving.variant_checks import FORCED, refuse_other_model, refuse_unjudged, refuse_unproven

if TYPE_CHECKING:
    from tailcut.serving.engine import Engine

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
            self._own = self._engine.make_follower()
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
                why_not = _why_not(variant) or ("not served" if served is not None else engine.not_served)
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
        refuse_other_model(engine.manifest, running.code.files, variant)
        refuse_unjudged(engine.deployment, variant, running.versions)
        engine.host.refuse_too_large(variant)
        code = running.code.files.snapshot(live=is_live(variant))
        return open_variant(engine.manifest, variant, BRIEF, code=code, must_answer=running.answers_invented)

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


def _why_not(variant: VariantRecord) -> str:
    """Say why a variant can not be served; empty where it can."""
    if not variant.refused:
        return ""
    return f"{'refused' if variant.sha256 else 'not built'}: {variant.refused}"


def _entry(model: str, version: str, variant: str, status: str, state: tuple[str, str]) -> dict[str, str]:
    return {
        "name": model,
        "version": version,
        "state": state[0],
        "reason": state[1],
        "variant": variant,
        "status": status,
    }
