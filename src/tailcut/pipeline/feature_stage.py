"""The feature stage of the pipeline: opening it, and what is not fresh in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter_ns

import msgspec

from tailcut.common.timings import Stage
from tailcut.features import EntityKey, FeatureService, FeatureSet
from tailcut.features.source_opener import Models
from tailcut.manifest import Features, Manifest, resolve
from tailcut.pipeline.hook_loading import HookCode
from tailcut.pipeline.request_context import RequestContext

_SQLITE = "sqlite:///"


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
        _features(manifest),
        resolve=lambda ref: resolve(ref, manifest),
        declared=declared,
        code_of=code.files.digest_of,
        models=models,
    )


async def fetch(
    features: FeatureService, context: RequestContext, keys: Sequence[EntityKey], own_ns: float = 0.0
) -> FeatureSet:
    """Return the rows of entities; see ``FeatureService.fetch`` for what it raises.

    Args:
        own_ns: what is to be left of the request's time afterwards.
    """
    # A task of its own, so that it can be cancelled when the client goes.
    context.waiting = task = asyncio.get_running_loop().create_task(
        features.fetch(keys, context.tenant, (context.deadline_ns - own_ns) / 1e9)
    )
    try:
        return await task
    finally:
        context.waiting = None
        context.timings.lap(Stage.FEATURES, perf_counter_ns())  # also where it fails


def _features(manifest: Manifest) -> Features:
    """Return the feature settings with a relative SQLite path taken from the manifest's folder."""
    features = manifest.deployment.features
    path = features.database.removeprefix(_SQLITE)
    if path == features.database or Path(path).is_absolute():
        return features
    return msgspec.structs.replace(features, database=f"{_SQLITE}{manifest.directory / path}")
