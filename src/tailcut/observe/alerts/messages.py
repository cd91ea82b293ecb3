"""Alarms as log lines and as the JSON of webhooks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from tailcut.observe.alerts.alarms import Alarm, Event
from tailcut.observe.alerts.findings import Finding
from tailcut.observe.alerts.webhook import Message


def log_line(event: Event) -> str:
    """Return one line with the cause, the likely place, what else fires, the slowest requests and the way out."""
    alarm = event.alarm
    if event.kind == "resolved":
        minutes = (alarm.resolved_s - alarm.since_s) / 60
        return f"alarm {alarm.id} is resolved after {minutes:.0f} min: {alarm.headline.alert}"
    parts = [f"alarm {alarm.id} ({alarm.severity}): {alarm.headline.alert}: {alarm.headline.text}"]
    parts += [f"likely stage: {alarm.place}"] if alarm.place else []
    parts += [f"also {', '.join(dict.fromkeys(each.alert for each in alarm.conditions))}"] if alarm.conditions else []
    if alarm.slowest:
        parts.append("slowest requests: " + ", ".join(f"{trace} ({ms:.3g} ms)" for trace, ms in alarm.slowest))
    return f"{'; '.join(parts)}; hint: {alarm.headline.hint}"


def message_of(event: Event, labels: Mapping[str, str]) -> Message:
    """Return the message of a webhook; docs/how-to/alerts.md describes it.

    Args:
        labels: say which server it is of.
    """
    body = {"type": f"alarm.{event.kind}", "timestamp": _time(event.at_s), "data": described(event.alarm) | {**labels}}
    return Message(event.id, msgspec.json.encode(body))


def described(alarm: Alarm) -> dict[str, Any]:
    """Return an alarm as JSON has it."""
    return {
        "id": alarm.id,
        "model": alarm.model,
        "severity": alarm.severity,
        "since": _time(alarm.since_s),
        "resolved": _time(alarm.resolved_s) if alarm.resolved_s else None,
        "likely_stage": alarm.place,
        "conditions": [_condition(each) for each in alarm.findings],
        "slowest_requests": [{"trace_id": trace, "milliseconds": ms} for trace, ms in alarm.slowest],
    }


def _condition(finding: Finding) -> dict[str, Any]:
    return {
        "alert": finding.alert,
        "model": finding.model,
        "subject": finding.subject,
        "severity": finding.severity,
        "value": finding.value,
        "limit": finding.limit,
        "unit": finding.unit,
        "text": finding.text,
        "hint": finding.hint,
    }


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
