"""The tensor cache: the model's outputs by its exact inputs, row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from time import perf_counter_ns

import numpy as np

from tailcut.cache.keys import EXACT, tensor_row_keys
from tailcut.common.tensors import Arrays
from tailcut.common.timings import Stage
from tailcut.pipeline.cache_fill import CacheFill, recall
from tailcut.pipeline.prediction_cache import PredictionStore, row_marks, watched
from tailcut.pipeline.request_context import RequestContext
from tailcut.pipeline.stages import TensorHandler


class TensorCacheStage:
    """Runs inputs row by row, so that of a board of known and new rows only the new ones are computed.

    Args:
        stale: whether an answer past its TTL is given where there is no room for a request.
    """

    def __init__(self, cache: PredictionStore[Arrays], *, stale: bool) -> None:
        self._cache = cache
        self._stale = stale
        self.samples = cache.samples

    def bind(self, tensors: TensorHandler) -> TensorHandler:
        """See ``PathStage.bind``."""
        cache, stale = self._cache, self._stale

        async def run(context: RequestContext, inputs: Arrays, rows: int, outputs: tuple[str, ...]) -> Arrays:
            if not cache.advisor.on and context.refusal is None:
                return await self._watched(tensors, context, inputs, rows, outputs)
            keys = tensor_row_keys(_version(context), context.tenant, inputs, rows, outputs, cache.normal)
            if context.refusal is not None:
                known = recall(cache, context, keys, context.refusal, stale=stale and not context.is_exact)
                return _joined(known, outputs)
            get = cache.store.get_nowait
            found = [get(key) for key in keys]
            context.timings.lap(Stage.TENSOR_CACHE, perf_counter_ns())
            missing, entities = None in found, context.entities
            told = context.cache == "off"
            if told:
                context.cache = "miss" if missing else "hit"
            if missing:

                async def make(at: list[int]) -> tuple[list[Arrays], list[float]]:
                    wanted = inputs if len(at) == rows else {name: array[at] for name, array in inputs.items()}
                    if entities is not None:
                        context.entities = entities[at]
                    fresh = await tensors(context, wanted, len(at), outputs)
                    return [_row(fresh, place) for place in range(len(at))], [math.inf] * len(at)

                made = await CacheFill(
                    cache, context, Stage.TENSOR_CACHE, keys, found, make, fallback=stale and not context.is_exact
                ).fill()
                if told and not made and context.cache == "miss":
                    context.cache = "hit"
            result = _joined(found, outputs)
            context.timings.lap(Stage.TENSOR_CACHE, perf_counter_ns())
            return result

        return run

    async def _watched(
        self, tensors: TensorHandler, context: RequestContext, inputs: Arrays, rows: int, outputs: tuple[str, ...]
    ) -> Arrays:
        """Run without the cache, and see with a few rows whether it would pay again."""
        cache = self._cache
        key = partial(tensor_row_keys, _version(context), context.tenant, outputs=outputs, normal=cache.normal)
        if cache.normal is EXACT:
            some = watched(row_marks(inputs, rows))
            keys = key({name: array[some] for name, array in inputs.items()}, len(some)) if some else []
        else:
            keys = key(inputs, rows)  # rows that differ may look alike
            keys = [keys[at] for at in watched(keys)]
        cache.watch(keys)
        context.timings.lap(Stage.TENSOR_CACHE, began_ns := perf_counter_ns())
        found = await tensors(context, inputs, rows, outputs)
        if keys:
            cache.advisor.missed((perf_counter_ns() - began_ns) / rows)
        return found


def _version(context: RequestContext) -> bytes:
    assert context.served is not None, "a request is admitted before its answer is looked up"
    return context.served.own_version  # the inputs say what the features were


def _row(arrays: Arrays, place: int) -> Arrays:
    """Return one row; a view would keep the whole batch's memory alive for as long as the entry."""
    return {name: array[place : place + 1].copy() for name, array in arrays.items()}


def _joined(rows: Sequence[Arrays | None], outputs: tuple[str, ...]) -> Arrays:
    """Put answers of single rows together. Copied also for one: a hook may change its outputs in place."""
    known = [row for row in rows if row is not None]
    return {name: np.concatenate([row[name] for row in known]) for name in outputs}
