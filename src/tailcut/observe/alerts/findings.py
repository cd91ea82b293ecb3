"""What rules find: a value against its limit, and where it probably comes from."""

from __future__ import annotations

from typing import Literal, NamedTuple

from tailcut.manifest.schema.observe import AlertName
from tailcut.observe.alerts.rules import Severity

Level = Literal["good", "between", "bad"]
"""between: neither beyond the limit nor clear of it; an alarm that fires goes on, none begins.

A rule that has too little to judge by finds nothing; one that judged says so, also where all is good.
"""


class Finding(NamedTuple):
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
