"""Estimators with scikit-learn's methods: their outermost call, and each step of those that are put together."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tailcut.profiler.hooks.imports import Hook
from tailcut.profiler.hooks.wrapping import classes_of, replace_methods
from tailcut.profiler.recording.background_calls import background_calls
from tailcut.profiler.recording.captured import captured
from tailcut.profiler.recording.estimators import estimators
from tailcut.profiler.recording.model_libraries import libraries
from tailcut.profiler.recording.tracing import MODEL, PREPROCESS, close_timed, current, open_timed, tracer
from tailcut.profiler.records import Stage

_METHODS: dict[str, Stage] = {
    "predict": MODEL,
    "predict_proba": MODEL,
    "predict_log_proba": MODEL,
    "decision_function": MODEL,
    "transform": PREPROCESS,
}


def timed(function: Callable[..., Any], method: str) -> Any:
    """A method of estimators with a span around its calls.

    Inside of another one a call has its own span where that one is put together from several and this is one of them,
    or where the user's own code makes it.
    """
    stage = _METHODS[method]
    current_span = current.get
    frame_of, is_user, spot = sys._getframe, tracer.places.is_user, tracer.places.spot

    @functools.wraps(function)
    def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
        parent = current_span()
        if parent is None or parent.trace.over:
            with background_calls.counted(stage, f"{type(self).__name__}.{method}"):
                return function(self, *args, **kwargs)
        inside = parent.stage is MODEL or parent.stage is PREPROCESS
        if inside and not parent.parts:
            return function(self, *args, **kwargs)
        frame = frame_of(1)
        direct = is_user(frame.f_code.co_filename)
        if inside and not direct and estimators.known(self) is None:
            return function(self, *args, **kwargs)
        known = estimators.learn(self)
        name = f"{type(self).__name__}.{method}" if known is None else known.name(method)
        if known is not None and known.library:
            libraries.tell(name, known.library)
        place, at = (parent.place, parent.at) if inside and not direct else spot(frame)
        if not place:
            place, at = parent.place, parent.at
        span = open_timed(parent, stage, name, place, at)
        span.parts = known is not None and known.parts is True
        try:
            return function(self, *args, **kwargs)
        finally:
            close_timed(span)
            if not inside and args:
                captured.estimator(self, method, args[0], name, span.end_ns - span.start_ns)

    return traced


def hook_class(owner: type) -> None:
    """Hook the methods of a class."""
    replace_methods(owner, _METHODS, timed)


estimators.hook = hook_class


def _hook_module(module: ModuleType) -> None:
    for owner in classes_of(module):
        hook_class(owner)


HOOKS: dict[str, Hook] = {name: _hook_module for name in ("lightgbm.sklearn", "xgboost.sklearn")}
PREFIXES: dict[str, Hook] = {"sklearn.": _hook_module}
