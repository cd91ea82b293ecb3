"""The alerts as rules for Prometheus: recording rules, and one alert per row of the table ``observe.alerts.rules``.

Series and labels are taken from the definitions of the metrics. What Prometheus cannot compute, drift and the growth of
memory less the caches, it takes from ``tailcut_alerts``. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from typing import NamedTuple

from tailcut.manifest.schema.observe import AlertName
from tailcut.manifest.schema.observe import Alerts as Settings
from tailcut.observe.alerts.rules import (
    ALERTS,
    BURN_WINDOWS,
    EVALUATIONS,
    GPU_BYTES,
    GPU_CELSIUS,
    GPU_SLOWED,
    RULE,
    RULES,
    BurnWindow,
    CountShare,
    Selection,
    windows_for,
)
from tailcut.observe.alerts.rules import Rule as Row
from tailcut.observe.exposition import REQUESTS, THREADS
from tailcut.observe.fine_histogram import RATIO
from tailcut.observe.latency_figures import ERRORS, LATENCY, REQUEST, SLO_GOOD, SLO_REQUESTS, Objective, objective_label
from tailcut.observe.path_metrics import HOST_READY
from tailcut.observe.sample import Metric
from tailcut.report.monitoring.promql import check_label

_P95 = "tailcut:latency_p95_seconds:avg1h"
_ANSWERED = "tailcut:answered:increase1h"
_SLO = ("model", "slo", "objective")
_MODEL = ("model",)
_INDENT = " " * 10

_OPEN_FILES = "process_open_fds"
"""Of Prometheus' own client."""

_FORWARD = "TailcutAlarm"
"""Of alerts that are taken from ``tailcut_alerts``."""

_MIB = 1 << 20
_LEVELS: tuple[tuple[AlertName, str, str, int], ...] = (
    ("descriptor_leak", _OPEN_FILES, "open files", 128),
    ("thread_leak", THREADS.series[0], "threads", 64),
    ("gpu_memory_leak", GPU_BYTES.series[0], "bytes of GPU memory", 64 * _MIB),
)
"""Gauges that may leak, with the growth below which there is no alarm."""


class PrometheusRule(NamedTuple):
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


def rules_text(settings: Settings, objectives: Sequence[Objective], *, has_features: bool) -> str:
    """Return a rules file of Prometheus, as YAML.

    Args:
        objectives: of all models' SLOs.
        has_features: whether any model has feature groups.
    """
    objectives = list({(each.name, each.share): each for each in objectives}.values())
    alerts = [
        *_burn_rates(settings, objectives),
        *_growth(settings),
        *_shares(settings, has_features),
        *_of_server(settings),
    ]
    recorded = [*_recorded(bool(objectives))]
    head = "# Written by `tailcut export prometheus-rules`: change the manifest, then run it again.\n"
    return head + "groups:\n" + _group("tailcut-recorded", recorded) + _group("tailcut", alerts)


# -- PromQL ----------------------------------------------------------------------------------------------------------


def _series(metric: Metric, *conditions: str) -> str:
    """Return a selector; a label that the metric does not have raises ValueError."""
    for condition in conditions:
        check_label(metric, re.split(r"\W", condition, maxsplit=1)[0])
    return metric.series[0] + (f"{{{', '.join(conditions)}}}" if conditions else "")


def _selected(function: str, selections: Sequence[Selection], window: str, by: Sequence[str]) -> str:
    """Return the rate or increase of selected counters, summed ``by`` labels; as they are without labels."""
    found = [
        f"{function}({_series(metric, *(f'{label}{how}{json.dumps(value)}' for label, how, value in matches))}"
        f"[{window}])"
        for metric, matches in selections
    ]
    for metric, _ in selections:
        for label in by:
            check_label(metric, label)
    return f"sum by ({', '.join(by)}) ({' or '.join(found)})" if by else found[0]


# -- Recording rules -------------------------------------------------------------------------------------------------


def _recorded(has_objectives: bool) -> Iterator[PrometheusRule]:
    if has_objectives:
        for minutes in sorted({minutes for each in BURN_WINDOWS for minutes in (each.long, each.short)}):
            window = _window(minutes)
            good, total = (_selected("rate", [Selection(metric)], window, _SLO) for metric in (SLO_GOOD, SLO_REQUESTS))
            yield PrometheusRule(f"tailcut:slo_bad:ratio_rate{window}", f"1 - {good}\n  / {total}")
    p95 = _series(LATENCY, 'quantile="0.95"')
    yield PrometheusRule(_P95, f"avg by (model, stage) (avg_over_time({p95}[1h]))")
    yield PrometheusRule(_ANSWERED, _selected("increase", [Selection(REQUESTS, (("code", "=", "ok"),))], "1h", _MODEL))


# -- Alerts ----------------------------------------------------------------------------------------------------------


def _burn_rates(settings: Settings, objectives: Sequence[Objective]) -> Iterator[PrometheusRule]:
    if "burn_rate" in settings.off:
        return
    for objective in objectives:
        for window in windows_for(1 - objective.share):
            yield _burn_rate(settings, objective, window)


