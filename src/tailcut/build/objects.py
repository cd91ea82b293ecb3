"""The user's object behind one callable, for a model whose tensors are not in a manifest yet."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tailcut.core.tensors import Array, Arrays
from tailcut.manifest import Tensor

Objects = Callable[[Arrays], list[Array]]


def is_module(model: Any) -> bool:
    """Tell whether a model is a torch.nn.Module."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def names_of(model: Any) -> list[str]:
    """Return the inputs that a model names: the columns of an estimator, the arguments of a module."""
    fitted = getattr(model, "feature_names_in_", None)
    if fitted is not None:
        return [str(name) for name in fitted]
    forward = getattr(model, "forward", None)
    return list(inspect.signature(forward).parameters) if forward is not None else []


def caller(model: Any, inputs: Sequence[Tensor]) -> Objects:
    """Return what calls the user's object: input arrays by name -> output arrays in the object's order."""
    return _module(model.eval(), inputs) if is_module(model) else _table(model, inputs)


def session(path: Path) -> tuple[Any, Objects]:
    """Open an .onnx file; (the onnxruntime session, what calls it)."""
    import onnxruntime

    opened = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return opened, lambda arrays: list(opened.run(None, arrays))


def _module(module: Any, inputs: Sequence[Tensor]) -> Objects:
    import torch

    def run(arrays: Arrays) -> list[Array]:
        with torch.inference_mode():
            given = module(*(torch.from_numpy(np.array(arrays[tensor.name])) for tensor in inputs))
        return [each.numpy() for each in (given if isinstance(given, tuple | list) else (given,))]

    return run


def _table(model: Any, inputs: Sequence[Tensor]) -> Objects:
    """An estimator or booster on the frame that it was fitted on, else on one matrix."""

    def run(arrays: Arrays) -> list[Array]:
        if set(names_of(model)) == {tensor.name for tensor in inputs}:
            import pandas

            table: Any = pandas.DataFrame({name: arrays[name] for name in names_of(model)})
        else:
            parts = [arrays[tensor.name] for tensor in inputs]
            table = np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
        xgboost = sys.modules.get("xgboost")
        if xgboost is not None and isinstance(model, xgboost.Booster):
            table = xgboost.DMatrix(table)
        given = np.asarray(model.predict_proba(table) if hasattr(model, "predict_proba") else model.predict(table))
        if given.ndim == 2 and given.shape[1] == 2 and hasattr(model, "predict_proba"):
            given = given[:, 1]
        return [given[:, 0] if given.ndim == 2 and given.shape[1] == 1 else given]

    return run
