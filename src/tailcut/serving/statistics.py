"""What has been answered since the start, per version that was served: from the recorder, at no cost to a request.

Source: Triton's statistics extension (https://github.com/triton-inference-server/server,
docs/protocol/extension_statistics.md).
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns, time_ns
from typing import Any

from tailcut.common.timings import Stage
from tailcut.observe.recorder import Recorder

_KEPT = 16
"""Versions that are no longer served of which the figures are kept."""

_Totals = dict[str, tuple[int, int]]
"""Count and nanoseconds by name."""


class Statistics:
    """Cumulative figures per version. Owned by the event loop.

    A version's figures are what was counted between its begin and its end; of requests that were on their way at a
    switch, those that end after it are the next version's.

    Args:
        name: of the model.
    """

    def __init__(
        self,
        name: str,
        recorder: Recorder,
        clock_ns: Callable[[], int] = perf_counter_ns,
        wall_ns: Callable[[], int] = time_ns,
    ) -> None:
        self._name = name
        self._recorder = recorder
        self._clock_ns = clock_ns
        self._wall_ns = wall_ns
        self._version = ""
        self._before: tuple[_Totals, dict[int, tuple[int, int]]] = ({}, {})
        self._ended: dict[str, dict[str, Any]] = {}

    def begin(self, version: str) -> None:
        """Count for another version from now on; what it counted earlier, before another came between, is dropped."""
        if version == self._version:
            return
        if self._version:
            self._ended[self._version] = self._current()
            while len(self._ended) > _KEPT:
                del self._ended[next(iter(self._ended))]
        self._ended.pop(version, None)
        self._version = version
        self._before = _totals(self._recorder), _batches(self._recorder)

    def describe(self, version: str = "") -> list[dict[str, Any]]:
        """Return the figures of a version, of the one that is served first and then of all where none is named."""
        found = [*([self._current()] if self._version else []), *reversed(self._ended.values())]
        return [each for each in found if not version or each["version"] == version]

    def _current(self) -> dict[str, Any]:
        totals_before, batches_before = self._before
        totals = {
            name: (count - totals_before.get(name, (0, 0))[0], ns - totals_before.get(name, (0, 0))[1])
            for name, (count, ns) in _totals(self._recorder).items()
        }
        batches = {
            rows: (count - batches_before.get(rows, (0, 0))[0], ns - batches_before.get(rows, (0, 0))[1])
            for rows, (count, ns) in _batches(self._recorder).items()
        }
        ran = {rows: found for rows, found in sorted(batches.items()) if found[0]}
        return {
            "name": self._name,
            "version": self._version,
            "last_inference": self._last_ms() if totals["success"][0] or totals["fail"][0] else 0,
            "inference_count": sum(rows * count for rows, (count, _) in ran.items()),
            "execution_count": sum(count for count, _ in ran.values()),
            "inference_stats": {name: {"count": count, "ns": ns} for name, (count, ns) in totals.items()},
            "batch_stats": [
                {
                    "batch_size": rows,
                    "compute_input": {"count": count, "ns": 0},
                    "compute_infer": {"count": count, "ns": ns},
                    "compute_output": {"count": count, "ns": 0},
                }
                for rows, (count, ns) in ran.items()
            ],
        }

    def _last_ms(self) -> int:
        return (self._wall_ns() - (self._clock_ns() - self._recorder.last_ns)) // 1_000_000


def _totals(recorder: Recorder) -> _Totals:
    """Triton's names for what the recorder counts: its input and output stages are preprocess and postprocess."""
    stages = recorder.stages

    def stage(*which: Stage) -> tuple[int, int]:
        return sum(stages[each].count for each in which), sum(stages[each].total for each in which)

    ended = recorder.totals
    failed = [total for outcome, total in ended.items() if outcome != "ok"]
    hits = sum(count for (*_, outcome, cache), count in recorder.requests.items() if (outcome, cache) == ("ok", "hit"))
    return {
        "success": ended["ok"],
        "fail": (sum(count for count, _ in failed), sum(ns for _, ns in failed)),
        "queue": stage(Stage.QUEUE),
        "compute_input": stage(Stage.PREPROCESS),
        "compute_infer": stage(Stage.INFER),
        "compute_output": stage(Stage.POSTPROCESS),
        "cache_hit": (hits, stage(Stage.ENTITY_CACHE, Stage.TENSOR_CACHE)[1]),
    }


def _batches(recorder: Recorder) -> dict[int, tuple[int, int]]:
    return {rows: (count, ns) for rows, (count, ns) in recorder.by_rows.items()}
