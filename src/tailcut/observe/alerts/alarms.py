"""The state machine of alarms: pending, firing, resolved.

    absent -> pending    a finding is bad
    pending -> firing    it was bad in ``PENDING`` evaluations in a row
    pending -> absent    it was not bad, or not judged
    firing -> resolved   it was good, or its model is gone, in ``QUIET`` evaluations that judged it, in a row
    firing -> resolved   it was not judged in ``UNJUDGED`` evaluations in a row: a page sooner than a ticket

Evaluations are counted, not seconds: a clock that is set, and a server that was down, end no alarm. A rule that has too
little to judge by, as after a restart, finds nothing: a pending alarm is over then, one that fires goes on for long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Literal

import msgspec

from tailcut.observe.alerts.rules import AlertFinding, Severity

PENDING = 2
QUIET = 10
UNJUDGED: dict[Severity, int] = {"page": 6 * 60, "ticket": 2 * 24 * 60}
"""A page ends after its longest window, 6 hours: a model without requests for so long wakes no one."""


class Alarm(msgspec.Struct, kw_only=True):
    """One condition that is or was bad.

    Attributes:
        id: the same over restarts.
        finding: the latest bad one.
        since_s: Unix seconds of its first bad evaluation.
        resolved_s: Unix seconds; 0 before it is resolved.
        bad, quiet: evaluations in a row, of those that judged it.
        unjudged: evaluations in a row that did not.
    """

    id: str
    finding: AlertFinding
    since_s: float
    state: Literal["pending", "firing", "resolved"] = "pending"
    resolved_s: float = 0.0
    bad: int = 0
    quiet: int = 0
    unjudged: int = 0


def _never(finding: AlertFinding) -> bool:
    return False


class Alarms:
    """The alarms of a server. For one thread.

    Args:
        server: identifies this server in alarm ids, so that two servers never share one.

    Attributes:
        alarms: those that are pending or fire, by the key of their finding.
    """

    def __init__(self, server: str = "") -> None:
        self._server = server
        self.alarms: dict[str, Alarm] = {}

    @property
    def active(self) -> list[Alarm]:
        """The alarms that fire, the oldest first, as copies."""
        firing = [msgspec.structs.replace(each) for each in self.alarms.values() if each.state == "firing"]
        return sorted(firing, key=lambda alarm: alarm.since_s)

    def update(
        self, findings: Iterable[AlertFinding], now_s: float, is_gone: Callable[[AlertFinding], bool] = _never
    ) -> list[Alarm]:
        """Take the findings of one evaluation; return the alarms that begin to fire or are resolved by it.

        Args:
            is_gone: whether what an alarm is about is no longer there to be judged.
        """
        found = {finding.key: finding for finding in findings}
        for key, finding in found.items():
            if finding.level == "bad" and key not in self.alarms:
                digest = sha256(f"{self._server}\0{key}".encode()).hexdigest()[:8]
                name = f"{finding.alert}-{int(now_s):x}-{digest}"
                self.alarms[key] = Alarm(id=name, finding=finding, since_s=now_s)
        changed = []
        for key, alarm in list(self.alarms.items()):
            before = alarm.state
            is_over = _step(alarm, found.get(key), key not in found and is_gone(alarm.finding))
            if is_over:
                del self.alarms[key]
            if is_over and before == "firing":
                alarm.state, alarm.resolved_s = "resolved", now_s
            if alarm.state != before:
                changed.append(alarm)
        return changed


def _step(alarm: Alarm, finding: AlertFinding | None, is_gone: bool) -> bool:
    """Count an evaluation; return whether the alarm is over."""
    if finding is not None and finding.level == "bad":
        alarm.finding = finding
        alarm.bad, alarm.quiet, alarm.unjudged = alarm.bad + 1, 0, 0
        if alarm.bad >= PENDING:
            alarm.state = "firing"
        return False
    alarm.bad = 0
    if finding is None and not is_gone:
        alarm.unjudged += 1
    else:
        is_quiet = finding is None or finding.level == "good"
        alarm.quiet, alarm.unjudged = alarm.quiet + 1 if is_quiet else 0, 0
    is_over = alarm.quiet >= QUIET or alarm.unjudged >= UNJUDGED[alarm.finding.severity]
    return is_over or alarm.state == "pending"
