"""A row per minute of what was served, kept over restarts: last week can be compared without Prometheus."""

from tailcut.observe.history.history import History
from tailcut.observe.history.rows import CountRow, LatencyRow

__all__ = ["CountRow", "History", "LatencyRow"]
