"""What /metrics shows of the path besides the recorder's counts, read at scrape time from whoever owns it."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter_ns
from typing import Any

from tailcut.features import FeatureStatistics
from tailcut.features.statistics import GroupStatistics
from tailcut.models.batch_item import BatchItem
from tailcut.models.dispatch.batch_retry import BatchRetry
from tailcut.observe.exposition import Sample
from tailcut.pipeline.hooks import Hooks
from tailcut.pipeline.pipeline import Pipeline
from tailcut.pipeline.prediction_cache import PredictionStore
from tailcut.pipeline.shared_cache import SharedCache
from tailcut.scheduler.scheduler import Scheduler

_COUNTERS: tuple[tuple[str, str, str], ...] = (
    ("stale_served", "tailcut_feature_stale", "Feature values served past their TTL because the source failed."),
    ("errors", "tailcut_feature_source_errors", "Source calls that failed or timed out."),
    ("refreshes", "tailcut_feature_refreshes", "Keys refreshed in the background."),
    ("single_flight_joins", "tailcut_feature_joins", "Misses that joined a source call in flight."),
    ("source_calls", "tailcut_feature_source_calls", "Source calls."),
    ("source_s", "tailcut_feature_source_seconds", "Seconds spent in source calls."),
)
"""Field of GroupStatistics, metric, help; each with the labels group and entity_type."""


def pipeline_samples(pipeline: Pipeline) -> Iterator[Sample]:
    """Yield the samples of the queue, the executors, both prediction caches and the feature groups."""
    dispatcher = pipeline.dispatcher
    yield Sample("tailcut_queue_rows", "Queued rows.", "gauge", {}, dispatcher.scheduler.queue_rows)
    yield Sample("tailcut_running_rows", "Rows being computed.", "gauge", {}, dispatcher.running.rows)
    yield from _backlog(dispatcher.scheduler)
    yield from _batch_retries(dispatcher.batch_retry)
    if pipeline.hooks is not None:
        yield from _hooks(pipeline.hooks)
    for name, cache in (("entity", pipeline.entity_cache), ("tensor", pipeline.tensor_cache)):
        if cache is not None:
            yield from _prediction_cache(name, cache)
    if pipeline.features is not None:
        yield from _features(pipeline.features.statistics())


def _backlog(scheduler: Scheduler[BatchItem]) -> Iterator[Sample]:
    overload, text = scheduler.overload, "Queued requests that may miss the SLO but not their deadline."
    yield Sample("tailcut_queue_at_risk", text, "gauge", {}, scheduler.waiting.late_entries)
    is_seen = overload is not None and overload.is_seen(perf_counter_ns())
    text = "1 during sustained overload, when requests that would miss the SLO are shed."
    yield Sample("tailcut_overloaded", text, "gauge", {}, float(is_seen))


def _batch_retries(batch_retry: BatchRetry) -> Iterator[Sample]:
    text = "Failed batches whose requests were retried one by one."
    yield Sample("tailcut_batch_retries", text, "counter", {}, batch_retry.batches)
    text = "Requests, or parts of large ones, that were retried alone because their batch failed."
    for outcome, count in (("answered", batch_retry.answered), ("failed", batch_retry.failed)):
        yield Sample("tailcut_batch_retry_runs", text, "counter", {"outcome": outcome}, count)


def _hooks(hooks: Hooks) -> Iterator[Sample]:
    yield Sample("tailcut_hook_threads_busy", "Threads running a slow hook.", "gauge", {}, hooks.busy)
    yield Sample("tailcut_hook_queue", "Slow hook calls waiting for a thread.", "gauge", {}, hooks.waiting)
    text = "Hook calls run in a thread instead of on the event loop."
    for name, calls in hooks.calls.items():
        yield Sample("tailcut_hook_thread_calls", text, "counter", {"hook": name}, calls)


def _prediction_cache(cache: str, found: PredictionStore[Any]) -> Iterator[Sample]:
    found.judge()
    statistics = found.store.statistics()
    lookups, text = "tailcut_prediction_cache_lookups", "Prediction cache look-ups, by result."
    yield Sample(lookups, text, "counter", {"cache": cache, "result": "hit"}, statistics.hits)
    yield Sample(lookups, text, "counter", {"cache": cache, "result": "miss"}, statistics.misses)
    text = "Entries evicted from a prediction cache."
    yield Sample("tailcut_prediction_cache_evictions", text, "counter", {"cache": cache}, statistics.evictions)
    text = "Entries in a prediction cache."
    yield Sample("tailcut_prediction_cache_entries", text, "gauge", {"cache": cache}, statistics.entries)
    text = "Bytes in a prediction cache."
    yield Sample("tailcut_prediction_cache_bytes", text, "gauge", {"cache": cache}, statistics.bytes)
    advisor = found.advisor
    text = "1 while a prediction cache is on, 0 while it is off because it does not pay."
    yield Sample("tailcut_prediction_cache_enabled", text, "gauge", {"cache": cache}, float(advisor.on))
    text = "Advice on a prediction cache: 1 for, -1 against, 0 undecided."
    yield Sample("tailcut_prediction_cache_advice", text, "gauge", {"cache": cache}, advisor.advice)
    text = "Recent share of look-ups that repeat an earlier one."
    yield Sample("tailcut_prediction_cache_repeat_ratio", text, "gauge", {"cache": cache}, advisor.share.value)
    text = "Rows that waited for another request's answer instead of being computed."
    yield Sample("tailcut_prediction_cache_joins", text, "counter", {"cache": cache}, found.joins)
    text = "Rows answered from expired entries because the queue was full."
    yield Sample("tailcut_prediction_cache_stale", text, "counter", {"cache": cache}, found.stale)
    if found.shared is not None:
        yield from _shared(cache, found.shared)


def _shared(cache: str, shared: SharedCache[Any]) -> Iterator[Sample]:
    statistics = shared.store.statistics()
    text = "Rows found in Redis but not in this server's memory."
    yield Sample("tailcut_prediction_cache_shared_hits", text, "counter", {"cache": cache}, shared.hits)
    text = "Answers not written to Redis because too many writes were in flight."
    yield Sample("tailcut_prediction_cache_shared_dropped", text, "counter", {"cache": cache}, shared.dropped)
    text = "Redis calls for answers skipped while Redis was bypassed."
    yield Sample("tailcut_prediction_cache_shared_bypasses", text, "counter", {"cache": cache}, statistics.bypasses)
    text = "Redis calls for answers that failed or timed out."
    yield Sample("tailcut_prediction_cache_shared_failures", text, "counter", {"cache": cache}, statistics.failures)


def _features(statistics: FeatureStatistics) -> Iterator[Sample]:
    for group in statistics.groups:
        yield from _group(group)
    text = "Shared store calls skipped while the store was bypassed."
    yield Sample("tailcut_feature_store_bypasses", text, "counter", {}, statistics.bypasses)


def _group(group: GroupStatistics) -> Iterator[Sample]:
    labels = {"group": group.name, "entity_type": group.entity_type}
    lookups, text = "tailcut_feature_cache_lookups", "Feature value look-ups, by result."
    yield Sample(lookups, text, "counter", {**labels, "result": "hit"}, group.hits)
    yield Sample(lookups, text, "counter", {**labels, "result": "miss"}, group.misses)
    for field, name, text in _COUNTERS:
        yield Sample(name, text, "counter", labels, float(getattr(group, field)))
    text = "Keys refreshed ahead in the background."
    yield Sample("tailcut_feature_keys_in_use", text, "gauge", labels, group.in_use)
