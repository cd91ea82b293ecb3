"""The state machine of alarms: conditions that are pending, firing and resolved; one alarm per cause.

    absent -> pending   a finding is bad
    pending -> firing   it was bad in ``PENDING`` evaluations in a row
    pending -> absent   it was not bad
    firing -> absent    it was good, or what it is about is gone, in ``QUIET`` evaluations that judged it, in a row
    firing -> absent    it was not judged in ``UNJUDGED`` evaluations in a row: a page sooner than a ticket

A condition joins the alarm of its cause when it begins to fire, and keeps that cause until it ends. An alarm is sent
when its first condition fires, again when a more severe one joins, and when its last one has ended. Evaluations are
counted, not seconds: a clock that is set, and a server that was down, end no alarm. Nor does a rule that finds nothing
because it has too little to judge by, as after a restart: that changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Literal

import msgspec

from tailcut.manifest.schema.observe import AlertName
from tailcut.observe.alerts.findings import CAUSES, Finding, Severity

PENDING = 2
QUIET = 10
UNJUDGED: dict[Severity, int] = {"page": 6 * 60, "ticket": 2 * 24 * 60}
"""A page ends after its longest window, 6 hours: a model without requests for so long wakes no one."""

MOST_ALARMS = 100
"""Alarms that may be active at once; conditions of further causes stay pending."""

_KEPT_RESOLVED = 50
_ALONE: frozenset[AlertName] = frozenset(("drift", "memory_leak", "descriptor_leak", "thread_leak", "gpu_memory_leak"))
"""Alerts that neither slow nor fail requests, and so share no cause with others."""
_CPU_PLACES = {"cpu", "gpu", "queue", "infer", "preprocess", "postprocess", "receive", "validate", "encode"}


class Condition(msgspec.Struct, kw_only=True):
    """One condition of an alarm, or one that is pending.

    Attributes:
        finding: the latest bad one.
        since_s: Unix seconds of the first bad evaluation in a row.
        bad, quiet: evaluations in a row, of those that judged it.
        unjudged: evaluations in a row that did not.
        alarm: id of its alarm; empty while it is pending.
    """

    finding: Finding
    since_s: float
    bad: int = 0
    quiet: int = 0
    unjudged: int = 0
    alarm: str = ""


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """One cause, with everything that fires because of it.

    Attributes:
        id: the same over restarts.
        since_s: Unix seconds of its first bad evaluation.
        resolved_s: 0 while it is active.
        severity: of the most severe condition so far.
        headline: the condition that says most of the cause.
        conditions: the others.
        place: likely place: see ``Finding.place``.
        slowest: trace ids and milliseconds of the slowest kept requests.
        sent: how often it has been sent.
    """

    id: str
    model: str
    place: str
    since_s: float
    severity: Severity
    headline: Finding
    conditions: tuple[Finding, ...] = ()
    slowest: tuple[tuple[str, float], ...] = ()
    resolved_s: float = 0.0
    sent: int = 0

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The headline and the others."""
        return (self.headline, *self.conditions)


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something to be told.

    Attributes:
        id: of the message; the same whenever it is sent again.
        kind: "raised": a more severe condition joined an alarm that had been sent.
        at_s: Unix seconds.
    """

    id: str
    kind: Literal["firing", "raised", "resolved"]
    at_s: float
    alarm: Alarm


class Memory(msgspec.Struct, kw_only=True):
    """What is kept over restarts."""

    version: int = 1
    conditions: dict[str, Condition] = {}
    alarms: dict[str, Alarm] = {}
    resolved: list[Alarm] = []


Slowest = Callable[[Alarm], Sequence[tuple[str, float]]]
Gone = Callable[[Finding], bool]


def _none(alarm: Alarm) -> Sequence[tuple[str, float]]:
    return ()


def _never(finding: Finding) -> bool:
    return False


class Alarms:
    """The alarms of a server. For one thread.

    Args:
        slowest: returns an alarm's slowest kept requests; called when the alarm is sent.
        server: identifies this server in alarm ids, so that two servers never share one.
    """

    def __init__(self, slowest: Slowest = _none, server: str = "") -> None:
        self._server = server
        self.memory = Memory()
        self._slowest = slowest

    def adopt(self, memory: Memory) -> None:
        """Go on with the alarms of an earlier run; what this one has judged itself stays.

        An alarm of which every condition has begun anew here is resolved with the next evaluation.
        """
        own = self.memory
        own.conditions = memory.conditions | own.conditions
        own.alarms = memory.alarms | own.alarms
        own.resolved = [*memory.resolved, *own.resolved][-_KEPT_RESOLVED:]

    def update(self, findings: Iterable[Finding], now_s: float, gone: Gone = _never) -> list[Event]:
        """Take the findings of one evaluation; return what is to be told.

        Args:
            gone: whether what a condition is about is no longer there to be judged.
        """
        found = {finding.key: finding for finding in findings}
        conditions = self.memory.conditions
        for key, finding in found.items():
            if finding.level == "bad" and key not in conditions:
                conditions[key] = Condition(finding=finding, since_s=now_s)
        for key, condition in list(conditions.items()):
            self._step(key, condition, found.get(key), key not in found and gone(condition.finding))
        events = self._fire(now_s)
        return events + self._resolve(now_s)

    @property
    def active(self) -> list[Alarm]:
        """The alarms that fire, the oldest first."""
        return sorted(self.memory.alarms.values(), key=lambda alarm: alarm.since_s)

    @property
    def pending(self) -> list[Condition]:
        """Conditions that were bad once."""
        return [condition for condition in self.memory.conditions.values() if not condition.alarm]

    @property
    def firing(self) -> set[tuple[str, str, Severity]]:
        """Alert, model and severity of the conditions that fire."""
        return {
            (each.finding.alert, each.finding.model, each.finding.severity)
            for each in self.memory.conditions.values()
            if each.alarm
        }

    # -- Inside ------------------------------------------------------------------------------------------------------

    def _step(self, key: str, condition: Condition, finding: Finding | None, is_gone: bool) -> None:
        """Move one condition on; one that is over is removed."""
        if finding is not None and finding.level == "bad":
            place = condition.finding.place if condition.alarm else finding.place
            condition.finding = finding._replace(place=place)
            condition.bad, condition.quiet, condition.unjudged = condition.bad + 1, 0, 0
            return
        condition.bad = 0
        if finding is None and not is_gone:
            condition.unjudged += 1
        else:
            is_quiet = is_gone or (finding is not None and finding.level == "good")
            condition.quiet, condition.unjudged = condition.quiet + 1 if is_quiet else 0, 0
        is_over = condition.quiet >= QUIET or condition.unjudged >= UNJUDGED[condition.finding.severity]
        if is_over or not condition.alarm:
            del self.memory.conditions[key]

    def _fire(self, now_s: float) -> list[Event]:
        """Have conditions that were bad for long enough fire, causes before what they lead to."""
        due = [each for each in self.memory.conditions.values() if not each.alarm and each.bad >= PENDING]
        changed: dict[str, Severity | None] = {}
        for condition in sorted(due, key=lambda each: (each.finding.alert not in CAUSES, each.finding.key)):
            alarm = self._alarm_of(condition.finding)
            if alarm is None:
                if len(self.memory.alarms) >= MOST_ALARMS:
                    continue
                alarm = self._begin(condition)
                changed[alarm.id] = None
            condition.alarm = alarm.id
            changed.setdefault(alarm.id, alarm.severity)
        for alarm in list(self.memory.alarms.values()):
            self._refresh(alarm)
        events = []
        for name, before in changed.items():
            after = self.memory.alarms[name].severity
            if before is None or (before, after) == ("ticket", "page"):
                events.append(self._event(name, "firing" if before is None else "raised", now_s))
        return events

    def _resolve(self, now_s: float) -> list[Event]:
        """End alarms of which no condition is left."""
        used = {condition.alarm for condition in self.memory.conditions.values()}
        events = []
        for name in [name for name in self.memory.alarms if name not in used]:
            self.memory.alarms[name] = msgspec.structs.replace(self.memory.alarms[name], resolved_s=now_s)
            events.append(self._event(name, "resolved", now_s))
            self.memory.resolved = [*self.memory.resolved, self.memory.alarms.pop(name)][-_KEPT_RESOLVED:]
        return events

    def _alarm_of(self, finding: Finding) -> Alarm | None:
        """Return the active alarm whose cause a condition shares."""
        return next((alarm for alarm in self.active if _is_same_cause(alarm, finding)), None)

    def _begin(self, condition: Condition) -> Alarm:
        finding = condition.finding
        digest = sha256(f"{self._server}\0{finding.key}".encode()).hexdigest()[:8]
        name = f"{finding.alert}-{int(condition.since_s):x}-{digest}"
        alarm = Alarm(
            id=name,
            model=finding.model,
            place=finding.place,
            since_s=condition.since_s,
            severity=finding.severity,
            headline=finding,
        )
        self.memory.alarms[name] = alarm
        return alarm

    def _refresh(self, alarm: Alarm) -> None:
        """Take over what its conditions say by now; with none left it stays as it was."""
        found = [each.finding for each in self.memory.conditions.values() if each.alarm == alarm.id]
        if not found:
            return
        found.sort(key=lambda each: (each.alert not in CAUSES, each.severity != "page", each.key))
        severity: Severity = "page" if "page" in {alarm.severity, *(each.severity for each in found)} else "ticket"
        place = found[0].place or alarm.place
        place = alarm.place if alarm.place.startswith(place) else place  # the group says more than "features"
        self.memory.alarms[alarm.id] = msgspec.structs.replace(
            alarm, severity=severity, headline=found[0], conditions=tuple(found[1:]), place=place
        )

    def _event(self, name: str, kind: Literal["firing", "raised", "resolved"], now_s: float) -> Event:
        alarm = self.memory.alarms[name]
        slowest = alarm.slowest if kind == "resolved" else tuple(self._slowest(alarm))
        alarm = self.memory.alarms[name] = msgspec.structs.replace(alarm, sent=alarm.sent + 1, slowest=slowest)
        return Event(id=f"msg_{alarm.id}_{alarm.sent}", kind=kind, at_s=now_s, alarm=alarm)


def _is_same_cause(alarm: Alarm, finding: Finding) -> bool:
    """Whether a condition comes from what an alarm is about.

    Same model and likely place; "features" is any of its groups; a machine that is too slow slows every model's
    computing; burn rates, errors and growth of one model whose place is not known go to what fires for it already.
    """
    one, other = alarm.place, finding.place
    if _ALONE & {alarm.headline.alert, finding.alert}:
        return False
    if alarm.model == finding.model:
        if not one or not other:
            # An unknown place says nothing against it; but two causes are two.
            return not (finding.alert in CAUSES and alarm.headline.alert in CAUSES)
        nested = one.split("/")[0] == other.split("/")[0] and ("/" not in one or "/" not in other)
        return one == other or nested
    is_of_machine = not alarm.model or not finding.model
    return is_of_machine and {"cpu", "gpu"} & {one, other} != set() and {one, other} <= _CPU_PLACES
