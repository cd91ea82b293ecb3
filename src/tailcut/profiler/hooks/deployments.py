"""tailcut itself, where an application serves a deployment: the deployment's hooks are the user's code."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from tailcut.profiler.hooks.imports import Hook
from tailcut.profiler.hooks.wrapping import replaces
from tailcut.profiler.recording.tracing import CODE, current, open_timed, tracer


def _hook_user_code(module: ModuleType) -> None:
    """The hooks are called by tailcut, so no frame of the user's is around them: each call gets a span."""
    original = module.import_code

    @replaces(module, "import_code")
    def import_code(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        return found._replace(
            preprocess=_spanned("preprocess", found.preprocess), postprocess=_spanned("postprocess", found.postprocess)
        )


def _spanned(kind: str, hook: Any) -> Any:
    """Return the hook with a span around each call; one that is not the user's as it is."""
    if hook is None:
        return None
    name, place, own = tracer.places.describe(hook)
    if not own:
        return hook
    label = f"{kind} {name}"

    @functools.wraps(hook)
    def spanned(*args: Any, **kwargs: Any) -> Any:
        parent = current.get()
        if parent is None or parent.trace.over:
            return hook(*args, **kwargs)
        with open_timed(parent, CODE, label, place):
            return hook(*args, **kwargs)

    return spanned


HOOKS: dict[str, Hook] = {"tailcut.pipeline.hook_loading": _hook_user_code}
