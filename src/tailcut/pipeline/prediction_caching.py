"""The two prediction caches of the pipeline: by entity before features, by the model's inputs after preprocessing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any

import msgspec
import numpy as np

from tailcut.cache.keys import EXACT, entity_prediction_key, tensor_row_keys
from tailcut.common.tensors import Arrays
from tailcut.common.timings import Stage
from tailcut.features import EntityKey, FeatureService
from tailcut.pipeline.cache_fill import CacheFill, recall
from tailcut.pipeline.prediction_cache import PredictionStore, row_marks, watched
from tailcut.pipeline.request_context import AdmittingPipeline, RequestContext
from tailcut.pipeline.row_transform import encode_answer


async def predict_cached(
    pipeline: AdmittingPipeline,
    cache: PredictionStore[msgspec.Raw],
    features: FeatureService,
    context: RequestContext,
    keys: Sequence[EntityKey],
) -> list[Any]:
    """Answer entities from the entity cache, and those that it does not have by the rest of the path."""
    if not cache.advisor.on and context.refusal is None:
        return await _predict_watched(pipeline, cache, features, context, keys)
    cache_keys = [entity_prediction_key(pipeline.version, context.tenant, key, pipeline.outputs) for key in keys]
    if context.refusal is not None:
        return recall(cache, context, cache_keys, context.refusal, stale=pipeline.fallback_stale)
    get = cache.store.get_nowait
    values = [get(key) for key in cache_keys]
    context.timings.lap(Stage.ENTITY_CACHE, perf_counter_ns())
    if None not in values:
        context.cache = "hit"
        return values
    context.cache = "miss"

    async def make(at: list[int]) -> tuple[list[msgspec.Raw], list[float]]:
        answers, lives_s = await pipeline.predict_keys(features, context, [keys[index] for index in at])
        return [msgspec.Raw(encode_answer(answer)) for answer in answers], lives_s

    stage, fallback = Stage.ENTITY_CACHE, pipeline.fallback_stale
    made = await CacheFill(cache, context, stage, cache_keys, values, make, fallback=fallback).fill()
    if not made and context.cache == "miss":
        context.cache = "hit"
    return values


async def _predict_watched(
    pipeline: AdmittingPipeline,
    cache: PredictionStore[msgspec.Raw],
    features: FeatureService,
    context: RequestContext,
    keys: Sequence[EntityKey],
) -> list[Any]:
    """Answer without the cache, and see with a few keys whether it would pay again."""
    some = [keys[at] for at in watched(keys)]
    cache.watch([entity_prediction_key(pipeline.version, context.tenant, key, pipeline.outputs) for key in some])
    context.timings.lap(Stage.ENTITY_CACHE, began_ns := perf_counter_ns())
    values, _ = await pipeline.predict_keys(features, context, keys)
    if some:
        cache.advisor.missed((perf_counter_ns() - began_ns) / len(keys))
    return values


async def infer_cached(
    pipeline: AdmittingPipeline,
    cache: PredictionStore[Arrays],
    context: RequestContext,
    inputs: Arrays,
    rows: int,
    outputs: tuple[str, ...],
) -> Arrays:
    """Run checked tensors row by row, so that a board of known and new rows computes only the new ones."""
    if not cache.advisor.on and context.refusal is None:
        return await _infer_watched(pipeline, cache, context, inputs, rows, outputs)
    keys = tensor_row_keys(pipeline.version, context.tenant, inputs, rows, outputs, cache.normal)
    if context.refusal is not None:
        answers = recall(cache, context, keys, context.refusal, stale=pipeline.fallback_stale)
        return _joined(answers, outputs)
    get = cache.store.get_nowait
    found = [get(key) for key in keys]
    context.timings.lap(Stage.TENSOR_CACHE, perf_counter_ns())
    missing = None in found
    told = context.cache == "off"
    if told:
        context.cache = "miss" if missing else "hit"
    if missing:

        async def make(at: list[int]) -> tuple[list[Arrays], list[float]]:
            wanted = inputs if len(at) == rows else {name: array[at] for name, array in inputs.items()}
            fresh = await pipeline.compute(context, wanted, len(at), outputs)
            # Copied: a view would keep the whole batch's memory alive for as long as the entry.
            made = [{name: array[row : row + 1].copy() for name, array in fresh.items()} for row in range(len(at))]
            return made, [math.inf] * len(at)

        stage, fallback = Stage.TENSOR_CACHE, pipeline.fallback_stale
        made = await CacheFill(cache, context, stage, keys, found, make, fallback=fallback).fill()
        if told and not made and context.cache == "miss":
            context.cache = "hit"
    result = _joined(found, outputs)
    context.timings.lap(Stage.TENSOR_CACHE, perf_counter_ns())
    return result


async def _infer_watched(
    pipeline: AdmittingPipeline,
    cache: PredictionStore[Arrays],
    context: RequestContext,
    inputs: Arrays,
    rows: int,
    outputs: tuple[str, ...],
) -> Arrays:
    """Answer without the cache, and see with a few rows whether it would pay again."""
    key = partial(tensor_row_keys, pipeline.version, context.tenant, outputs=outputs, normal=cache.normal)
    if cache.normal is EXACT:
        some = watched(row_marks(inputs, rows))
        keys = key({name: array[some] for name, array in inputs.items()}, len(some)) if some else []
    else:
        keys = key(inputs, rows)  # rows that differ may look alike
        keys = [keys[at] for at in watched(keys)]
    cache.watch(keys)
    context.timings.lap(Stage.TENSOR_CACHE, began_ns := perf_counter_ns())
    found = await pipeline.compute(context, inputs, rows, outputs)
    if keys:
        cache.advisor.missed((perf_counter_ns() - began_ns) / rows)
    return found


def _joined(rows: Sequence[Arrays | None], outputs: tuple[str, ...]) -> Arrays:
    """Put answers of single rows together. Copied also for one: a hook may change its outputs in place."""
    known = [row for row in rows if row is not None]
    return {name: np.concatenate([row[name] for row in known]) for name in outputs}
