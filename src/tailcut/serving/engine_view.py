"""The part of ``deployment.Engine`` that its fallbacks and its repository use, so that they need not import it."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from tailcut.errors import TailcutError
from tailcut.manifest import Deployment, Manifest
from tailcut.observe.model_sinks import ModelSinks
from tailcut.serving.deployment_loader import Opened, Warm
from tailcut.serving.host_state import HostState
from tailcut.serving.promotion_watcher import Follower
from tailcut.serving.variants import Variants


class FallbackView(Protocol):
    """What the repository uses of ``fallback.Fallbacks``."""

    async def loaded(self) -> None:
        """See ``Fallbacks.loaded``."""
        ...


class RepositoryView(Protocol):
    """What the fallbacks use of ``repository.Repository``."""

    def switcher(self) -> Follower:
        """See ``Repository.switcher``."""
        ...

    def opened_again(self, running: Opened) -> Coroutine[Any, Any, Warm | None]:
        """See ``Repository.opened_again``."""
        ...


class EngineView(Protocol):
    """One deployment; see ``deployment.Engine``."""

    manifest: Manifest
    deployment: Deployment
    host: HostState
    sinks: ModelSinks
    follower: Follower | None

    @property
    def state(self) -> str: ...

    @property
    def failure(self) -> TailcutError | None: ...

    @property
    def fallbacks(self) -> FallbackView: ...

    @property
    def repository(self) -> RepositoryView: ...

    @property
    def not_served(self) -> str: ...

    @property
    def is_loaded(self) -> bool: ...

    @property
    def is_ready(self) -> bool: ...

    @property
    def unjudged(self) -> str: ...

    @property
    def opened(self) -> Opened: ...

    def loaded_variants(self) -> Variants: ...

    def make_follower(self) -> Follower: ...
