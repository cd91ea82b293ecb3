"""Rows of a request log, as a holdout without labels: what the model is asked in production."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from tailcut.builder.holdouts.datatypes import fitted
from tailcut.builder.holdouts.holdout import Holdout
from tailcut.common.tensors import Array, Arrays
from tailcut.errors import BuildError, LoadTestError, TailcutError
from tailcut.load.replay import read_replay
from tailcut.manifest import Manifest
from tailcut.observe.request_log import Record
from tailcut.pipeline.hook_loading import import_code
from tailcut.pipeline.row_transform import RowTransform

MOST_ROWS = 4096
"""Rows that are compared, drawn from all; a disagreement of 0.1 % shows in four of them."""

DISTINCT = "distinct"
"""The slice that numbers distinct rows: equal rows have equal answers, and count as one observation in an interval."""

_WRONG = (400, 404, 413, 422)
"""Status of requests that were themselves wrong."""

_SEED = 0


def read(manifest: Manifest, padding: str) -> tuple[Holdout, list[str]]:
    """Read rows of the model from ``holdout.request_log``, and say what was left out.

    Args:
        padding: of the holdout; with it, rows of different lengths are padded with zeros.

    Raises:
        BuildError: it is no log, has no row of the model, or its inputs were hashed or dropped.
    """
    deployment = manifest.deployment
    path = str(manifest.directory / deployment.holdout.request_log)
    try:
        replay = read_replay(path)
    except LoadTestError as error:
        raise BuildError(f"holdout.request_log: {error.message}", hint=error.hint) from error
    notes = list(replay.notes)
    mine = [record for record in replay.records if record.model == deployment.name and record.status not in _WRONG]
    asked = _drawn([record for record in mine if record.entities is None])
    if by_entity := len(mine) - sum(record.entities is None for record in mine):
        notes.append(f"{by_entity} requests by entity are left out: the log does not hold their features")
    parts, refused = _inputs(asked, _transformer(manifest))
    if refused:
        notes.append(f"{refused} requests are left out: the manifest's preprocess or inputs refuse them today")
    if not parts:
        raise BuildError(
            f"holdout.request_log: {path} has no tensors or rows of model {deployment.name!r} "
            f"({len(replay.records)} requests, {by_entity} by entity)",
            hint="log requests to infer, or of rows; or leave holdout.request_log empty",
        )
    inputs, unlike = _joined(parts, padding)
    if unlike:
        notes.append(f"{unlike} requests are left out: their shapes differ, and the holdout names no padding")
    inputs = {name: array[:MOST_ROWS] for name, array in inputs.items()}
    try:
        found = fitted(Holdout(inputs, slices={DISTINCT: _distinct(inputs)}, padding=padding), deployment.model)
    except BuildError as error:
        said = error.message.replace("the holdout's", "its")
        raise BuildError(f"holdout.request_log: {path}: {said}", hint="name a log of the model as it is now") from error
    return found, notes


def _drawn(records: Sequence[Record]) -> list[Record]:
    """Return records in random order, each request of the traffic with the same probability."""
    rng = random.Random(_SEED)
    least = min((record.probability for record in records), default=1.0)
    kept = [record for record in records if rng.random() * record.probability <= least]
    rng.shuffle(kept)
    return kept


def _transformer(manifest: Manifest) -> Callable[[Record], Arrays]:
    """Return what makes a record's tensors; the user's hooks are imported where a record needs them."""

    @cache
    def transform() -> RowTransform:
        code = import_code(manifest)
        return RowTransform(manifest.deployment.model, code.preprocess, code.postprocess, fields=code.fields)

    def tensors(record: Record) -> Arrays:
        if record.inputs is not None:
            return record.arrays()
        return transform().inputs(record.values()[1], from_client=True)

    return tensors


def _inputs(records: Sequence[Record], tensors: Callable[[Record], Arrays]) -> tuple[list[Arrays], int]:
    """Return the tensors of as many records as are compared, and how many were refused."""
    parts: list[Arrays] = []
    rows = refused = 0
    for record in records:
        if rows >= MOST_ROWS:
            break
        try:
            found = tensors(record)
        except (TailcutError, ValueError):
            refused += 1
            continue
        parts.append(found)
        rows += len(next(iter(found.values())))
    return parts, refused


def _joined(parts: Sequence[Arrays], padding: str) -> tuple[Arrays, int]:
    """Put requests together; without padding those of the most frequent shape, and say how many have another."""
    shapes = [tuple((name, array.shape[1:]) for name, array in part.items()) for part in parts]
    if not padding:
        usual = Counter(shapes).most_common(1)[0][0]
        alike = [part for part, shape in zip(parts, shapes, strict=True) if shape == usual]
        return {name: np.concatenate([part[name] for part in alike]) for name in parts[0]}, len(parts) - len(alike)
    return {name: np.concatenate(list(_padded([part[name] for part in parts]))) for name in parts[0]}, 0


def _padded(arrays: Sequence[Array]) -> Iterator[Array]:
    tail = np.max([array.shape[1:] for array in arrays], axis=0).tolist() if arrays[0].ndim > 1 else []
    for array in arrays:
        widths = [(0, 0), *((0, most - size) for most, size in zip(tail, array.shape[1:], strict=True))]
        yield np.pad(array, widths)


def _distinct(inputs: Arrays) -> Array:
    """Number equal rows alike, shape (rows,)."""
    seen: dict[Any, int] = {}
    columns = [array.reshape(len(array), -1) for array in inputs.values()]
    rows = zip(*(map(_key, column) for column in columns), strict=True)
    return np.array([seen.setdefault(row, len(seen)) for row in rows], np.int64)


def _key(row: Array) -> Any:
    return tuple(row.tolist()) if row.dtype.hasobject else row.tobytes()
