"""The path's two prediction caches: by entity, before features, and by the model's inputs, after preprocessing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tailcut.cache.keys import EXACT, entity_prediction_key, tensor_row_keys
from tailcut.common.tensors import Arrays
from tailcut.common.timings import Stage
from tailcut.features import EntityKey, FeatureService
from tailcut.pipeline.cache_fill import Filling, recall
from tailcut.pipeline.prediction_cache import PredictionStore, row_marks, watched
from tailcut.pipeline.request_context import Call
from tailcut.pipeline.row_transform import encode_answer

if TYPE_CHECKING:
    from tailcut.pipeline.pipeline import Path  # which uses this


async def predict_cached(
    path: Path, cache: PredictionStore[msgspec.Raw], features: FeatureService, call: Call, keys: Sequence[EntityKey]
) -> list[Any]:
    """Answer entities from the entity cache, and those that it does not have by the rest of the path."""
    if not cache.worth.on and call.refusal is None:
        return await _predict_watched(path, cache, features, call, keys)
    cache_keys = [entity_prediction_key(path.version, call.tenant, key, path.outputs) for key in keys]
    if call.refusal is not None:
        return recall(cache, call, cache_keys, call.refusal, stale=path.fallback_stale)
    get = cache.store.get_nowait
    values = [get(key) for key in cache_keys]
    call.timings.lap(Stage.ENTITY_CACHE, perf_counter_ns())
    if None not in values:
        call.cache = "hit"
        return values
    call.cache = "miss"

    async def make(at: list[int]) -> tuple[list[msgspec.Raw], list[float]]:
        answers, lives_s = await path.predict_keys(features, call, [keys[index] for index in at])
        return [msgspec.Raw(encode_answer(answer)) for answer in answers], lives_s

    stage, fallback = Stage.ENTITY_CACHE, path.fallback_stale
    made = await Filling(cache, call, stage, cache_keys, values, make, fallback=fallback).fill()
    if not made and call.cache == "miss":
        call.cache = "hit"
    return values


async def _predict_watched(
    path: Path, cache: PredictionStore[msgspec.Raw], features: FeatureService, call: Call, keys: Sequence[EntityKey]
) -> list[Any]:
    """Answer without the cache, and see with a few keys whether it would pay again."""
    some = [keys[at] for at in watched(keys)]
    cache.watch([entity_prediction_key(path.version, call.tenant, key, path.outputs) for key in some])
    call.timings.lap(Stage.ENTITY_CACHE, began_ns := perf_counter_ns())
    values, _ = await path.predict_keys(features, call, keys)
    if some:
        cache.worth.missed((perf_counter_ns() - began_ns) / len(keys))
    return values


async def infer_cached(
    path: Path, cache: PredictionStore[Arrays], call: Call, inputs: Arrays, rows: int, outputs: tuple[str, ...]
) -> Arrays:
    """Run checked tensors row by row, so that a board of known and new rows computes only the new ones."""
    if not cache.worth.on and call.refusal is None:
        return await _infer_watched(path, cache, call, inputs, rows, outputs)
    keys = tensor_row_keys(path.version, call.tenant, inputs, rows, outputs, cache.normal)
    if call.refusal is not None:
        answers = recall(cache, call, keys, call.refusal, stale=path.fallback_stale)
        return _joined(answers, outputs)
    get = cache.store.get_nowait
    found = [get(key) for key in keys]
    call.timings.lap(Stage.TENSOR_CACHE, perf_counter_ns())
    missing = None in found
    told = call.cache == "off"
    if told:
        call.cache = "miss" if missing else "hit"
    if missing:

        async def make(at: list[int]) -> tuple[list[Arrays], list[float]]:
            wanted = inputs if len(at) == rows else {name: array[at] for name, array in inputs.items()}
            fresh = await path.compute(call, wanted, len(at), outputs)
            # Copied: a view would keep the whole batch's memory alive for as long as the entry.
            made = [{name: array[row : row + 1].copy() for name, array in fresh.items()} for row in range(len(at))]
            return made, [math.inf] * len(at)

        stage, fallback = Stage.TENSOR_CACHE, path.fallback_stale
        made = await Filling(cache, call, stage, keys, found, make, fallback=fallback).fill()
        if told and not made and call.cache == "miss":
            call.cache = "hit"
    result = _joined(found, outputs)
    call.timings.lap(Stage.TENSOR_CACHE, perf_counter_ns())
    return result


async def _infer_watched(
    path: Path, cache: PredictionStore[Arrays], call: Call, inputs: Arrays, rows: int, outputs: tuple[str, ...]
) -> Arrays:
    """Answer without the cache, and see with a few rows whether it would pay again."""
    key = partial(tensor_row_keys, path.version, call.tenant, outputs=outputs, normal=cache.normal)
    if cache.normal is EXACT:
        some = watched(row_marks(inputs, rows))
        keys = key({name: array[some] for name, array in inputs.items()}, len(some)) if some else []
    else:
        keys = key(inputs, rows)  # rows that differ may look alike
        keys = [keys[at] for at in watched(keys)]
    cache.watch(keys)
    call.timings.lap(Stage.TENSOR_CACHE, began_ns := perf_counter_ns())
    found = await path.compute(call, inputs, rows, outputs)
    if keys:
        cache.worth.missed((perf_counter_ns() - began_ns) / rows)
    return found


def _joined(rows: Sequence[Arrays | None], outputs: tuple[str, ...]) -> Arrays:
    """Put answers of single rows together. Copied also for one: a hook may change its outputs in place."""
    known = [row for row in rows if row is not None]
    return {name: np.concatenate([row[name] for row in known]) for name in outputs}
