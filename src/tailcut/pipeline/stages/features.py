"""Features: entities to feature rows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter_ns

import msgspec
import numpy as np

from tailcut.common.timings import Stage
from tailcut.features import EntityKey, FeatureService, FeatureSet
from tailcut.features.group_times import GroupTimes
from tailcut.features.groups import GroupStatistics
from tailcut.features.source_opener import Models
from tailcut.manifest import Features, Manifest, resolve
from tailcut.observe.path_metrics import (
    FEATURE_LOOKUPS,
    FEATURE_SOURCE_ERRORS,
    FEATURE_SOURCE_SECONDS,
    FEATURE_STALE,
    GROUP,
)
from tailcut.observe.sample import Sample, counter, gauge
from tailcut.observe.traces.identity import TraceOrigin
from tailcut.pipeline.hook_loading import HookCode
from tailcut.pipeline.prediction_cache import STALE
from tailcut.pipeline.request_context import RequestContext
from tailcut.pipeline.stages import Answers, EntityHandler, RowHandler

KEYS_IN_USE = gauge("tailcut_feature_keys_in_use", "Keys refreshed ahead in the background.", *GROUP)
STORE_BYPASSES = counter("tailcut_feature_store_bypasses", "Shared store calls skipped while the store was bypassed.")
SOURCE_CALLS = counter("tailcut_feature_source_calls", "Source calls.", *GROUP)

_SQLITE = "sqlite:///"

_COUNTERS = (
    ("stale_served", FEATURE_STALE),
    ("errors", FEATURE_SOURCE_ERRORS),
    ("refreshes", counter("tailcut_feature_refreshes", "Keys refreshed in the background.", *GROUP)),
    ("single_flight_joins", counter("tailcut_feature_joins", "Misses that joined a source call in flight.", *GROUP)),
    ("source_calls", SOURCE_CALLS),
    ("source_s", FEATURE_SOURCE_SECONDS),
)
"""Field of GroupStatistics, metric."""


async def open_features(manifest: Manifest, code: HookCode, models: Models | None = None) -> FeatureService | None:
    """Open the feature groups of a manifest; None where it has none.

    Args:
        models: finds other models of the server.

    Raises:
        StartError: what could not be opened, and where in the manifest.
    """
    if not manifest.deployment.features.groups:
        return None
    declared = {field.name: field.type for field in manifest.deployment.model.fields}
    return await FeatureService.open(
        _settings(manifest),
        resolve=lambda ref: resolve(ref, manifest),
        declared=declared,
        code_of=code.files.digest_of,
        models=models,
    )


class FeatureStage:
    """Fetches the feature groups of entities: those that memory does not have, all at once."""

    def __init__(self, features: FeatureService) -> None:
        self._features = features
        self._all_hit = tuple([(name, 0, 0, 1, 0, 0) for name in features.group_names])

    def bind(self, rows: RowHandler) -> EntityHandler:
        """See ``PathStage.bind``; an answer may be kept no longer than the features it was made from."""
        features = self._features

        async def answer(context: RequestContext, keys: Sequence[EntityKey]) -> Answers:
            found = features.fetch_nowait(keys, context.tenant)
            if found is None:
                found = await self._fetch(context, keys)
            elif context.tracer is not None:
                context.groups = self._all_hit
            context.timings.lap(Stage.FEATURES, perf_counter_ns())
            served = context.served
            if served is not None and served.limits is not None:
                served.limits.check_fetched(found.rows)
            fetched_ns = perf_counter_ns()
            if served is not None and served.needs_entities:
                context.entities = np.array([hash((context.tenant, key)) for key in keys], np.int64)
            values = await rows(context, found.rows, False)
            if any(found.stale):
                context.cache = "stale"
            elapsed_s = (perf_counter_ns() - fetched_ns) / 1e9
            lives_s = zip(found.fresh_for_s, found.stale, strict=True)
            return values, [STALE if stale else life_s - elapsed_s for life_s, stale in lives_s]

        return answer

    async def _fetch(self, context: RequestContext, keys: Sequence[EntityKey]) -> FeatureSet:
        """Fetch what is not fresh in memory; see ``FeatureService.fetch`` for what it raises."""
        features, own_ns = self._features, 0.0
        if features.asks_models and context.served is not None:
            # Another model should not compute what this one then has no time for.
            own_ns = context.served.dispatcher.costs.cost.batch_ns(len(keys))
        times = None
        if context.tracer is not None:
            if context.origin is None:
                context.origin = TraceOrigin(context.tracer, context.headers)
            context.groups = times = GroupTimes(context.origin)
        # A task of its own, so that it can be cancelled when the client goes.
        context.waiting = task = asyncio.get_running_loop().create_task(
            features.fetch(keys, context.tenant, (context.deadline_ns - own_ns) / 1e9, times)
        )
        try:
            return await task
        finally:
            context.waiting = None
            context.timings.lap(Stage.FEATURES, perf_counter_ns())  # also where it fails

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the feature groups."""
        statistics = self._features.statistics()
        for group in statistics.groups:
            yield from _group(group)
        yield STORE_BYPASSES(statistics.bypasses)


def _group(group: GroupStatistics) -> Iterator[Sample]:
    labels = (group.name, group.entity_type)
    yield FEATURE_LOOKUPS(group.hits, *labels, "hit")
    yield FEATURE_LOOKUPS(group.misses, *labels, "miss")
    for field, metric in _COUNTERS:
        yield metric(float(getattr(group, field)), *labels)
    yield KEYS_IN_USE(group.in_use, *labels)


def _settings(manifest: Manifest) -> Features:
    """Return the feature settings with a relative SQLite path taken from the manifest's folder."""
    features = manifest.deployment.features
    path = features.database.removeprefix(_SQLITE)
    if path == features.database or Path(path).is_absolute():
        return features
    return msgspec.structs.replace(features, database=f"{_SQLITE}{manifest.directory / path}")
