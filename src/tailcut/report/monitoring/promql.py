"""PromQL made from the definitions of metrics: a label that a metric does not have is an error, not an empty plot."""

from __future__ import annotations

from collections.abc import Sequence

from tailcut.observe.sample import Metric

WINDOW = "$__rate_interval"
"""Grafana's variable: four scrape intervals or more."""


def select(metric: Metric, part: str = "", window: str = "", *conditions: str) -> str:
    """Return a selector of a metric's series.

    Args:
        part: of a histogram: "bucket", "sum" or "count".
        window: of a range selector; empty: the latest value.
        conditions: such as ``outcome="ok"``; "model" is added.

    Raises:
        ValueError: the metric has no such label or part.
    """
    wanted = [] if metric.of_host else ['model=~"$model"']
    for condition in conditions:
        check_label(metric, condition.partition("=")[0].rstrip("!"))
        wanted.append(condition)
    if (metric.kind == "histogram") != bool(part):
        raise ValueError(f"{metric.name} is a {metric.kind}: its part is {part!r}")
    name = f"{metric.name}_{part}" if part else metric.series[0]
    return f"{name}{{{','.join(wanted)}}}" + (f"[{window}]" if window else "")


def rate(metric: Metric, by: Sequence[str] = ("model",), *conditions: str, part: str = "", window: str = WINDOW) -> str:
    """Return the summed rate per second of a counter, or of a part of a histogram."""
    return f"{_sum(metric, by)} (rate({select(metric, part, window, *conditions)}))"


def mean(metric: Metric, by: Sequence[str] = ("model",), *conditions: str) -> str:
    """Return the recent mean of what a histogram has counted."""
    return f"{rate(metric, by, *conditions, part='sum')} / {rate(metric, by, *conditions, part='count')}"


def quantile(metric: Metric, share: float, by: Sequence[str] = ("model",)) -> str:
    """Return a recent quantile of a histogram, as fine as its bounds."""
    return f"histogram_quantile({share:g}, {rate(metric, ('le', *by), part='bucket')})"


def total(metric: Metric, by: Sequence[str] = ("model",), *conditions: str) -> str:
    """Return the sum of a gauge."""
    return f"{_sum(metric, by)} ({select(metric, '', '', *conditions)})"


def highest(metric: Metric, by: Sequence[str], *conditions: str) -> str:
    """Return the largest value of a gauge, over replicas for example."""
    return _sum(metric, by).replace("sum", "max", 1) + f" ({select(metric, '', '', *conditions)})"


def _sum(metric: Metric, by: Sequence[str]) -> str:
    for label in by:
        if label != "le":
            check_label(metric, label)
    return f"sum by ({', '.join(by)})" if by else "sum"


def check_label(metric: Metric, label: str) -> None:
    """Raise ValueError where a metric has no such label."""
    if label not in metric.all_labels:
        raise ValueError(f"{metric.name} has no label {label!r}, but {', '.join(metric.all_labels) or 'none'}")
