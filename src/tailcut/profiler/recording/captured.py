"""The application's own models with one real input each, kept while it is profiled, to time their layers and graphs.

Runs in the profiled process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tailcut.errors import ProfileError
from tailcut.profiler.attribution.layers import Conversion, ModelLayers

if TYPE_CHECKING:
    # The profiled process imports NumPy only where its application does.
    from tailcut.common.tensors import Arrays

_MOST = 4
"""Models that are kept: an application with more is known by its first."""
_FOUND = 2
"""Models that are timed: the two that took most time."""


class FoundLayers(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of the application's own models.

    Args:
        layers: of those that took most time.
        conversions: of estimators among them.
        notes: why those of others could not be timed.
    """

    layers: tuple[ModelLayers, ...] = ()
    conversions: tuple[Conversion, ...] = ()
    notes: tuple[str, ...] = ()


class _Kept(msgspec.Struct):
    name: str
    model: Any
    """Held, so that its id stays its own."""
    find: Callable[[], ModelLayers | Conversion]
    spent_ns: int = 0


class Captured:
    """Models that were called, by their ids."""

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}

    def torch(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], took_ns: int) -> None:
        """Take in a call of an outermost torch module."""
        name = type(module).__name__
        self._call(name, module, lambda: _of_torch(module, args, dict(kwargs), name), took_ns)

    def onnx(self, session: Any, feeds: Any, took_ns: int) -> None:
        """Take in a call of an onnxruntime session with inputs by name."""
        source = getattr(session, "_model_path", None) or getattr(session, "_model_bytes", None)
        if source and isinstance(feeds, dict):
            name = Path(source).name if isinstance(source, (str, Path)) else "an ONNX model"
            self._call(name, session, lambda: _of_onnx(session, source, dict(feeds), name), took_ns)

    def estimator(self, owner: Any, method: str, rows: Any, name: str, took_ns: int) -> None:
        """Take in a call of an outermost estimator."""
        self._call(name, owner, lambda: _of_estimator(owner, method, rows, name), took_ns)

    def clear(self) -> None:
        """Forget them: the recording begins, and what a model was warmed up with is no request's input."""
        self._kept = {}

    def find(self) -> FoundLayers:
        """Time the layers of the models that took most time, convert estimators, and say what could not be done.

        Takes some seconds each; nothing else may call them meanwhile.
        """
        layers: list[ModelLayers] = []
        conversions: list[Conversion] = []
        notes: list[str] = []
        called = sorted(self._kept.values(), key=lambda one: -one.spent_ns)
        for one in called[:_FOUND]:
            if not one.spent_ns:
                continue
            try:
                found = one.find()
            except ProfileError as error:
                notes.append(f"no slow layers of {one.name}: {error.message}")
                continue
            if isinstance(found, Conversion):
                conversions.append(found)
            else:
                layers.append(found)
        return FoundLayers(layers=tuple(layers), conversions=tuple(conversions), notes=tuple(notes))

    def _call(self, name: str, model: Any, find: Callable[[], ModelLayers | Conversion], took_ns: int) -> None:
        kept = self._kept.get(id(model))
        if kept is None and len(self._kept) < _MOST:
            kept = self._kept[id(model)] = _Kept(name, model, find)
        if kept is not None:
            kept.spent_ns += took_ns


captured = Captured()


def _of_torch(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> ModelLayers:
    from tailcut.profiler.layers.torch import of_torch

    return of_torch(module, args, kwargs, name)


def _of_onnx(session: Any, source: str | Path | bytes, feeds: Arrays, name: str) -> ModelLayers:
    from tailcut.profiler.layers.onnx import of_onnx

    threads = 0
    with suppress(AttributeError):
        threads = session.get_session_options().intra_op_num_threads
    model = source if isinstance(source, bytes) else Path(source)
    return of_onnx(model, feeds, name, threads=threads, providers=tuple(session.get_providers()))


def _of_estimator(owner: Any, method: str, rows: Any, name: str) -> Conversion:
    from tailcut.profiler.conversion import of_estimator

    return of_estimator(owner, method, rows, name)
