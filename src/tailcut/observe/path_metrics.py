"""Metrics of the request path that alerts, the page, comparisons and exports read: defined below all of them."""

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
QUEUE_ROWS = gauge("tailcut_queue_rows", "Queued rows.")
RUNNING_ROWS = gauge("tailcut_running_rows", "Rows being computed.")
QUEUE_AT_RISK = gauge("tailcut_queue_at_risk", "Queued requests that may miss the SLO but not their deadline.")
OVERLOADED = gauge("tailcut_overloaded", "1 during sustained overload, when requests that would miss the SLO are shed.")
FEATURE_SOURCE_ERRORS = counter("tailcut_feature_source_errors", "Source calls that failed or timed out.", *GROUP)
PREDICTION_CACHE_LOOKUPS = counter(
    "tailcut_prediction_cache_lookups", "Prediction cache look-ups, by result.", "cache", "result"
)
PREDICTION_CACHE_ENTRIES = gauge("tailcut_prediction_cache_entries", "Entries in a prediction cache.", "cache")
PREDICTION_CACHE_ENABLED = gauge(
    "tailcut_prediction_cache_enabled",
    "1 while a prediction cache is on, 0 while it is off because it does not pay.",
    "cache",
)
PREDICTION_CACHE_STALE = counter(
    "tailcut_prediction_cache_stale", "Rows answered from expired entries because the queue was full.", "cache"
)
EXECUTORS = gauge("tailcut_executors", "Executors ready for batches.", "kind")
EXECUTORS_TARGET = gauge("tailcut_executors_target", "Target size of the pool.")
IN_FLIGHT = gauge("tailcut_in_flight", "Requests that are being answered.")
SERVED = gauge("tailcut_served", "1 for the variant that is served.", "variant", "version")
EXECUTORS_HUNG = gauge("tailcut_executors_hung", "Hung threads that were abandoned.")