def _burn_rate(settings: Settings, objective: Objective, window: BurnWindow) -> PrometheusRule:
    matches = ("slo", "=", objective.name), ("objective", "=", objective_label(objective.share))
    selector = f"{{{', '.join(f'{label}{how}{json.dumps(value)}' for label, how, value in matches)}}}"
    limit = f"{window.factor * (1 - objective.share):.6g}"
    long, short = _window(window.long), _window(window.short)
    total, good = (
        _selected("increase", [Selection(metric, matches)], long, _SLO) for metric in (SLO_REQUESTS, SLO_GOOD)
    )
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
    hint = "the server's own alarm names the likely stage"
    labels = ("slo", objective.name), ("window", long)
    return PrometheusRule(RULE["burn_rate"].exported, expr, "1m", window.severity, summary, hint, labels)


def _growth(settings: Settings) -> Iterator[PrometheusRule]:
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
    yield PrometheusRule(RULE["p95_growth"].exported, expr, "5m", "ticket", summary, RULE["p95_growth"].hint)


def _shares(settings: Settings, has_features: bool) -> Iterator[PrometheusRule]:
    for row in RULES:
        share = row.share
        is_counted = settings.enabled or not row.of_process  # the server samples its process for its alerts
        if share is None or row.alert in settings.off or not is_counted or (share.by and not has_features):
            continue
        minutes = round(settings.window_s / 60)
        # While caches fill, less is a hit.
        wait = _window(minutes) if share.below else "1m"
        yield _share(row, share, settings, _window(minutes), wait)


def _share(row: Row, share: CountShare, settings: Settings, window: str, wait: str) -> PrometheusRule:
    by = () if row.of_process else (*_MODEL, *share.by)
    part, whole = (_selected("rate", each, window, by) for each in (share.part, share.whole))
    limit = getattr(settings, share.limit)
    expr = f"{part}\n  / {whole}\n  {'<' if share.below else '>'} {limit:g}"
    if share.least:
        expr += f"\nand {_selected('increase', share.whole, window, by)} >= {getattr(settings, share.least)}"
    subject = "{{ $labels.instance }}" if row.of_process else "{{ $labels.model }}"
    group = " of group {{ $labels.group }} (entity type {{ $labels.entity_type }})" if share.by else ""
    value = "{{ $value | humanizePercentage }}"
    summary = f"{subject}: {value} of the {share.of}{group} {share.what}, limit {100 * limit:g} %"
    return PrometheusRule(row.exported, expr, wait, row.severities[0], summary, row.hint)


def _of_server(settings: Settings) -> Iterator[PrometheusRule]:
    # Of the models that the server must have: others are unloaded on purpose, too.
    summary = "{{ $labels.instance }}: a required model has not been ready for 5 minutes"
    not_ready = f"{_series(HOST_READY)} == 0"
    yield PrometheusRule(
        "TailcutNotReady", not_ready, "5m", "page", summary, "GET /v2/health/ready says which one, and why"
    )
    for alert, gauge, what, least in _LEVELS:
        if alert not in settings.off and (settings.enabled or gauge != GPU_BYTES.series[0]):
            yield _leak(RULE[alert], settings.leak_growth, gauge, what, least)
    if not settings.enabled:
        return
    if "gpu_hot" not in settings.off:
        expr = f"{_series(GPU_CELSIUS)} > {settings.gpu_celsius:g}\nor {_series(GPU_SLOWED)} > 0"
        summary = "{{ $labels.instance }}: a GPU is hot, or its clocks are held back"
        yield PrometheusRule(RULE["gpu_hot"].exported, expr, "1m", "ticket", summary, RULE["gpu_hot"].hint)
    forwarded = [row.alert for row in RULES if row.exported == _FORWARD and row.alert not in settings.off]
    if forwarded:
        summary = "{{ $labels.instance }} {{ $labels.model }}: {{ $labels.alert }}; its log says more"
        alerts = _series(ALERTS, f'alert=~"{"|".join(forwarded)}"')
        yield PrometheusRule(_FORWARD, f"{alerts} == 1", "0m", "", summary, "see /ui")
    evaluations = _series(EVALUATIONS, 'outcome="ok"')
    expr = f"increase({evaluations}[10m]) == 0"
    summary = "{{ $labels.instance }} does not evaluate its alerts"
    yield PrometheusRule("TailcutAlertsNotEvaluated", expr, "5m", "ticket", summary, "its log says why")


def _leak(row: Row, growth: float, gauge: str, what: str, least: int) -> PrometheusRule:
    """Return a rule on a gauge whose lowest value of the last hour is above the highest of 3 and of 6 hours before."""
    lowest, before = f"min_over_time({gauge}[1h])", f"max_over_time({gauge}[1h] offset 6h)"
    expr = (
        f"{lowest}\n  > {1 + growth:g} * {before}\nand {lowest} - {before} > {least}\n"
        f"and {lowest} > max_over_time({gauge}[1h] offset 3h)\n"
        f"and max_over_time({gauge}[1h] offset 3h) > {before}"
    )
    summary = (
        f"{{{{ $labels.instance }}}}: {what} grew by more than {growth * 100:g} % in 6 hours, to "
        "{{ $value | humanize }}, and go on"
    )
    return PrometheusRule(row.exported, expr, "10m", row.severities[0], summary, row.hint)


# -- YAML ------------------------------------------------------------------------------------------------------------


def _window(minutes: int) -> str:
    for size, unit in ((24 * 60, "d"), (60, "h")):
        if minutes % size == 0:
            return f"{minutes // size}{unit}"
    return f"{minutes}m"


def _group(name: str, rules: Sequence[PrometheusRule]) -> str:
    return f"  - name: {name}\n    interval: 1m\n    rules:\n" + "".join(_written(rule) for rule in rules)


def _written(rule: PrometheusRule) -> str:
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
