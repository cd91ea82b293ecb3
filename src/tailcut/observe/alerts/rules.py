"""All alerts as one table: the server evaluates some of them, and every one is exported as a rule for Prometheus.

Two evaluators read it: ``evaluation`` over the counts of the last minutes, and ``report.monitoring.prometheus_rules``,
which writes PromQL.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from tailcut.manifest.schema.observe import AlertName
from tailcut.observe.exposition import REQUESTS
from tailcut.observe.outcomes import SHED_CODES
from tailcut.observe.path_metrics import FEATURE_LOOKUPS, FEATURE_STALE, GROUP
from tailcut.observe.sample import Metric, counter, gauge

Severity = Literal["page", "ticket"]
"""page: somebody must look now; ticket: within days."""

Level = Literal["good", "between", "bad"]
"""between: neither beyond the limit nor clear of it; an alarm that fires goes on, none begins.

A rule that has too little to judge by yields no finding; otherwise it yields one, also where all is good.
"""


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
CPU_PERIODS = counter(
    "tailcut_cpu_periods",
    "Periods of the control group's CPU quota in which it ran; 0 without a quota.",
    of_host=True,
)
CPU_THROTTLED = counter(
    "tailcut_cpu_throttled_periods", "Of tailcut_cpu_periods, those in which the quota was used up.", of_host=True
)
PROCESS_BYTES = gauge(
    "tailcut_process_bytes",
    "Memory that the server and its child processes do not share with others.",
    of_host=True,
)
GPU_BYTES = gauge(
    "tailcut_gpu_bytes", "GPU memory of the server and its child processes; 0 without a GPU.", of_host=True
)
GPU_CELSIUS = gauge(
    "tailcut_gpu_celsius", "Temperature of the hottest GPU in degrees Celsius; 0 without one.", of_host=True
)
GPU_SLOWED = gauge(
    "tailcut_gpu_slowed", "GPUs whose clocks are held back by heat or by the power supply.", of_host=True
)


class Selection(NamedTuple):
    """Series of a counter.

    Attributes:
        matches: label, operator ("=", "!=", "=~", "!~") and value, as in PromQL.
    """

    metric: Metric
    matches: tuple[tuple[str, str, str], ...] = ()


class CountShare(NamedTuple):
    """A share of what was counted in ``observe.alerts.window``, against a limit.

    Attributes:
        part, whole: counters whose growth is added up.
        by: labels that it is judged by, beside the model.
        limit, least: settings with the limit, and with the smallest ``whole`` that is judged (empty: any).
        of, what: of its text: "3 % of the requests failed".
        below: whether it fires below the limit.
    """

    part: tuple[Selection, ...]
    whole: tuple[Selection, ...]
    by: tuple[str, ...]
    limit: str
    least: str
    of: str
    what: str
    below: bool = False


class Rule(NamedTuple):
    """One alert.

    Attributes:
        exported: name of its rule for Prometheus.
        severities: with which it can fire.
        hint: the way out.
        in_server: whether the server evaluates it.
        of_process: whether it is about the process or its machine, and not about one model.
        share: what it is about, where that is a share.
    """

    alert: AlertName
    exported: str
    severities: tuple[Severity, ...]
    hint: str
    in_server: bool = True
    of_process: bool = False
    share: CountShare | None = None


_SHED = "|".join(SHED_CODES)
# Requests but those that were themselves wrong: "shed" is a 4xx, too.
_ENDED = Selection(REQUESTS, (("outcome", "!=", "4xx"),)), Selection(REQUESTS, (("code", "=", "shed"),))
_FAILED = Selection(REQUESTS, (("outcome", "=", "5xx"), ("code", "!~", _SHED)))
_HITS = Selection(FEATURE_LOOKUPS, (("result", "=", "hit"),))
_LOOKUPS = (Selection(FEATURE_LOOKUPS),)

RULES = (
    Rule(
        "burn_rate",
        "TailcutBurnRate",
        ("page", "ticket"),
        "look at the slowest and the failed requests on /ui, and at the log for the code of errors",
    ),
    Rule(
        "errors",
        "TailcutErrors",
        ("page",),
        "look at the log for the code",
        share=CountShare((_FAILED,), _ENDED, (), "errors", "share_requests", "requests", "failed"),
    ),
    Rule("p95_growth", "TailcutP95Growth", ("ticket",), "tailcut compare --since 1h --against 1w shows every stage"),
    Rule(
        "hit_rate",
        "TailcutFeatureHitRate",
        ("ticket",),
        "are there new values of the entity type? raise the group's ttl or refresh_ahead, or the cache's size",
        share=CountShare((_HITS,), _LOOKUPS, GROUP, "hit_rate", "hit_rate_lookups", "look-ups", "hit", below=True),
    ),
    Rule(
        "stale",
        "TailcutFeaturesStale",
        ("ticket",),
        "the source of the group fails: look at the log of tailcut.features",
        share=CountShare(
            (Selection(FEATURE_STALE),), _LOOKUPS, GROUP, "stale", "hit_rate_lookups", "look-ups", "were answered stale"
        ),
    ),
    Rule(
        "drift",
        "TailcutAlarm",
        ("ticket",),
        "compare the distributions on /ui; if the change is here to stay, build on a new holdout",
    ),
    Rule(
        "memory_leak",
        "TailcutAlarm",
        ("ticket",),
        "look at hooks and feature functions that keep what they are given; pool.recycle_requests replaces executors",
        of_process=True,
    ),
    Rule(
        "shed",
        "TailcutShed",
        ("page",),
        "there is too little capacity: add servers or executors, or serve a faster variant",
        in_server=False,
        share=CountShare(
            (Selection(REQUESTS, (("code", "=~", _SHED),)),),
            _ENDED,
            (),
            "shed",
            "share_requests",
            "requests",
            "were shed or timed out in the queue",
        ),
    ),
    Rule(
        "cpu_throttled",
        "TailcutCpuThrottled",
        ("ticket",),
        "raise the CPU limit of the container, or lower pool.threads and pool.executors",
        in_server=False,
        of_process=True,
        share=CountShare(
            (Selection(CPU_THROTTLED),),
            (Selection(CPU_PERIODS),),
            (),
            "throttled",
            "",
            "periods of the CPU quota",
            "were used up",
        ),
    ),
    Rule(
        "descriptor_leak",
        "TailcutDescriptorLeak",
        ("ticket",),
        "look at what hooks and feature functions open and do not close (ls -l /proc/PID/fd)",
        in_server=False,
        of_process=True,
    ),
    Rule(
        "thread_leak",
        "TailcutThreadLeak",
        ("ticket",),
        "look at hooks and feature functions that start threads or pools per request",
        in_server=False,
        of_process=True,
    ),
    Rule(
        "gpu_memory_leak",
        "TailcutGpuMemoryLeak",
        ("ticket",),
        "look at hooks that keep tensors; pool.recycle_requests replaces executors",
        in_server=False,
        of_process=True,
    ),
    Rule(
        "gpu_hot",
        "TailcutGpuHot",
        ("ticket",),
        "check the cooling and the power limit (nvidia-smi -q -d TEMPERATURE,POWER)",
        in_server=False,
        of_process=True,
    ),
)
RULE: dict[AlertName, Rule] = {rule.alert: rule for rule in RULES}


class AlertFinding(NamedTuple):
    """One condition, as of one evaluation.

    Attributes:
        model: empty for the process.
        subject: the feature group, where the alert is about one.
        value, limit: in the unit that ``text`` has: percent, or times the SLO's budget.
        place: where it probably comes from: a stage, "features/GROUP", "columns/NAME" or "memory"; empty if unknown.
        text: one sentence with the value, the limit and the window.
    """

    alert: AlertName
    model: str
    subject: str
    severity: Severity
    level: Level
    value: float
    limit: float
    place: str
    text: str

    @property
    def key(self) -> str:
        """Tells conditions apart over evaluations."""
        return "|".join((self.alert, self.model, self.subject, self.severity))


class BurnWindow(NamedTuple):
    """One pair of windows, in minutes, with the burn rate that both must exceed.

    The long one says that it matters, the short one that it goes on. Source: Site Reliability Workbook (Google, 2018),
    chapter 5, "Multiwindow, Multi-Burn-Rate Alerts".
    """

    factor: float
    long: int
    short: int
    severity: Severity


BURN_WINDOWS = (
    BurnWindow(14.4, 60, 5, "page"),
    BurnWindow(6.0, 360, 30, "page"),
    BurnWindow(1.0, 3 * 24 * 60, 360, "ticket"),
)


def windows_for(budget: float) -> list[BurnWindow]:
    """Return the windows that can fire with a budget: of one of 50 % no more than twice can be used, of 0 none."""
    return [window for window in BURN_WINDOWS if 0 < window.factor * budget < 1]
