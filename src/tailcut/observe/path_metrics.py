"""Metrics that stages of the request path show and that alerts are about: defined here, below both."""

from __future__ import annotations

from tailcut.observe.sample import counter, gauge

GROUP = ("group", "entity_type")
"""Labels of a feature group; the entity type is its key's columns."""

FEATURE_LOOKUPS = counter("tailcut_feature_cache_lookups", "Feature value look-ups, by result.", *GROUP, "result")
FEATURE_STALE = counter(
    "tailcut_feature_stale", "Feature values served past their TTL because the source failed.", *GROUP
)
FEATURE_SOURCE_SECONDS = counter("tailcut_feature_source_seconds", "Seconds spent in source calls.", *GROUP)
PREDICTION_CACHE_BYTES = gauge("tailcut_prediction_cache_bytes", "Bytes in a prediction cache.", "cache")
READY = gauge("tailcut_ready", "1 while requests should be sent here.")
HOST_READY = gauge("tailcut_host_ready", "1 while all required models are ready.", of_host=True)
