"""The application's own models with one real input each, kept while it is profiled, to time their layers and graphs.

Runs in the profiled process. A call that has been kept costs one look-up in a dictionary.
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


class _Kept:
    __slots__ = ("find", "model", "name", "spent_ns")

    def __init__(self, name: str, model: Any, find: Callable[[], ModelLayers | Conversion]) -> None:
        self.name = name
        self.model = model  # held, so that its id stays its own
        self.find = find
        self.spent_ns = 0


class Captured:
    """Models that were called, by their ids."""

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}

    def torch(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], took_ns: int) -> None:
        """Take in a call of an outermost torch module."""
        kept = self._kept.get(id(module))
        if kept is None:
            if len(self._kept) >= _MOST:
                return
            name = type(module).__name__
            kept = self._keep(name, module, lambda: _of_torch(module, args, dict(kwargs), name))
        kept.spent_ns += took_ns

    def onnx(self, session: Any, feeds: Any, took_ns: int) -> None:
        """Take in a call of an onnxruntime session with inputs by name."""
        kept = self._kept.get(id(session))
        if kept is None:
            source = getattr(session, "_model_path", None) or getattr(session, "_model_bytes", None)
            if len(self._kept) >= _MOST or not source or not isinstance(feeds, dict):
                return
            name = Path(source).name if isinstance(source, (str, Path)) else "an ONNX model"
            kept = self._keep(name, session, lambda: _of_onnx(session, source, dict(feeds), name))
        kept.spent_ns += took_ns

    def estimator(self, owner: Any, method: str, rows: Any, name: str, took_ns: int) -> None:
        """Take in a call of an outermost estimator."""
        kept = self._kept.get(id(owner))
        if kept is None:
            if len(self._kept) >= _MOST:
                return
            kept = self._keep(name, owner, lambda: _of_estimator(owner, method, rows, name))
        kept.spent_ns += took_ns

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

    def _keep(self, name: str, model: Any, find: Callable[[], ModelLayers | Conversion]) -> _Kept:
        kept = self._kept[id(model)] = _Kept(name, model, find)
        return kept


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
