"""Inputs of an application's models, kept for ``tailcut parity``: those of the outermost call of each library.

Runs in the application's process, in place of the profiler's hooks. It imports no library that the application does
not import.
"""

from __future__ import annotations

import functools
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any

import msgspec

Hook = Callable[[ModuleType], None]
_METHODS = ("predict", "predict_proba", "predict_log_proba", "decision_function", "transform")
_MOST_CALLS = 1024
_MOST_VALUES = 200_000


class ModelCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a model.

    Args:
        model: class and method.
        named: inputs by name: keyword arguments, feeds, columns of a DataFrame; each a list of rows.
        placed: inputs by position, each a list of rows.
    """

    model: str
    named: dict[str, list[Any]] = {}
    placed: tuple[list[Any], ...] = ()


class ModelInputs:
    """The calls since they were last taken; the oldest are dropped beyond a limit."""

    def __init__(self) -> None:
        self._calls: deque[ModelCall] = deque(maxlen=_MOST_CALLS)
        self._inside = threading.local()

    def recorded(self, function: Any, name: Callable[[Any], str]) -> Any:
        """Return the same function; its outermost calls are kept."""

        @functools.wraps(function)
        def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "model", False):
                return function(owner, *args, **kwargs)
            self._inside.model = True
            try:
                self._keep(name(owner), args, kwargs)
                return function(owner, *args, **kwargs)
            finally:
                self._inside.model = False

        call._tailcut = True  # type: ignore[attr-defined]
        return call

    def take(self) -> tuple[ModelCall, ...]:
        """Hand out the calls since the last time."""
        found = tuple(self._calls)
        self._calls.clear()
        return found

    def _keep(self, model: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Copy the inputs; those that cannot be read are left out."""
        with suppress(Exception):  # whatever is wrong with them is the application's call to find
            named: dict[str, list[Any]] = {}
            placed: list[list[Any]] = []
            for name, value in (*(("", one) for one in args), *kwargs.items()):
                columns = _columns(value)
                if columns is not None:
                    named.update(columns)
                elif (rows := _rows(value)) is not None:
                    if name:
                        named[name] = rows
                    else:
                        placed.append(rows)
            if named or placed:
                self._calls.append(ModelCall(model=model, named=named, placed=tuple(placed)))


model_inputs = ModelInputs()


def install_input_hooks() -> None:
    """Hook the model libraries that the application imports, from now on."""
    from tailcut.profiler.hooks.imports import ImportHooks

    ImportHooks(_HOOKS, {"sklearn.": _hook_estimators}).install()


def _columns(value: Any) -> dict[str, list[Any]] | None:
    """Read a DataFrame, or a mapping of arrays, by its columns; None where it is neither."""
    if hasattr(value, "columns") and hasattr(value, "iloc"):
        return {str(name): _plain(value[name].tolist()) for name in value.columns}
    if isinstance(value, Mapping):
        found = {str(name): _rows(one) for name, one in value.items()}
        return {name: rows for name, rows in found.items() if rows is not None}
    return None


def _rows(value: Any) -> list[Any] | None:
    """Read a tensor, an array, a sparse matrix or lists as a list of rows; None where it is none of these."""
    for method in ("detach", "cpu", "toarray"):
        if hasattr(value, method):
            value = getattr(value, method)()
    if hasattr(value, "numpy") and not hasattr(value, "tolist"):
        value = value.numpy()
    shape = getattr(value, "shape", None)
    if shape is not None and hasattr(value, "tolist"):
        if not shape or getattr(value, "size", 0) == 0 or math.prod(map(int, shape)) > _MOST_VALUES:
            return None
        return _plain(value.tolist())
    return _plain(value) if isinstance(value, (list, tuple)) and value else None


def _plain(values: Any) -> list[Any]:
    """Rows as JSON has them: nested lists of numbers, texts and None."""
    return [_plain(one) if isinstance(one, (list, tuple)) else _plain_value(one) for one in values]


def _plain_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    item = getattr(value, "item", None)
    found = item() if callable(item) else None
    return found if isinstance(found, (bool, int, float, str)) else str(value)


def _method(name: str) -> Callable[[Any], str]:
    return lambda owner: f"{type(owner).__name__}.{name}"


def _methods(owner_name: str, names: tuple[str, ...]) -> Hook:
    def hook(module: ModuleType) -> None:
        owner = getattr(module, owner_name)
        for name in names:
            function = getattr(owner, name, None)
            if function is not None and not getattr(function, "_tailcut", False):
                setattr(owner, name, model_inputs.recorded(function, _method(name)))

    return hook


def _hook_onnxruntime(module: ModuleType) -> None:
    owner = getattr(module, "Session", module.InferenceSession)
    run = owner.run

    @functools.wraps(run)
    def run_feeds(self: Any, output_names: Any, input_feed: Any, *rest: Any, **named: Any) -> Any:
        def inner(_: Any, __: Any) -> Any:
            return run(self, output_names, input_feed, *rest, **named)

        return model_inputs.recorded(inner, lambda _: "InferenceSession.run")(self, input_feed)

    owner.run = run_feeds


def _hook_estimators(module: ModuleType) -> None:
    """Each estimator class of a module of scikit-learn has its own methods."""
    from tailcut.profiler.hooks.wrapping import classes_of, replace_methods

    for owner in classes_of(module):
        replace_methods(owner, _METHODS, lambda function, name: model_inputs.recorded(function, _method(name)))


_HOOKS: dict[str, Hook] = {
    "torch.nn.modules.module": _methods("Module", ("__call__",)),
    "onnxruntime.capi.onnxruntime_inference_collection": _hook_onnxruntime,
    "xgboost.core": _methods("Booster", ("inplace_predict",)),
    "xgboost.sklearn": _methods("XGBModel", ("predict", "predict_proba")),
    "lightgbm.basic": _methods("Booster", ("predict",)),
    "catboost.core": _methods("CatBoost", ("predict",)),
    "openvino._ov_api": _methods("CompiledModel", ("__call__",)),
    "keras.src.models.model": _methods("Model", ("__call__", "predict")),
}
