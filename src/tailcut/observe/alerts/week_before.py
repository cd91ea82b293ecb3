"""Latencies of the last hour and of the same hour a week ago, read from the history block by block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tailcut.observe.alerts.latency_growth import BLOCK_S, BLOCKS, WEEK_S, Growth, Period, compare
from tailcut.observe.alerts.series import FEATURE_SOURCE_SECONDS
from tailcut.observe.fine_histogram import Counts
from tailcut.observe.history import CountRow, History, LatencyRow
from tailcut.observe.latency_figures import REQUEST

_WRITTEN_S = 90
"""After the end of a minute, by when its rows are in the file."""


class _Block(NamedTuple):
    """By model: histograms by stage, and seconds in sources by feature group."""

    stages: dict[str, dict[str, Counts]]
    group_s: dict[str, dict[str, float]]


class WeekBefore:
    """Compares p95 week over week. For one thread, which waits for the disk.

    The rows of the history are of all servers that write it. Each block is read once.

    Args:
        history: None: nothing is compared.
    """

    def __init__(self, history: History | None) -> None:
        self._history = history
        self._blocks: dict[int, _Block] = {}

    def compare(self, now_s: float, least_requests: int) -> dict[str, Growth]:
        """Return the growth of each model that has requests enough in both hours.

        Raises:
            StoreError: the history cannot be read.
        """
        if self._history is None:
            return {}
        until = int((now_s - _WRITTEN_S) // BLOCK_S) * BLOCK_S
        now, then = (range(end - BLOCKS * BLOCK_S, end, BLOCK_S) for end in (until, until - WEEK_S))
        for starts in (now, then):
            self._read(self._history, [start for start in starts if start not in self._blocks])
        self._blocks = {start: self._blocks[start] for start in (*now, *then)}
        found = {}
        for model in {model for start in now for model in self._blocks[start].stages}:
            growth = compare(self._period(model, now), self._period(model, then), least_requests)
            if growth is not None:
                found[model] = growth
        return found

    def _read(self, history: History, starts: list[int]) -> None:
        """Read blocks; those that are missing follow one another."""
        if not starts:
            return
        span = starts[0], starts[-1] + BLOCK_S
        blocks = {start: _Block({}, {}) for start in range(*span, BLOCK_S)}
        for latency in history.latency(*span, bucket_s=BLOCK_S):
            _add_latency(blocks[latency.start_s].stages.setdefault(latency.model, {}), latency)
        for row in history.counts(*span, name=FEATURE_SOURCE_SECONDS, bucket_s=BLOCK_S):
            _add_group(blocks[row.start_s].group_s.setdefault(row.model, {}), row)
        self._blocks |= blocks  # only now: what could not be read is read again

    def _period(self, model: str, starts: Iterable[int]) -> Period:
        blocks = [self._blocks[start] for start in starts]
        stages = [block.stages[model] for block in blocks if REQUEST in block.stages.get(model, {})]
        requests = max(sum(int(each[REQUEST].sum()) for each in stages), 1)
        group_s: dict[str, float] = {}
        for name, seconds in _groups(blocks, model):
            group_s[name] = group_s.get(name, 0.0) + seconds / requests
        return Period.of(stages, group_s)


def _add_latency(stages: dict[str, Counts], row: LatencyRow) -> None:
    """Add up the variants of a block."""
    stages[row.stage] = stages[row.stage] + row.histogram if row.stage in stages else row.histogram


def _add_group(groups: dict[str, float], row: CountRow) -> None:
    name = row.labels.get("group", "")
    groups[name] = groups.get(name, 0.0) + row.value


def _groups(blocks: Iterable[_Block], model: str) -> Iterator[tuple[str, float]]:
    for block in blocks:
        yield from block.group_s.get(model, {}).items()
