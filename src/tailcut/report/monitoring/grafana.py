"""A Grafana dashboard for the models of a server, from the manifest and the definitions of the metrics.

Source: Grafana's dashboard JSON model (https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/),
schema version 39, which Grafana 10 and later read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from tailcut.manifest import Deployment
from tailcut.models import pool
from tailcut.observe import exposition as metrics
from tailcut.observe import latency_figures as figures
from tailcut.observe import path_metrics
from tailcut.pipeline import prediction_cache
from tailcut.pipeline.stages import features
from tailcut.report.monitoring.promql import WINDOW, highest, mean, quantile, rate, select, total

_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_PROMETHEUS = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
_MODELS = {
    "name": "model",
    "label": "Model",
    "type": "query",
    "datasource": _DATASOURCE,
    "query": {"query": f"label_values({path_metrics.READY.name}, model)", "refId": "model"},
    "refresh": 2,
    "includeAll": True,
    "multi": True,
    "current": {"text": "All", "value": "$__all"},
}
"""Variables of the dashboard: the data source, and the models that are shown."""
_HIT = 'result="hit"'
_WIDTH, _HEIGHT = 8, 8
_COLUMNS = 24 // _WIDTH


@dataclass(frozen=True)
class Plot:
    """One panel.

    Attributes:
        queries: (PromQL, legend) of each.
        unit: Grafana's name of it.
        limits: horizontal lines, in ``unit``.
    """

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    stacked: bool = False
    about: str = ""
    limits: tuple[float, ...] = ()


def dashboard(deployments: Sequence[Deployment], title: str) -> dict[str, Any]:
    """Return the dashboard as Grafana imports it; rows that no model has anything for are left out.

    Args:
        deployments: the models of the server.
    """
    numbers = count(1)
    panels: list[dict[str, Any]] = []
    top = 0
    for heading, plots in _rows(deployments):
        panels.append(
            {"id": next(numbers), "type": "row", "title": heading, "gridPos": _place(0, top, 24, 1), "panels": []}
        )
        for at, plot in enumerate(plots):
            left, below = at % _COLUMNS * _WIDTH, at // _COLUMNS * _HEIGHT
            panels.append(_panel(next(numbers), plot, _place(left, top + 1 + below, _WIDTH, _HEIGHT)))
        top += 1 + -(-len(plots) // _COLUMNS) * _HEIGHT
    names = ",".join(each.name for each in deployments)
    return {
        "uid": f"tailcut-{hashlib.sha256(names.encode()).hexdigest()[:12]}",
        "title": title,
        "tags": ["tailcut"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_PROMETHEUS, _MODELS]},
        "panels": panels,
    }


# -- What is shown ---------------------------------------------------------------------------------------------------


def _rows(deployments: Sequence[Deployment]) -> Iterator[tuple[str, list[Plot]]]:
    yield "Service level", _service_level(deployments)
    yield "Where the time goes", _stages()
    yield "Batches", _batches()
    if any(each.features.groups for each in deployments):
        yield "Features", _features()
    if any(each.cache.entity.enabled or each.cache.tensor.enabled for each in deployments):
        yield "Prediction caches", _prediction_caches()
    yield "Executors and process", _process()


def _service_level(deployments: Sequence[Deployment]) -> list[Plot]:
    limits = {objective.limit_s for each in deployments for objective in each.slo.latency}
    whole = f'stage="{figures.REQUEST}"'
    by_variant = rate(metrics.REQUESTS, ("model", "variant"))
    failures = rate(metrics.REQUESTS, ("model", "code"), 'outcome!="ok"')
    return [
        Plot("Requests", ((rate(metrics.REQUESTS, ("model", "outcome")), "{{model}} {{outcome}}"),), "reqps"),
        Plot(
            "Latency",
            ((highest(figures.LATENCY, ("model", "quantile"), whole), "{{model}} p{{quantile}}"),),
            "s",
            limits=tuple(sorted(limits)) if len(deployments) == 1 else (),
            about="Of answered requests, at most 2 % off; of several replicas the slowest. Lines: the SLO's limits.",
        ),
        Plot(
            "Burn rate of the error budget",
            tuple((_burn(slo, objective), f"{{{{model}}}} {slo} (1 h)") for slo, objective in _objectives(deployments)),
            about="1 uses the budget up exactly; a page at 14.4 over 1 h and 5 min is usual.",
            limits=(1.0,),
        ),
        Plot("Failed, shed and refused requests", ((failures, "{{model}} {{code}}"),), "reqps"),
        Plot("In flight", ((total(path_metrics.IN_FLIGHT), "{{model}}"),)),
        Plot("Requests by variant", ((by_variant, "{{model}} {{variant}}"),), "reqps"),
    ]


def _objectives(deployments: Iterable[Deployment]) -> list[tuple[str, float]]:
    found = {(each.name, each.share) for one in deployments for each in one.slo.latency}
    found |= {(figures.ERRORS, round(1 - float(one.slo.errors), 12)) for one in deployments}
    return sorted(found)


def _burn(slo: str, objective: float) -> str:
    wanted = (f'slo="{slo}"', f'objective="{figures.objective_label(objective)}"')
    good, asked = (
        f"sum by (model) (increase({select(metric, '', '1h', *wanted)}))"
        for metric in (figures.SLO_GOOD, figures.SLO_REQUESTS)
    )
    return f"(1 - {good} / {asked}) / {1 - objective:.9g}"


def _stages() -> list[Plot]:
    answered = rate(metrics.REQUEST_SECONDS, ("model",), part="count")
    per_request = f"{rate(metrics.STAGE_SECONDS, ('model', 'stage'), part='sum')} / on (model) group_left {answered}"
    p95 = highest(figures.LATENCY, ("model", "stage"), 'quantile="0.95"', f'stage!="{figures.REQUEST}"')
    return [
        Plot("Mean time per request by stage", ((per_request, "{{model}} {{stage}}"),), "s", stacked=True),
        Plot("p95 by stage", ((p95, "{{model}} {{stage}}"),), "s"),
        Plot("Event loop lag, p99", ((quantile(metrics.LOOP_LAG, 0.99, ()), "lag"),), "s"),
    ]


def _batches() -> list[Plot]:
    return [
        Plot("Rows per batch", ((mean(metrics.BATCH_ROWS), "{{model}}"),)),
        Plot("Time per batch", ((mean(metrics.BATCH_SECONDS), "{{model}}"),), "s"),
        Plot(
            "Queue",
            (
                (total(path_metrics.QUEUE_ROWS), "{{model}} queued rows"),
                (total(path_metrics.RUNNING_ROWS), "{{model}} running rows"),
                (total(path_metrics.QUEUE_AT_RISK), "{{model}} requests that may miss the SLO"),
            ),
        ),
    ]


def _features() -> list[Plot]:
    groups = ("model", "group")
    hits = f"{rate(path_metrics.FEATURE_LOOKUPS, groups, _HIT)} / {rate(path_metrics.FEATURE_LOOKUPS, groups)}"
    call_s = f"{rate(path_metrics.FEATURE_SOURCE_SECONDS, groups)} / {rate(features.SOURCE_CALLS, groups)}"
    legend = "{{model}} {{group}}"
    return [
        Plot("Hit rate by group", ((hits, legend),), "percentunit", limits=(0.7,)),
        Plot("Time per call of the source", ((call_s, legend),), "s"),
        Plot(
            "Stale values and failed calls",
            (
                (rate(path_metrics.FEATURE_STALE, groups), f"{legend} stale"),
                (rate(path_metrics.FEATURE_SOURCE_ERRORS, groups), f"{legend} failed"),
            ),
            "ops",
        ),
    ]


def _prediction_caches() -> list[Plot]:
    caches = ("model", "cache")
    lookups = path_metrics.PREDICTION_CACHE_LOOKUPS
    hits = f"{rate(lookups, caches, _HIT)} / {rate(lookups, caches)}"
    legend = "{{model}} {{cache}}"
    return [
        Plot("Hit rate by cache", ((hits, legend),), "percentunit"),
        Plot("Size", ((total(path_metrics.PREDICTION_CACHE_BYTES, caches), legend),), "bytes"),
        Plot("Evictions", ((rate(prediction_cache.EVICTIONS, caches), legend),), "ops"),
    ]


def _process() -> list[Plot]:
    return [
        Plot(
            "Executors",
            (
                (total(path_metrics.EXECUTORS), "{{model}} ready"),
                (total(path_metrics.EXECUTORS_TARGET), "{{model}} target"),
                (rate(pool.EXECUTORS_TERMINATED, ("model", "reason")), "{{model}} ended per second: {{reason}}"),
            ),
        ),
        Plot("Ready", ((highest(path_metrics.HOST_READY, ()), "server"), (total(path_metrics.READY), "{{model}}"))),
        Plot("Memory", (("process_resident_memory_bytes", "{{instance}}"),)),
        Plot("CPU", ((f"rate(process_cpu_seconds_total[{WINDOW}])", "{{instance}}"),)),
    ]


# -- Grafana's JSON --------------------------------------------------------------------------------------------------


def _panel(number: int, plot: Plot, place: dict[str, int]) -> dict[str, Any]:
    steps = [{"color": "green", "value": None}, *({"color": "red", "value": limit} for limit in plot.limits)]
    custom = {
        "fillOpacity": 60 if plot.stacked else 0,
        "stacking": {"mode": "normal" if plot.stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "line" if plot.limits else "off"},
        "showPoints": "never",
    }
    return {
        "id": number,
        "type": "timeseries",
        "title": plot.title,
        "description": plot.about,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {
                "unit": plot.unit,
                "min": 0,
                "custom": custom,
                "thresholds": {"mode": "absolute", "steps": steps},
            },
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": _DATASOURCE, "expr": query, "legendFormat": legend}
            for at, (query, legend) in enumerate(plot.queries)
        ],
    }


def _place(left: int, top: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}
