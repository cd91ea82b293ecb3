"""The alerts as rules for Prometheus: recording rules, and one alert per rule of the server's own.

Series and labels are taken from the definitions of the metrics. What Prometheus cannot compute, drift and leaks with
their intervals, it takes from ``tailcut_alerts``. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from typing import NamedTuple

from tailcut.manifest.schema.observe import Alerts as Settings
from tailcut.observe.alerts.burn_rates import BURN_WINDOWS, BurnWindow, windows_for
from tailcut.observe.alerts.series import ALERTS, CPU_PERIODS_METRIC, CPU_THROTTLED_METRIC, EVALUATIONS
from tailcut.observe.exposition import REQUESTS
from tailcut.observe.fine_histogram import RATIO
from tailcut.observe.latency_figures import ERRORS, LATENCY, REQUEST, SLO_GOOD, SLO_REQUESTS, Objective, objective_label
from tailcut.observe.outcomes import SHED_CODES
from tailcut.observe.path_metrics import FEATURE_LOOKUPS, FEATURE_STALE, HOST_READY
from tailcut.observe.sample import Metric
from tailcut.report.monitoring.promql import check_label

_FORWARDED = ("drift", "memory_leak", "descriptor_leak", "thread_leak", "gpu_memory_leak", "gpu_hot")
_P95 = "tailcut:latency_p95_seconds:avg1h"
_ANSWERED = "tailcut:answered:increase1h"
_ENDED = "tailcut:requests:rate"
_SLO = ("model", "slo", "objective")
_GROUP = ("model", "group", "entity_type")
_MODEL = ("model",)
_INDENT = " " * 10


class Rule(NamedTuple):
    """A recording rule, or an alert.

    Attributes:
        expr: PromQL, a term per line.
        wait: for which an alert must hold; empty for a recording rule.
        severity: empty where the series has the label.
        labels: further ones.
    """

    name: str
    expr: str
    wait: str = ""
    severity: str = ""
    summary: str = ""
    hint: str = ""
    labels: tuple[tuple[str, str], ...] = ()


class Subject(NamedTuple):
    """What rules are written for.

    Attributes:
        objectives: of all models' SLOs.
        has_features: whether any model has feature groups.
    """

    objectives: Sequence[Objective]
    has_features: bool


def rules_text(settings: Settings, subject: Subject) -> str:
    """Return a rules file of Prometheus, as YAML."""
    objectives = list({(each.name, each.share): each for each in subject.objectives}.values())
    alerts = [
        *_burn_rates(settings, objectives),
        *_growth(settings),
        *(_features(settings) if subject.has_features else ()),
        *_shares(settings),
        *_of_server(settings),
    ]
    recorded = [*_recorded(settings, bool(objectives))]
    head = "# Written by `tailcut export prometheus-rules`: change the manifest, then run it again.\n"
    return head + "groups:\n" + _group("tailcut-recorded", recorded) + _group("tailcut", alerts)


# -- PromQL ----------------------------------------------------------------------------------------------------------


def _series(metric: Metric, *conditions: str) -> str:
    """Return a selector; a label that the metric does not have raises ValueError."""
    for condition in conditions:
        check_label(metric, re.split(r"\W", condition, maxsplit=1)[0])
    return metric.series[0] + (f"{{{', '.join(conditions)}}}" if conditions else "")


def _sum(function: str, metric: Metric, window: str, by: Sequence[str], *conditions: str) -> str:
    """Return the sum of a counter's rate or increase."""
    for label in by:
        check_label(metric, label)
    return f"sum by ({', '.join(by)}) ({function}({_series(metric, *conditions)}[{window}]))"


# -- Recording rules -------------------------------------------------------------------------------------------------


def _recorded(settings: Settings, has_objectives: bool) -> Iterator[Rule]:
    if has_objectives:
        for minutes in sorted({minutes for each in BURN_WINDOWS for minutes in (each.long, each.short)}):
            window = _window(minutes)
            good, total = (_sum("rate", metric, window, _SLO) for metric in (SLO_GOOD, SLO_REQUESTS))
            yield Rule(f"tailcut:slo_bad:ratio_rate{window}", f"1 - {good}\n  / {total}")
    window = _window(round(settings.window_s / 60))
    answered = _sum("rate", REQUESTS, window, _MODEL, 'outcome=~"ok|5xx"')
    shed = _sum("rate", REQUESTS, window, _MODEL, 'code="shed"')
    yield Rule(f"{_ENDED}{window}", f"{answered}\n  + {shed}")
    p95 = _series(LATENCY, 'quantile="0.95"')
    yield Rule(_P95, f"avg by (model, stage) (avg_over_time({p95}[1h]))")
    yield Rule(_ANSWERED, _sum("increase", REQUESTS, "1h", _MODEL, 'code="ok"'))


