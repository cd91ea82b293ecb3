"""The path's feature stage where not everything is fresh in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter_ns

from tailcut.core.timings import Stage
from tailcut.engine.call import Call
from tailcut.features import EntityKey, FeatureService, FeatureSet


async def fetch(features: FeatureService, call: Call, keys: Sequence[EntityKey]) -> FeatureSet:
    """Return the rows of entities; see ``FeatureService.fetch`` for what it raises."""
    # A task of its own, so that it can be cancelled when the client goes.
    call.waiting = task = asyncio.get_running_loop().create_task(
        features.fetch(keys, call.tenant, call.deadline_ns / 1e9)
    )
    try:
        return await task
    finally:
        call.waiting = None
        call.timings.lap(Stage.FEATURES, perf_counter_ns())  # also where it fails
