"""What a pool sees of its work between two looks."""

from __future__ import annotations

from tailcut.common.histogram import quantile_of
from tailcut.models.dispatch.dispatcher import Dispatcher
from tailcut.observe.recorder import Recorder
from tailcut.scheduler.pool_scaling import Seen

_SHARE = 0.95


class PoolLoad:
    """Reads the queue and the recorder, and remembers what they said at the last look.

    Attributes:
        busy_ns: that executors have spent in batches that ended; the pool adds to it.
    """

    def __init__(self, dispatcher: Dispatcher, recorder: Recorder) -> None:
        self.busy_ns = 0
        self._dispatcher = dispatcher
        self._recorder = recorder
        self._counts: list[int] = []
        self._last_s = 0.0

    def seen(self, now_s: float, executors: int, opening: int, load_s: float) -> Seen:
        """Return what happened since the last look."""
        # A long batch is known of when it ends. All of it at once would look like more work than there are executors
        # to have done it; what is over is the next look's.
        most_ns = int(max(executors, 1) * max(now_s - self._last_s, 0.0) * 1e9)
        busy_ns = min(self.busy_ns, most_ns)
        self.busy_ns -= busy_ns
        self._last_s = now_s
        return Seen(
            now_s=now_s,
            executors=executors,
            opening=opening,
            busy_s=busy_ns / 1e9,
            queued_s=self._dispatcher.admission.queued_ns() / 1e9,
            p95_s=self._p95_s(),
            load_s=load_s,
        )

    def _p95_s(self) -> float:
        """Of the requests that were answered since the last look; 0 where there were none."""
        histograms = self._recorder.answered
        if not histograms:
            return 0.0
        counts = [sum(each) for each in zip(*(histogram.counts for histogram in histograms), strict=True)]
        before, self._counts = self._counts, counts
        if len(before) != len(counts) or any(old > new for old, new in zip(before, counts, strict=True)):
            before = [0] * len(counts)  # the first look, or an objective changed: histograms began again at 0
        fresh = [new - old for new, old in zip(counts, before, strict=True)]
        return quantile_of(fresh, histograms[0].bounds, _SHARE) / 1e9
