"""The wall clock, as text."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> str:
    """Return the time: UTC, ISO 8601, with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds")
