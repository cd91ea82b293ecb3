"""The alerts as rules for Prometheus: recording rules, and one alert per rule of the server's own.

Series and labels are taken from the definitions of the metrics. What Prometheus cannot compute, drift and leaks with
their intervals, it takes from ``tailcut_alerts``. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from typing import NamedTuple

from tailcut.manifest.schema.observe import Alerts as Settings
from tailcut.observe.alerts.burn_rates import BURN_WINDOWS, BurnWindow, windows_for
from tailcut.observe.alerts.series import (
    ALERTS,
    CPU_PERIODS,
    CPU_THROTTLED,
    EVALUATIONS,
    FEATURE_LOOKUPS,
    FEATURE_STALE,
    REQUESTS,
    SLO_GOOD,
    SLO_REQUESTS,
)
from tailcut.observe.alerts.shares import SHED_CODES
from tailcut.observe.fine_histogram import RATIO
from tailcut.observe.latency_figures import ERRORS, LATENCY, REQUEST, Objective
from tailcut.observe.path_metrics import READY

_FORWARDED = ("drift", "memory_leak", "descriptor_leak", "thread_leak", "gpu_memory_leak", "gpu_hot")
_P95 = "tailcut:latency_p95_seconds:avg1h"
_ANSWERED = "tailcut:answered:increase1h"
_ENDED = "tailcut:requests:rate"
_SLO = "model, slo, objective"
_GROUP = "model, group, entity_type"
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


# -- Recording rules -------------------------------------------------------------------------------------------------


def _recorded(settings: Settings, has_objectives: bool) -> Iterator[Rule]:
    if has_objectives:
        for minutes in sorted({minutes for each in BURN_WINDOWS for minutes in (each.long, each.short)}):
            window = _window(minutes)
            good = f"sum by ({_SLO}) (rate({SLO_GOOD}[{window}]))"
            yield Rule(
                f"tailcut:slo_bad:ratio_rate{window}",
                f"1 - {good}\n  / sum by ({_SLO}) (rate({SLO_REQUESTS}[{window}]))",
            )
    window = _window(round(settings.window_s / 60))
    yield Rule(
        f"{_ENDED}{window}",
        f'sum by (model) (rate({REQUESTS}{{outcome=~"ok|5xx"}}[{window}]))\n'
        f'  + sum by (model) (rate({REQUESTS}{{code="shed"}}[{window}]))',
    )
    yield Rule(_P95, f'avg by (model, stage) (avg_over_time({LATENCY.name}{{quantile="0.95"}}[1h]))')
    yield Rule(_ANSWERED, f'sum by (model) (increase({REQUESTS}{{code="ok"}}[1h]))')


# -- Alerts ----------------------------------------------------------------------------------------------------------


def _burn_rates(settings: Settings, objectives: Sequence[Objective]) -> Iterator[Rule]:
    if "burn_rate" in settings.off:
        return
    for objective in objectives:
        for window in windows_for(1 - objective.share):
            yield _burn_rate(settings, objective, window)


def _burn_rate(settings: Settings, objective: Objective, window: BurnWindow) -> Rule:
    selector = f'{{slo="{objective.name}", objective="{objective.share:g}"}}'
    limit = f"{window.factor * (1 - objective.share):.6g}"
    long, short = _window(window.long), _window(window.short)
    bad = f"sum by ({_SLO}) (increase({SLO_REQUESTS}{selector}[{long}]))"
    good = f"sum by ({_SLO}) (increase({SLO_GOOD}{selector}[{long}]))"
    expr = (
        f"tailcut:slo_bad:ratio_rate{long}{selector} > {limit}\n"
        f"and tailcut:slo_bad:ratio_rate{short}{selector} > {limit}\n"
        f"and {bad}\n  - {good}\n  >= {settings.burn_requests}"
    )
    what = "was not answered" if objective.name == ERRORS else f"missed the {objective.name} limit"
    summary = (
        f"{{{{ $labels.model }}}}: {{{{ $value | humanizePercentage }}}} of the requests of {long} {what}; the error "
        f"budget burns more than {window.factor:g}x as fast as the SLO allows"
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
    lookups = f"sum by ({_GROUP}) (rate({FEATURE_LOOKUPS}[{window}]))"
    enough = f"and sum by ({_GROUP}) (increase({FEATURE_LOOKUPS}[{window}])) >= {settings.hit_rate_lookups}"
    of = (
        "{{ $labels.model }}: {{ $value | humanizePercentage }} of the look-ups of group {{ $labels.group }} "
        "(entity type {{ $labels.entity_type }}) "
    )
    if "hit_rate" not in settings.off:
        hits = f'sum by ({_GROUP}) (rate({FEATURE_LOOKUPS}{{result="hit"}}[{window}]))'
        expr = f"{hits}\n  / {lookups}\n  < {settings.hit_rate:g}\n{enough}"
        summary = f"{of}hit, limit {settings.hit_rate * 100:g} %"
        hint = "are there new values of the entity type? raise the group's ttl, or the cache's size"
        yield Rule("TailcutFeatureHitRate", expr, window, "ticket", summary, hint)
    if "stale" not in settings.off:
        stale = f"sum by ({_GROUP}) (rate({FEATURE_STALE}[{window}]))"
        expr = f"{stale}\n  / {lookups}\n  > {settings.stale:g}\n{enough}"
        summary = f"{of}were answered stale, limit {settings.stale * 100:g} %"
        yield Rule("TailcutFeaturesStale", expr, "1m", "ticket", summary, "the source of the group fails")


def _shares(settings: Settings) -> Iterator[Rule]:
    window = _window(round(settings.window_s / 60))
    seconds = settings.window_s
    shed = "|".join(SHED_CODES)
    for alert, name, limit, selector, what, hint in (
        ("errors", "TailcutErrors", settings.errors, f'outcome="5xx", code!~"{shed}"', "failed", "see the log"),
        ("shed", "TailcutShed", settings.shed, f'code=~"{shed}"', "were shed", "there is too little capacity"),
    ):
        if alert not in settings.off:
            expr = (
                f"sum by (model) (rate({REQUESTS}{{{selector}}}[{window}]))\n  / {_ENDED}{window}\n  > {limit:g}\n"
                f"and {_ENDED}{window} * {seconds:g} >= {settings.share_requests}"
            )
            summary = f"{{{{ $labels.model }}}}: {{{{ $value | humanizePercentage }}}} of the requests {what}"
            yield Rule(name, expr, "1m", "page", summary, hint)


def _of_server(settings: Settings) -> Iterator[Rule]:
    window = _window(round(settings.window_s / 60))
    summary = "{{ $labels.model }} has not been ready for 5 minutes"
    yield Rule("TailcutNotReady", f"{READY.name} == 0", "5m", "page", summary, "GET /v2/health/ready says why")
    if not settings.enabled:
        return
    if "cpu_throttled" not in settings.off:
        expr = f"rate({CPU_THROTTLED}[{window}]) / rate({CPU_PERIODS}[{window}]) > {settings.throttled:g}"
        summary = (
            "{{ $labels.instance }}: the CPU quota was used up in {{ $value | humanizePercentage }} of its periods"
        )
        yield Rule("TailcutCpuThrottled", expr, "1m", "ticket", summary, "raise the CPU limit of the container")
    names = "|".join(alert for alert in _FORWARDED if alert not in settings.off)
    if names:
        summary = "{{ $labels.instance }} {{ $labels.model }}: {{ $labels.alert }}; its log says more"
        yield Rule("TailcutAlarm", f'{ALERTS.name}{{alert=~"{names}"}} == 1', "0m", "", summary, "see /ui")
    expr = f'increase({EVALUATIONS.series[0]}{{outcome="ok"}}[10m]) == 0'
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
