"""A value that lives elsewhere and is read when /metrics is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple


class Sample(NamedTuple):
    """One value of a counter or gauge."""

    name: str
    help: str
    kind: str
    labels: dict[str, str]
    value: float


Source = Callable[[], Iterable[Sample]]
