"""The bounds of a source model, whatever its kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tailcut.builder.bounds import categories, indices, lengths, onnx, ranges
from tailcut.builder.bounds.indices import Seen
from tailcut.builder.bounds.trials import MOST_COLUMNS, OutOfTime, Trials
from tailcut.builder.objects import is_module
from tailcut.common.bounds import Bound
from tailcut.common.tensors import Arrays
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes.torch_call import in_order


class FoundBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds and table sizes of a source model.

    Attributes:
        bounds: that it proves, in no particular order; enforced for every variant of the version.
        sizes: of tables in the model, in ascending order; values around them are tried. Models of tables have none.
    """

    bounds: list[Bound] = []
    sizes: list[int] = []


def of_source(
    model: Any,
    call: Callable[[Arrays], Arrays],
    inputs: Sequence[TensorSpec],
    rows: Arrays,
    *,
    path: Path | None = None,
    strict: bool = False,
) -> FoundBounds:
    """Return the limits of the inputs that the source model proves by itself, and the sizes of its tables.

    Args:
        model: the user's object (a nn.Module, an estimator, a booster); None for a file or folder.
        call: runs the user's object as the user calls it, on CPUs: input arrays by name -> output arrays by name.
            Raises where the object raises.
        inputs: the tensors of ``model.inputs``.
        rows: a few holdout rows, three for instance; the first and the last serve as examples.
        path: of an .onnx file or a Hugging Face folder, where there is no ``model``.
        strict: raise what goes wrong in the analysis itself, for tests.

    Returns:
        no bounds where the model proves none, cannot be analysed or does not answer the rows.
    """
    trials = Trials(call, inputs, rows)
    sizes: list[int] = []
    try:
        seen = _seen(model, trials, path)
        sizes = sorted(seen.sizes | seen.lengths) if seen is not None else []
        if not trials.answers(trials.rows):
            return FoundBounds(sizes=sizes)
        if seen is None:
            return FoundBounds(bounds=_in_time(_of_columns(model, trials)))
        proven = chain(indices.bounds_of(seen.indices, trials), lengths.bounds_of(seen.lengths, trials))
        return FoundBounds(bounds=_in_time(proven), sizes=sizes)
    except Exception:
        # Bounds are optional: without them serving refuses less, and the trials at the edges still compare variants.
        if strict:
            raise
        return FoundBounds(sizes=sizes)


def _in_time(found: Iterator[Bound]) -> list[Bound]:
    """Return the bounds that are proven before there is no time left for trials."""
    bounds: list[Bound] = []
    with suppress(OutOfTime):
        for bound in found:
            bounds.append(bound)  # noqa: PERF402  # a list made in one call would be lost with the exception
    return bounds


def _seen(model: Any, trials: Trials, path: Path | None) -> Seen | None:
    """Return the indices and tables of a torch module, an .onnx file or a Hugging Face folder; None of other kinds."""
    if is_module(model):
        return seen(model, trials)
    if path is not None and path.suffix == ".onnx":
        return onnx.seen(path, trials)
    if path is not None and path.is_dir():
        from tailcut.models.runtimes import huggingface

        return seen(huggingface.module(path, tuple(tensor.name for tensor in trials.inputs)), trials)
    return None


# -- Models of tables --------------------------------------------------------------------------------------------------


_FEW_COLUMNS = 3
"""Columns that are tried of an estimator without steps: it looks at the table as a whole."""


def _of_columns(model: Any, trials: Trials) -> Iterator[Bound]:
    """Yield the values that the model's encoders know, and the limits of its numbers.

    Args:
        model: the user's object, for the categories of the encoders inside it.
        trials: of that object.
    """
    lists = categories.known(model)
    # Code of the user's may bring other values to an encoder than those that come in: "A" as "a".
    unchanged = not categories.has_own_code(model)
    for tensor in trials.inputs:
        closed = categories.closed(trials, tensor, lists)
        if unchanged:
            yield from categories.bounds_of(trials, tensor, closed, lists)
        others = [place for place in range(trials.columns(tensor)) if place not in closed]
        # Columns may go different ways in a pipeline, and in code of the user's.
        apart = hasattr(model, "steps") or not unchanged
        yield from ranges.bounds_of(trials, tensor, others, MOST_COLUMNS if apart else _FEW_COLUMNS)


# -- Torch modules -----------------------------------------------------------------------------------------------------


# Indices of a torch module: one run on a few holdout rows, with every input value followed.


def seen(module: Any, trials: Trials) -> Seen:
    """Return what a run of the module on the trials' rows shows; empty where the module cannot be run so."""
    import torch

    from tailcut.builder.bounds.tracking import OneHot, Tracking

    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    module.eval()
    call = in_order(module, [tensor.name for tensor in trials.inputs])
    free = any(-1 in tensor.shape[1:] for tensor in trials.inputs)
    tracking = Tracking(named, free=free, rows=trials.count)
    with torch.inference_mode():
        tensors = []
        for tensor in trials.inputs:
            tensors.append(torch.from_numpy(np.array(trials.rows[tensor.name])))
            tracking.follow(tensor.name, tensors[-1])
        try:
            with tracking, OneHot(tracking):
                call(*tensors)
        except Exception:
            # The user's code, on tensors that are followed: what does not run so is not analysed.
            return Seen()
    return tracking.seen
