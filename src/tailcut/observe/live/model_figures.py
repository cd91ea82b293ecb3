"""The figures of one model, from two marks of its counts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isnan
from typing import NamedTuple

import numpy as np

from tailcut.common.histogram import ROW_BOUNDS
from tailcut.observe import path_metrics as known
from tailcut.observe.fine_histogram import FineHistogram, percentiles_ns
from tailcut.observe.latency_figures import SHARES, STAGES, Objective
from tailcut.observe.live.figures import (
    BatchFigures,
    Count,
    Gauges,
    LookupFigures,
    ModelAbout,
    ModelFigures,
    ObjectiveFigures,
    Requests,
    StageFigures,
    VariantFigures,
)
from tailcut.observe.outcomes import SHED_CODES, outcome_of
from tailcut.observe.recorder import DEVICE_BUSY, Recorder
from tailcut.observe.sample import Metric, Sample

Labels = tuple[str, ...]
"""Values of a sample's labels, in its order."""


_VARIANT, _CODE = 1, 2
"""Places in the keys of requests."""


class CounterSnapshot(NamedTuple):
    """Counts since the start.

    Attributes:
        requests: by (route, variant, code, cache).
        latency: by variant; see ``LatencyFigures.counts``.
        batches: by rows: how many, nanoseconds.
        samples: values of the model's sources by name and labels.
    """

    at_s: float
    requests: Mapping[tuple[str, str, str, str], int]
    latency: Mapping[str, FineHistogram]
    batches: Mapping[int, tuple[int, int]]
    batch_sizes: Sequence[int]
    objectives: Sequence[Objective]
    samples: Mapping[str, Mapping[Labels, float]]

    def value(self, name: str, labels: Labels = ()) -> float | None:
        """Return the value of a sample; None where there is none."""
        return self.samples.get(name, {}).get(labels)

    def only(self, name: str) -> float | None:
        """Return the value of a sample whatever its labels are; None where there is none."""
        return next(iter(self.samples.get(name, {}).values()), None)


