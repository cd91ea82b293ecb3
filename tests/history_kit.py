"""What the tests of the history share: a recorder with clocks that stand still, and traffic with realistic noise."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tests.observe_kit import Ended

from tailcut.common.histogram import Histogram
from tailcut.common.timings import STAGE_NAMES, Timings
from tailcut.observe.exposition import Exposition, ModelSeries
from tailcut.observe.history import HistorySnapshot
from tailcut.observe.history_recorder import DROPPED, ROWS, HistoryRecorder
from tailcut.observe.recorder import Recorder
from tailcut.observe.sample import Metric, Sample

DAY_S = 86_400
START_S = 1_800_000_000 // DAY_S * DAY_S
STAGES_MS = {"receive": 0.1, "features": 4.0, "queue": 1.0, "infer": 6.0, "encode": 0.2}
_MOST_PENDING = 10_000
_PLACES = {name: STAGE_NAMES.index(name) for name in STAGES_MS}


class Run:
    """One run of a server: a recorder, its metrics and its history, with clocks that stand still."""

    def __init__(
        self,
        path: Path,
        at_s: float = START_S,
        *,
        keep_s: float = 35 * DAY_S,
        size_bytes: int = 1 << 28,
        process: bool = True,
    ):
        """Begin a run.

        Args:
            process: whether the figures of the process are kept, too; the kernel takes long to tell them.
        """
        self.wall_s = at_s
        self.monotonic_s = 1000.0
        self.recorder = Recorder()
        self.recorder.expect("infer")
        self.recorder.serve("onnx")
        self.samples: list[Sample] = []
        models = self.models = [ModelSeries("risk", self.recorder, lambda: self.samples)]
        self.exposition = Exposition(lambda: models, Histogram())
        self.writing = HistoryRecorder(
            path,
            lambda: models,
            lambda model: self.exposition.families(model) if model is not None or process else (),
            keep_s=keep_s,
            size_bytes=size_bytes,
            wall_s=lambda: self.wall_s,
            monotonic_s=lambda: self.monotonic_s,
        )
        self.history = self.writing.history
        self._rows = 0
        self.writing.listeners.append(self)

    def receive(self, snapshot: HistorySnapshot) -> None:
        """Count the rows that the writer is given."""
        self._rows += snapshot.rows

    def end_minute(self) -> None:
        """Nothing ends with a minute here."""

    def ask(self, *ms: float, code: str = "ok", variant: str = "onnx", route: str = "infer") -> None:
        """Answer requests that took so long, in the model only."""
        ended = []
        for each in ms:
            timings = Timings(0)
            timings.ns[_PLACES["infer"]] = round(each * 1e6)
            timings.last_ns = round(each * 1e6)
            ended.append(Ended(timings, route=route, variant=variant, code=code))
        self.recorder.on_requests("risk", ended)
        self.recorder.count_batch(len(ms), 1_000_000)

    def pass_s(self, seconds: float = 60.0) -> None:
        """Let time pass, and take a snapshot.

        Days pass faster here than a busy disk writes, and rows that wait are bounded: it waits for them.
        """
        self.wall_s += seconds
        self.monotonic_s += seconds
        self.writing.take()
        until_s = time.monotonic() + 30.0
        while self._rows - self._figure(ROWS) - self.dropped > _MOST_PENDING:
            assert time.monotonic() < until_s, "the disk is too slow for this test"
            time.sleep(0.01)

    @property
    def dropped(self) -> float:
        """Rows that are missing in the history."""
        return self._figure(DROPPED)

    def _figure(self, metric: Metric) -> float:
        return next(each.value for each in self.writing.samples() if each.name == metric.name)

    def end(self) -> None:
        """Write everything."""
        self.writing.close(30.0)


def drive(run: Run, minutes: int, rate: float, seed: int, slower: Mapping[str, float] | None = None) -> None:
    """Record minutes of traffic: times that vary from request to request, and slow spells of minutes.

    Args:
        rate: requests per minute.
        slower: factors of stages' times.
    """
    rng = np.random.default_rng(seed)
    spell = 0.0
    for _ in range(minutes):
        spell = 0.8 * spell + 0.6 * rng.normal(0, 0.04)
        count = int(rng.poisson(rate))
        ns = np.zeros((count, len(STAGE_NAMES)))
        for stage, ms in STAGES_MS.items():
            factor = (slower or {}).get(stage, 1.0)
            ns[:, _PLACES[stage]] = ms * 1e6 * factor * np.exp(spell + rng.normal(0, 0.3, count))
        ns[rng.random(count) < 0.5, _PLACES["features"]] = 0  # found in the cache
        ended = []
        for row in ns.astype(np.int64).tolist():
            timings = Timings(0)
            timings.ns, timings.last_ns = row, sum(row)
            ended.append(Ended(timings))
        if ended:
            run.recorder.on_requests("risk", ended)
        run.pass_s()
