"""Sources for tests of derived bounds: a module, a graph or an estimator behind one callable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailcut.builder.bounds import of_source
from tailcut.builder.bounds.trials import PATIENCE_S
from tailcut.common.bounds import Bound
from tailcut.common.tensors import Arrays
from tailcut.manifest import TensorSpec

Call = Callable[[Arrays], Arrays]


def of_module(module: Any, inputs: Sequence[TensorSpec]) -> Call:
    """Run a torch module as the torch runtime does; its output is named y."""
    import torch

    module.eval()

    def call(arrays: Arrays) -> Arrays:
        with torch.inference_mode():
            found = module(*(torch.from_numpy(np.array(arrays[tensor.name])) for tensor in inputs))
        return {"y": found.numpy()}

    return call


def of_file(path: Path) -> Call:
    """Run an .onnx file with onnxruntime, without its log of the errors that the trials cause."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda arrays: dict(zip(names, session.run(None, arrays), strict=True))


def slow(monkeypatch: pytest.MonkeyPatch, call: Call, trials: int) -> tuple[Call, list[Arrays]]:
    """Let the time be over after so many trials; (the call, the arrays of each trial so far)."""
    monkeypatch.setattr("tailcut.builder.bounds.trials.perf_counter", count(0.0, PATIENCE_S / (trials - 0.5)).__next__)
    made: list[Arrays] = []

    def counted(arrays: Arrays) -> Arrays:
        made.append(arrays)
        return call(arrays)

    return counted, made


def bounds_of(
    model: Any, call: Call, inputs: Sequence[TensorSpec], rows: Arrays, path: Path | None = None
) -> dict[tuple[str, tuple[int, ...]], Bound]:
    """Return the derived bounds without limits of length, by input and columns."""
    found = of_source(model, call, inputs, rows, path=path, strict=True).bounds
    return {(bound.input, bound.columns): bound for bound in found if bound.max_length is None}


def lengths_of(
    model: Any, call: Call, inputs: Sequence[TensorSpec], rows: Arrays, path: Path | None = None
) -> dict[str, int]:
    """Return the derived limits of free dimensions by input."""
    found = of_source(model, call, inputs, rows, path=path, strict=True).bounds
    return {bound.input: bound.max_length for bound in found if bound.max_length is not None}
