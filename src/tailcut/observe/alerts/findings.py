"""What rules find: a value against its limit, where it probably comes from, and the way out."""

from __future__ import annotations

from typing import Literal, NamedTuple

from tailcut.manifest.schema.observe import AlertName

Severity = Literal["page", "ticket"]
"""page: somebody must look now; ticket: within days."""

Level = Literal["bad", "between", "good"]
"""between: neither beyond the limit nor clear of it; an alarm that fires goes on, none begins.

A rule that has too little to judge by finds nothing; one that judged says so, also where all is good.
"""

OF_MODELS: tuple[AlertName, ...] = ("p95_growth", "hit_rate", "burn_rate", "errors", "shed", "stale", "drift")
"""Alerts that are about one model."""

OF_GROUPS: tuple[AlertName, ...] = ("hit_rate", "stale")
"""Of these, alerts of which each is about one feature group, their subject."""

OF_PROCESS: tuple[AlertName, ...] = (
    "memory_leak",
    "descriptor_leak",
    "thread_leak",
    "gpu_memory_leak",
    "cpu_throttled",
    "gpu_hot",
)
"""Alerts that are about the process or its machine."""

SEVERITIES: dict[AlertName, tuple[Severity, ...]] = {
    "p95_growth": ("ticket",),
    "hit_rate": ("ticket",),
    "burn_rate": ("page", "ticket"),
    "errors": ("page",),
    "shed": ("page",),
    "stale": ("ticket",),
    "drift": ("ticket",),
    "memory_leak": ("ticket",),
    "descriptor_leak": ("ticket",),
    "thread_leak": ("ticket",),
    "gpu_memory_leak": ("ticket",),
    "cpu_throttled": ("ticket",),
    "gpu_hot": ("ticket",),
}
"""Severities with which each alert can fire."""

CAUSES: frozenset[AlertName] = frozenset(SEVERITIES) - {"p95_growth", "burn_rate", "errors", "shed"}
"""Alerts that say why; the others say what users notice, and stand behind them in an alarm."""


class Finding(NamedTuple):
    """One condition, as of one evaluation.

    Attributes:
        model: empty for the process.
        subject: of the alert, where there are several: a feature group, an objective of the SLO, a column.
        value, limit: in ``unit``: "%", "x", "MiB", "degrees C" or empty for plain numbers.
        place: where it probably comes from: a stage, "features/GROUP", "cpu", "gpu" or "memory"; empty if unknown.
        text: one sentence with the value, the limit and the window.
        hint: the way out.
    """

    alert: AlertName
    model: str
    subject: str
    severity: Severity
    level: Level
    value: float
    limit: float
    unit: str
    place: str
    text: str
    hint: str

    @property
    def key(self) -> str:
        """Tells conditions apart over evaluations."""
        return "|".join((self.alert, self.model, self.subject, self.severity))


def level_of(value: float, limit: float, clear: float) -> Level:
    """Return on which side of a limit a value is; it is clear of it at ``clear``, on the other side or at it."""
    above = clear <= limit
    if value > limit if above else value < limit:
        return "bad"
    return "good" if (value <= clear if above else value >= clear) else "between"
