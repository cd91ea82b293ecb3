"""The entity cache: whole answers by entity, before features."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns

import msgspec

from tailcut.cache.keys import entity_prediction_key
from tailcut.common.timings import Stage
from tailcut.features import EntityKey
from tailcut.pipeline.cache_fill import CacheFill, recall
from tailcut.pipeline.prediction_cache import PredictionStore, watched
from tailcut.pipeline.request_context import RequestContext
from tailcut.pipeline.row_transform import encode_answer
from tailcut.pipeline.stages import Answers, EntityHandler


class EntityCacheStage:
    """Answers entities from the entity cache, and the rest by the stages behind it.

    Args:
        outputs: names of all outputs; part of the keys.
        stale: whether an answer past its TTL is given where there is no room for a request.
    """

    def __init__(self, cache: PredictionStore[msgspec.Raw], outputs: tuple[str, ...], *, stale: bool) -> None:
        self._cache = cache
        self._outputs = outputs
        self._stale = stale
        self.samples = cache.samples

    def bind(self, entities: EntityHandler) -> EntityHandler:
        """See ``PathStage.bind``."""
        cache, stale = self._cache, self._stale

        async def answer(context: RequestContext, keys: Sequence[EntityKey]) -> Answers:
            if not cache.advisor.on and context.refusal is None:
                return await self._watched(entities, context, keys)
            version = _version(context)
            cache_keys = self._keys(version, context, keys)
            if context.refusal is not None:
                return recall(cache, context, cache_keys, context.refusal, stale=stale and not context.is_exact), []
            get = cache.store.get_nowait
            values = [get(key) for key in cache_keys]
            context.timings.lap(Stage.ENTITY_CACHE, perf_counter_ns())
            if None not in values:
                context.cache = "hit"
                return values, []
            context.cache = "miss"

            async def make(at: list[int]) -> tuple[list[msgspec.Raw], list[float]]:
                answers, lives_s = await entities(context, [keys[index] for index in at])
                if _version(context) != version:  # a model that computes features was switched: the keys do not fit
                    lives_s = [min(life_s, 0.0) for life_s in lives_s]
                return [msgspec.Raw(encode_answer(answer)) for answer in answers], lives_s

            made = await CacheFill(
                cache, context, Stage.ENTITY_CACHE, cache_keys, values, make, fallback=stale and not context.is_exact
            ).fill()
            if not made and context.cache == "miss":
                context.cache = "hit"
            return values, []

        return answer

    def _keys(self, version: bytes, context: RequestContext, keys: Sequence[EntityKey]) -> list[bytes]:
        return [entity_prediction_key(version, context.tenant, key, self._outputs) for key in keys]

    async def _watched(self, entities: EntityHandler, context: RequestContext, keys: Sequence[EntityKey]) -> Answers:
        """Answer without the cache, and see with a few keys whether it would pay again."""
        cache = self._cache
        some = [keys[at] for at in watched(keys)]
        cache.watch(self._keys(_version(context), context, some))
        context.timings.lap(Stage.ENTITY_CACHE, began_ns := perf_counter_ns())
        found = await entities(context, keys)
        if some:
            cache.advisor.missed((perf_counter_ns() - began_ns) / len(keys))
        return found


def _version(context: RequestContext) -> bytes:
    assert context.served is not None, "a request is admitted before its answer is looked up"
    return context.served.deployment_version