# -- Alerts ----------------------------------------------------------------------------------------------------------


def _burn_rates(settings: Settings, objectives: Sequence[Objective]) -> Iterator[Rule]:
    if "burn_rate" in settings.off:
        return
    for objective in objectives:
        for window in windows_for(1 - objective.share):
            yield _burn_rate(settings, objective, window)


def _burn_rate(settings: Settings, objective: Objective, window: BurnWindow) -> Rule:
    conditions = f'slo="{objective.name}"', f'objective="{objective_label(objective.share)}"'
    selector = f"{{{', '.join(conditions)}}}"
    limit = f"{window.factor * (1 - objective.share):.6g}"
    long, short = _window(window.long), _window(window.short)
    total, good = (_sum("increase", metric, long, _SLO, *conditions) for metric in (SLO_REQUESTS, SLO_GOOD))
    expr = (
        f"tailcut:slo_bad:ratio_rate{long}{selector} > {limit}\n"
        f"and tailcut:slo_bad:ratio_rate{short}{selector} > {limit}\n"
        f"and {total}\n  - {good}\n  >= {settings.burn_requests}"
    )
    what = "were not answered" if objective.name == ERRORS else f"missed the {objective.name} limit"
    summary = (
        f"{{{{ $labels.model }}}}: {{{{ $value | humanizePercentage }}}} of the requests of the last {long} {what}; "
        f"the error budget burns more than {window.factor:g}x as fast as the SLO allows"
    )
    hint = "the server's own alarm names the likely stage and the slowest requests"
    labels = ("slo", objective.name), ("window", long)
    return Rule("TailcutBurnRate", expr, "1m", window.severity, summary, hint, labels)


def _growth(settings: Settings) -> Iterator[Rule]:
    if "p95_growth" in settings.off:
        return
    whole = f'{_P95}{{stage="{REQUEST}"}}'
    # A percentile of the fine histogram may be half a bound off on either side.
    factor = f"{(1 + settings.p95_growth) / sqrt(RATIO):.4f}"
    expr = (
        f"{whole}\n  > {factor} * {whole} offset 1w\n"
        f"and on (model) {_ANSWERED} >= {settings.p95_requests}\n"
        f"and on (model) {_ANSWERED} offset 1w >= {settings.p95_requests}"
    )
    stages = f'{_P95}{{model=%q, stage!="{REQUEST}"}}'
    stage = f"query (printf `topk(1, {stages} - {stages} offset 1w)` $labels.model $labels.model)"
    summary = (
        "{{ $labels.model }}: p95 is {{ $value | humanizeDuration }}, more than "
        f"{settings.p95_growth * 100:g} % above the same hour a week ago; "
        f"stage {{{{ range {stage} }}}}{{{{ .Labels.stage }}}}{{{{ end }}}} grew most"
    )
    yield Rule("TailcutP95Growth", expr, "5m", "ticket", summary, "tailcut compare --since 1h --against 1w")


def _features(settings: Settings) -> Iterator[Rule]:
    window = _window(round(settings.window_s / 60))
    lookups = _sum("rate", FEATURE_LOOKUPS, window, _GROUP)
    enough = f"and {_sum('increase', FEATURE_LOOKUPS, window, _GROUP)} >= {settings.hit_rate_lookups}"
    of = (
        "{{ $labels.model }}: {{ $value | humanizePercentage }} of the look-ups of group {{ $labels.group }} "
        "(entity type {{ $labels.entity_type }}) "
    )
    if "hit_rate" not in settings.off:
        hits = _sum("rate", FEATURE_LOOKUPS, window, _GROUP, 'result="hit"')
        expr = f"{hits}\n  / {lookups}\n  < {settings.hit_rate:g}\n{enough}"
        summary = f"{of}hit, limit {settings.hit_rate * 100:g} %"
        hint = "are there new values of the entity type? raise the group's ttl, or the cache's size"
        yield Rule("TailcutFeatureHitRate", expr, window, "ticket", summary, hint)
    if "stale" not in settings.off:
        stale = _sum("rate", FEATURE_STALE, window, _GROUP)
        expr = f"{stale}\n  / {lookups}\n  > {settings.stale:g}\n{enough}"
        summary = f"{of}were answered stale, limit {settings.stale * 100:g} %"
        yield Rule("TailcutFeaturesStale", expr, "1m", "ticket", summary, "the source of the group fails")


