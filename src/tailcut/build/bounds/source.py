"""The bounds of a source model, whatever its kind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from tailcut.build.bounds import columns, indices, lengths, onnx, torch
from tailcut.build.bounds.indices import Seen
from tailcut.build.bounds.trials import OutOfTime, Trials
from tailcut.core.bounds import Bound
from tailcut.core.tensors import Arrays
from tailcut.manifest import Tensor


def of_source(
    model: Any,
    call: Callable[[Arrays], Arrays],
    inputs: Sequence[Tensor],
    rows: Arrays,
    *,
    path: Path | None = None,
    strict: bool = False,
) -> list[Bound]:
    """Return the limits of the inputs that the source model proves by itself.

    Args:
        model: the user's object (a torch.nn.Module, an estimator, a booster); None for a file or folder.
        call: runs the user's object as the user calls it, on CPUs: input arrays by name -> output arrays by name.
            Raises where the object raises.
        inputs: the tensors of ``model.inputs``.
        rows: a few holdout rows, three for instance; the first and the last serve as examples.
        path: of an .onnx file or a Hugging Face folder, where there is no ``model``.
        strict: raise what goes wrong in the analysis itself, for tests.

    Returns:
        bounds in no particular order; empty where the model proves none or cannot be analysed.
    """
    trials = Trials(call, inputs, rows)
    if not trials.answers(trials.rows):
        return []
    try:
        found = _seen(model, trials, path)
        if found is None:
            return _in_time(columns.bounds_of(model, trials))
        return _in_time(chain(indices.bounds_of(found.indices, trials), lengths.bounds_of(found.lengths, trials)))
    except Exception:
        # Bounds are optional: without them serving refuses less, and the trials at the edges still compare variants.
        if strict:
            raise
        return []


def sizes_of(model: Any, inputs: Sequence[Tensor], rows: Arrays, *, path: Path | None = None) -> set[int]:
    """Return the sizes of the tables in a model, for trials at their edges; empty of models of tables.

    Args:
        model: as of ``of_source``; likewise ``inputs``, ``rows`` and ``path``.
    """
    try:
        found = _seen(model, Trials(dict, inputs, rows), path)
    except Exception:
        # As of the bounds: what cannot be analysed has none.
        return set()
    return found.sizes | found.lengths if found is not None else set()


def _in_time(found: Iterator[Bound]) -> list[Bound]:
    """Return the bounds that are proven before there is no time left for trials."""
    bounds: list[Bound] = []
    with suppress(OutOfTime):
        for bound in found:
            bounds.append(bound)  # noqa: PERF402  # a list made in one call would be lost with the exception
    return bounds


def _seen(model: Any, trials: Trials, path: Path | None) -> Seen | None:
    """Return the indices and tables of a torch module, an .onnx file or a Hugging Face folder; None of other kinds."""
    module = sys.modules.get("torch")
    if module is not None and isinstance(model, module.nn.Module):
        return torch.seen(model, trials)
    if path is not None and path.suffix == ".onnx":
        return onnx.seen(path, trials)
    if path is not None and path.is_dir():
        from tailcut.runtimes import huggingface

        return torch.seen(huggingface.module(path, tuple(tensor.name for tensor in trials.inputs)), trials)
    return None
