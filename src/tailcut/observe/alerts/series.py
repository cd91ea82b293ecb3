"""Names of the series that rules are about, taken from the definitions of the metrics; and the alerts' own metrics."""

from __future__ import annotations

from tailcut.observe import exposition, latency_figures, path_metrics
from tailcut.observe.sample import counter, gauge

REQUESTS = exposition.REQUESTS.series[0]
SLO_GOOD = latency_figures.SLO_GOOD.series[0]
SLO_REQUESTS = latency_figures.SLO_REQUESTS.series[0]
FEATURE_LOOKUPS = path_metrics.FEATURE_LOOKUPS.series[0]
FEATURE_STALE = path_metrics.FEATURE_STALE.series[0]
FEATURE_SOURCE_ERRORS = path_metrics.FEATURE_SOURCE_ERRORS.series[0]
FEATURE_SOURCE_SECONDS = path_metrics.FEATURE_SOURCE_SECONDS.series[0]
CACHE_BYTES = path_metrics.PREDICTION_CACHE_BYTES.series[0]

ALERTS = gauge(
    "tailcut_alerts",
    "1 while an alert of the server's own fires; model is empty for alerts of the process.",
    "alert",
    "model",
    "severity",
    of_host=True,
)
EVALUATIONS = counter("tailcut_alert_evaluations", "Evaluations of the alerts, by outcome.", "outcome", of_host=True)
MESSAGES = counter(
    "tailcut_alert_messages",
    "Messages of the alerts' webhook by outcome; failed: given up, dropped: too many waited.",
    "outcome",
    of_host=True,
)
CPU_PERIODS_METRIC = counter(
    "tailcut_cpu_periods",
    "Periods of the control group's CPU quota in which it ran; 0 without a quota.",
    of_host=True,
)
CPU_THROTTLED_METRIC = counter(
    "tailcut_cpu_throttled_periods", "Of tailcut_cpu_periods, those in which the quota was used up.", of_host=True
)
PROCESS_BYTES = gauge(
    "tailcut_process_bytes",
    "Memory that the server and its child processes do not share with others.",
    of_host=True,
)
CPU_PERIODS = CPU_PERIODS_METRIC.series[0]
CPU_THROTTLED = CPU_THROTTLED_METRIC.series[0]