def mark(
    at_s: float, recorder: Recorder, samples: Iterable[Sample], before: CounterSnapshot | None = None
) -> CounterSnapshot:
    """Copy the counts of a model.

    Args:
        before: the last mark; what has not changed since is shared with it.
    """
    by_name: dict[str, dict[Labels, float]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    requests = dict(recorder.requests)  # which has all that has ended counted
    known = before.latency if before is not None else {}
    latency = {name: _copy(counts, known.get(name)) for name, counts in recorder.latency.counts.items()}
    batches = {rows: (count, ns) for rows, (count, ns) in recorder.by_rows.items()}
    sizes = tuple(recorder.batch_rows.counts)
    return CounterSnapshot(at_s, requests, latency, batches, sizes, recorder.latency.objectives, by_name)


def _copy(counts: FineHistogram, known: FineHistogram | None) -> FineHistogram:
    """Return counts that do not change any more; a variant that answers nothing costs nothing."""
    if known is not None and np.array_equal(known.total_ns, counts.total_ns):
        return known
    return counts.copy()


def latency_between(old: CounterSnapshot, new: CounterSnapshot, variant: str | None = None) -> FineHistogram:
    """Return the difference of two marks, of one variant or of all together."""
    found = FineHistogram.empty(len(STAGES))
    for name in new.latency if variant is None else [variant] if variant in new.latency else []:
        now, then = new.latency[name], old.latency.get(name)
        if then is not now:
            found = found.plus(now.since(then))
    return found


BURN_S = 300.0
"""That recent burn rates are of."""


def model_figures(
    name: str, about: ModelAbout, old: CounterSnapshot, new: CounterSnapshot, burn: Sequence[Objective]
) -> ModelFigures:
    """Return what happened between two marks, and how things stand at the second.

    Args:
        burn: the objectives' counts ``BURN_S`` ago.
    """
    window_s = max(new.at_s - old.at_s, 1e-9)
    served = next(iter(new.samples.get(known.SERVED.name, {})), ("", ""))
    return ModelFigures(
        name=name,
        state=about.state,
        ready=about.ready,
        required=about.required,
        reason=about.reason,
        variant=served[0],
        version=served[1],
        window_s=new.at_s - old.at_s,
        requests=_requests(old, new, window_s),
        stages=_stages(old, new),
        objectives=[_objective(each, burn) for each in new.objectives],
        features=_features(old, new, window_s),
        caches=_caches(old, new, window_s),
        batches=_batches(old, new, window_s),
        variants=_variants(about, served[0], old, new, window_s),
        now=_gauges(new),
    )


def _requests(old: CounterSnapshot, new: CounterSnapshot, window_s: float) -> Requests:
    by_code = [_summed(each.requests, _CODE) for each in (new, old)]

    def of(wanted: Callable[[str], bool]) -> Count:
        now, then = (sum(count for code, count in each.items() if wanted(code)) for each in by_code)
        return _count(now, then, window_s)

    return Requests(
        all=of(lambda code: True),
        answered=of(lambda code: code == "ok"),
        shed=of(lambda code: code in SHED_CODES),
        failed=of(lambda code: code not in SHED_CODES and outcome_of(code) == "5xx"),
        refused=of(lambda code: code not in SHED_CODES and outcome_of(code) == "4xx"),
        codes={code: of(code.__eq__) for code, count in by_code[0].items() if count and code != "ok"},
    )


def _stages(old: CounterSnapshot, new: CounterSnapshot) -> list[StageFigures]:
    change = latency_between(old, new)
    counts = change.counted.tolist()
    answered = counts[-1]
    found = []
    for name, count, total_ns, shares in zip(
        STAGES, counts, change.total_ns.tolist(), (percentiles_ns(change.places, SHARES) / 1e9).tolist(), strict=True
    ):
        p50, p95, p99 = map(_known, shares)
        mean_s = total_ns / answered / 1e9 if answered else None
        found.append(StageFigures(name=name, count=count, mean_s=mean_s, p50_s=p50, p95_s=p95, p99_s=p99))
    return found


def _objective(now: Objective, burn: Sequence[Objective]) -> ObjectiveFigures:
    then = next((each for each in burn if each[:3] == now[:3]), None)
    recent = (now.good, now.total) if then is None else (now.good - then.good, now.total - then.total)
    return ObjectiveFigures(
        name=now.name,
        share=now.share,
        limit_s=now.limit_s,
        good=now.good,
        total=now.total,
        burn=burn_rate(now.good, now.total, now.share),
        burn_recent=burn_rate(*recent, now.share),
    )


def burn_rate(good: int, total: int, share: float) -> float | None:
    """Return by how much an error budget is used faster than it may be; None without requests or a budget.

    Source: The Site Reliability Workbook, chapter 5 (burn rate: error share over the share that is allowed).
    """
    return (total - good) / total / (1.0 - share) if total and share < 1.0 else None


def _features(old: CounterSnapshot, new: CounterSnapshot, window_s: float) -> list[LookupFigures]:
    name = known.FEATURE_LOOKUPS.name
    groups = dict.fromkeys(labels[:2] for labels in new.samples.get(name, {}))
    return [
        _lookups(
            old,
            new,
            window_s,
            name,
            (group, entity),
            about=entity,
            stale=int(new.value(known.FEATURE_STALE.name, (group, entity)) or 0),
            errors=int(new.value(known.FEATURE_SOURCE_ERRORS.name, (group, entity)) or 0),
        )
        for group, entity in groups
    ]


def _caches(old: CounterSnapshot, new: CounterSnapshot, window_s: float) -> list[LookupFigures]:
    name = known.PREDICTION_CACHE_LOOKUPS.name
    found = []
    for cache in dict.fromkeys(labels[0] for labels in new.samples.get(name, {})):
        entries = new.value(known.PREDICTION_CACHE_ENTRIES.name, (cache,))
        size = new.value(known.PREDICTION_CACHE_BYTES.name, (cache,))
        found.append(
            _lookups(
                old,
                new,
                window_s,
                name,
                (cache,),
                about="on" if new.value(known.PREDICTION_CACHE_ENABLED.name, (cache,)) else "off",
                stale=int(new.value(known.PREDICTION_CACHE_STALE.name, (cache,)) or 0),
                entries=_whole(entries),
                size_bytes=_whole(size),
            )
        )
    return found


def _lookups(
    old: CounterSnapshot,
    new: CounterSnapshot,
    window_s: float,
    name: str,
    labels: tuple[str, ...],
    *,
    about: str,
    stale: int = 0,
    errors: int = 0,
    entries: int | None = None,
    size_bytes: int | None = None,
) -> LookupFigures:
    hits, misses = (
        _count(new.value(name, (*labels, result)), old.value(name, (*labels, result)), window_s)
        for result in ("hit", "miss")
    )
    looked = hits.rate + misses.rate
    return LookupFigures(
        name=labels[0],
        about=about,
        hits=hits,
        misses=misses,
        share=hits.rate / looked if looked > 0 else None,
        stale=stale,
        errors=errors,
        entries=entries,
        size_bytes=size_bytes,
    )


def _batches(old: CounterSnapshot, new: CounterSnapshot, window_s: float) -> BatchFigures:
    ran = {rows: _minus(found, old.batches.get(rows)) for rows, found in new.batches.items()}
    count, rows_sum = sum(n for n, _ in ran.values()), sum(rows * n for rows, (n, _) in ran.items())
    seconds = sum(ns for _, ns in ran.values()) / 1e9
    sizes = np.subtract(new.batch_sizes, old.batch_sizes).tolist()
    total = sum(n for n, _ in new.batches.values())
    return BatchFigures(
        count=Count(total=total, rate=count / window_s),
        rows_mean=rows_sum / count if count else None,
        seconds_mean=seconds / count if count else None,
        sizes=list(zip((*ROW_BOUNDS, None), sizes, strict=True)),
        rows_total=sum(rows * n for rows, (n, _) in new.batches.items()),
        seconds_total=sum(ns for _, ns in new.batches.values()) / 1e9,
    )


def _variants(
    about: ModelAbout, served: str, old: CounterSnapshot, new: CounterSnapshot, window_s: float
) -> list[VariantFigures]:
    totals, before = _summed(new.requests, _VARIANT), _summed(old.requests, _VARIANT)
    asked = totals.total() - before.total()
    busy, versions = _busy(new), {name: version for name, version in new.samples.get(known.SERVED.name, {})}
    found = []
    for name in dict.fromkeys([*([served] if served else []), *totals]):
        if not name or not (totals[name] or name == served):
            continue
        share = percentiles_ns(latency_between(old, new, name).places[-1:], SHARES)[0] / 1e9
        requests = _count(totals[name], before[name], window_s)
        version, busy_s = busy.get(name, ("", None))
        cost, currency = about.costs.get(name, (None, ""))
        found.append(
            VariantFigures(
                name=name,
                version=version or versions.get(name, ""),
                served=name == served,
                requests=requests,
                share=(totals[name] - before[name]) / asked if asked else None,
                p50_s=_known(share[0]),
                p95_s=_known(share[1]),
                p99_s=_known(share[2]),
                busy_share=None if busy_s is None else (busy_s - (_busy(old).get(name, ("", 0.0))[1] or 0)) / window_s,
                cost=cost,
                currency=currency,
            )
        )
    return found


def _summed(requests: Mapping[tuple[str, str, str, str], int], place: int) -> Counter[str]:
    """Sum counts of requests by what their keys have at a place."""
    found: Counter[str] = Counter()
    for key, count in requests.items():
        found[key[place]] += count
    return found


def _busy(at: CounterSnapshot) -> dict[str, tuple[str, float | None]]:
    """Return version and device seconds by variant."""
    held = at.samples.get(DEVICE_BUSY.name, {})
    return {variant: (version, seconds) for (variant, version), seconds in held.items()}


def _gauges(at: CounterSnapshot) -> Gauges:
    def now(metric: Metric) -> int | None:
        return _whole(at.only(metric.name))

    return Gauges(
        in_flight=now(known.IN_FLIGHT),
        queue_rows=now(known.QUEUE_ROWS),
        running_rows=now(known.RUNNING_ROWS),
        at_risk=now(known.QUEUE_AT_RISK),
        overloaded=now(known.OVERLOADED),
        executors=now(known.EXECUTORS),
        executors_target=now(known.EXECUTORS_TARGET),
        executors_hung=now(known.EXECUTORS_HUNG),
    )


def _count(now: float | None, then: float | None, window_s: float) -> Count:
    # A counter of a model that was loaded again begins at 0.
    return Count(total=int(now or 0), rate=max((now or 0) - (then or 0), 0) / window_s)


def _minus(now: tuple[int, int], then: tuple[int, int] | None) -> tuple[int, int]:
    return now if then is None else (now[0] - then[0], now[1] - then[1])


def _known(value: float) -> float | None:
    return None if isnan(value) else float(value)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def point(figures: ModelFigures, at_s: float) -> list[float | None]:
    """Return a model's figures of one moment for its plots, in the order of ``POINT``; rounded to four digits."""
    requests, batches = figures.requests, figures.batches
    whole = figures.stages[-1]
    values: Iterable[float | None] = (
        requests.all.rate,
        requests.answered.rate,
        requests.shed.rate,
        requests.failed.rate,
        whole.p50_s,
        whole.p95_s,
        whole.p99_s,
        figures.now.queue_rows,
        figures.now.in_flight,
        batches.rows_mean,
        *(each.mean_s for each in figures.stages[:-1]),
    )
    return [round(at_s, 1), *(None if each is None else float(f"{each:.4g}") for each in values)]


POINT = (
    "at", "rate", "answered", "shed", "failed", "p50", "p95", "p99", "queue_rows", "in_flight", "batch_rows",
    *STAGES[:-1],
)  # fmt: skip
"""Names of the values of a point."""