def _shares(settings: Settings) -> Iterator[Rule]:
    window = _window(round(settings.window_s / 60))
    seconds = settings.window_s
    shed = "|".join(SHED_CODES)
    failed = 'outcome="5xx"', f'code!~"{shed}"'
    for alert, name, limit, conditions, what, hint in (
        ("errors", "TailcutErrors", settings.errors, failed, "failed", "the log has the code"),
        ("shed", "TailcutShed", settings.shed, (f'code=~"{shed}"',), "were shed", "there is too little capacity"),
    ):
        if alert not in settings.off:
            expr = (
                f"{_sum('rate', REQUESTS, window, _MODEL, *conditions)}\n  / {_ENDED}{window}\n  > {limit:g}\n"
                f"and {_ENDED}{window} * {seconds:g} >= {settings.share_requests}"
            )
            summary = f"{{{{ $labels.model }}}}: {{{{ $value | humanizePercentage }}}} of the requests {what}"
            yield Rule(name, expr, "1m", "page", summary, hint)


def _of_server(settings: Settings) -> Iterator[Rule]:
    window = _window(round(settings.window_s / 60))
    # Of the models that the server must have: others are unloaded on purpose, too.
    summary = "{{ $labels.instance }}: a required model has not been ready for 5 minutes"
    not_ready = f"{_series(HOST_READY)} == 0"
    yield Rule("TailcutNotReady", not_ready, "5m", "page", summary, "GET /v2/health/ready says which one, and why")
    if not settings.enabled:
        return
    if "cpu_throttled" not in settings.off:
        throttled, periods = (f"rate({_series(each)}[{window}])" for each in (CPU_THROTTLED_METRIC, CPU_PERIODS_METRIC))
        expr = f"{throttled} / {periods} > {settings.throttled:g}"
        summary = (
            "{{ $labels.instance }}: the CPU quota was used up in {{ $value | humanizePercentage }} of its periods"
        )
        yield Rule("TailcutCpuThrottled", expr, "1m", "ticket", summary, "raise the CPU limit of the container")
    names = "|".join(alert for alert in _FORWARDED if alert not in settings.off)
    if names:
        summary = "{{ $labels.instance }} {{ $labels.model }}: {{ $labels.alert }}; its log says more"
        alerts = _series(ALERTS, f'alert=~"{names}"')
        yield Rule("TailcutAlarm", f"{alerts} == 1", "0m", "", summary, "see /ui")
    evaluations = _series(EVALUATIONS, 'outcome="ok"')
    expr = f"increase({evaluations}[10m]) == 0"
    summary = "{{ $labels.instance }} does not evaluate its alerts"
    yield Rule("TailcutAlertsNotEvaluated", expr, "5m", "ticket", summary, "its log says why")


# -- YAML ------------------------------------------------------------------------------------------------------------


def _window(minutes: int) -> str:
    for size, unit in ((24 * 60, "d"), (60, "h")):
        if minutes % size == 0:
            return f"{minutes // size}{unit}"
    return f"{minutes}m"


def _group(name: str, rules: Sequence[Rule]) -> str:
    return f"  - name: {name}\n    interval: 1m\n    rules:\n" + "".join(_written(rule) for rule in rules)


def _written(rule: Rule) -> str:
    what = "alert" if rule.wait else "record"
    lines = [f"      - {what}: {rule.name}", "        expr: |-"]
    lines += [f"{_INDENT}{line}" for line in rule.expr.splitlines()]
    if rule.wait:
        lines.append(f"        for: {rule.wait}")
        lines += _mapping("labels", {**({"severity": rule.severity} if rule.severity else {}), **dict(rule.labels)})
        lines += _mapping("annotations", {"summary": rule.summary, "hint": rule.hint})
    return "\n".join(lines) + "\n"


def _mapping(name: str, values: Mapping[str, str]) -> list[str]:
    if not values:
        return []
    # A string of JSON is one of YAML.
    return [f"        {name}:", *(f"{_INDENT}{key}: {json.dumps(value)}" for key, value in values.items())]
