"""Figures of one load on a served deployment: what its requests take of each resource, from samples and counters."""

from __future__ import annotations

import re

import msgspec
import numpy as np
import numpy.typing as npt

from tailcut.common.timings import STAGE_NAMES, Stage
from tailcut.load import Samples
from tailcut.profiler.deployments.server_counters import Counted, Spent
from tailcut.scheduler.simulation.request_steps import Overheads, Steps, fetches, measured_steps
from tailcut.scheduler.simulation.simulator import HOOK_THREADS

_FULL = 0.95
_GROUP = re.compile(r'tailcut_feature_cache_lookups_total\{.*group="([^"]*)"')
_KIND = re.compile(r'kind="([^"]*)"')
_HOOKS = (Stage.PREPROCESS, Stage.POSTPROCESS)
_MAY_WAIT = (Stage.FEATURES, Stage.QUEUE, Stage.INFER)
_STALL_TIMES, _STALL_MS = 10.0, 5.0


class GroupCosts(msgspec.Struct, frozen=True, kw_only=True):
    """A feature group under the higher load.

    Attributes:
        hits: share of its look-ups that the cache answered; None where there were none.
        call_ms: of a call of its source, a mean; None where there was none.
    """

    name: str
    hits: float | None
    call_ms: float | None


class RequestCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured at one rate; milliseconds are means per request, of hooks and fetches per call.

    Attributes:
        loop_ms: processor time of the event loop's thread, without batches that it runs itself.
        outside_ms: network and client, the median.
        cached: share of requests that were answered without the model.
        fetched: share of requests that waited for a source of features.
        fetch_ms: what these waited.
        preprocess_ms, postprocess_ms: 0 where there is none.
        preprocess_threads, postprocess_threads: share of the calls that ran in threads.
        handover_ms: between the queue and the executor and back, the median of requests that reach the model.
        batch_ms: rows -> milliseconds of a batch, with how many of each were seen in ``batches``.
        groups: of features.
    """

    rate: float
    loop_ms: float
    outside_ms: float
    cached: float
    fetched: float
    fetch_ms: float
    preprocess_ms: float
    preprocess_threads: float
    postprocess_ms: float
    postprocess_threads: float
    handover_ms: float
    batch_ms: dict[int, float]
    batches: dict[int, int]
    groups: tuple[GroupCosts, ...]


class LoadFigures:
    """One load and what the server counted during it, its warm-up included.

    Args:
        counted: during it.
        took_s: seconds that it took.
        cores: that the server has.
    """

    def __init__(self, rate: float, samples: Samples, counted: Counted, took_s: float, cores: float) -> None:
        self.rate = rate
        self.cores = cores
        self._counted = counted
        self._took_s = took_s
        answered = (samples.status >= 200) & (samples.status < 300)
        seen = (samples.intended_ns >= samples.measured_from_ns) & answered & ~stalled(samples)
        self._replies = max(int((samples.status > 0).sum()), 1)
        self._answers = int(answered.sum())
        self._stages: dict[Stage, npt.NDArray[np.float64]] = {
            stage: np.nan_to_num(samples.stages_ms[name][seen].astype(np.float64)) * 1e6
            for stage, name in zip(Stage, STAGE_NAMES, strict=True)
            if name in samples.stages_ms
        }
        total_ns = np.nan_to_num(samples.stages_ms["total"][seen].astype(np.float64)) * 1e6
        self._outside_ns = np.maximum((samples.done_ns - samples.intended_ns)[seen] - total_ns, 0.0)
        metrics = counted.after.metrics
        kinds = [name for name, value in metrics.items() if name.startswith("tailcut_executors{") and value]
        kind = _KIND.search(kinds[0]) if kinds else None
        self.executor = kind[1] if kind is not None else "thread"
        self.executors = int(metrics[kinds[0]]) if kinds else 1
        self._loop, self._beside, self._apart = counted.spent()
        self._undisturbed()

    def _undisturbed(self) -> None:
        """Take out of batches and hooks what they waited for a core: the simulation lets them wait for their own."""
        batches = self._counted.batches()
        infer_ns = sum(ns for _, ns in batches.values())
        hooks_ns = self._in_threads_ns()
        sources_ns = self._counted.metric("tailcut_feature_source_seconds_total") * 1e9
        beside_ns = hooks_ns + sources_ns + (infer_ns if self.executor == "thread" else 0.0)
        hooking = running = _running(self._beside, beside_ns)
        if self.executor == "inline":
            running = self._loop.running
        elif self.executor == "process":
            running = _running(self._apart, infer_ns)
        self.batches = {rows: (count, ns * running) for rows, (count, ns) in batches.items()}
        self.infer_ns = infer_ns * running
        for stage in _HOOKS:
            if self._threaded(stage) >= 0.5:
                self._stages[stage] = self._stages[stage] * hooking
        self._hooks_ns = hooks_ns * hooking
        self.loop_ns = max(self._loop.ran_ns - (self.infer_ns if self.executor == "inline" else 0.0), 0.0)

    def _threaded(self, stage: Stage) -> float:
        """Share of a hook's calls that ran in threads."""
        called = int((self._stage(stage) > 0).sum())
        name = f'tailcut_hook_thread_calls_total{{hook="{stage.name.lower()}"}}'
        counted = self._counted.metric(name)
        in_window = counted * len(self._outside_ns) / self._replies
        return min(in_window / called, 1.0) if called else 0.0

    def _stage(self, stage: Stage) -> npt.NDArray[np.float64]:
        return self._stages.get(stage, np.zeros(len(self._outside_ns)))

    def _in_threads_ns(self) -> float:
        """Time of the hooks' calls in threads, of all requests."""
        each = sum(float(self._stage(stage).mean()) for stage in _HOOKS if self._threaded(stage) >= 0.5)
        return each * self._replies

    @property
    def hook_wait(self) -> float:
        """Share of the hooks' time in threads in which they do not compute."""
        own_ns = self._beside.ran_ns - (self.infer_ns if self.executor == "thread" else 0.0)
        return 1.0 - min(max(own_ns, 0.0) / self._hooks_ns, 1.0) if self._hooks_ns else 0.0

    @property
    def handover_ns(self) -> float:
        """What a request that reaches the model spends between queue and executor; at a low load it does not queue."""
        inferred = self._stage(Stage.INFER) > 0
        return float(np.median(self._stage(Stage.QUEUE)[inferred])) if inferred.any() else 0.0

    @property
    def borne(self) -> float:
        """Answers a second."""
        return self._answers / self._took_s

    def capacity(self) -> float:
        """Return the requests per second that the busiest resource bears."""
        apart_ns = 0.0 if self.executor == "inline" else self.infer_ns
        shared_ns = self._loop.ran_ns + self._beside.ran_ns + self._apart.ran_ns
        computed_ns = self._hooks_ns * (1.0 - self.hook_wait)
        busy = max(
            shared_ns / self.cores,
            self.loop_ns + computed_ns + self.infer_ns - apart_ns,
            apart_ns / max(self.executors, 1),
            self._hooks_ns / HOOK_THREADS,
        ) / (self._took_s * 1e9)
        return self.borne / max(busy, 1e-6) if busy < _FULL else self.borne

    def steps(self, handover_ns: float, low: LoadFigures | None = None) -> list[Steps]:
        """Return the steps of each request.

        Args:
            low: the low load, where this is not it. Under more load latencies hold longer waits before the server
                reads a request: network and client are drawn from the low one, unless this one's median is lower.
        """
        outside_ns = self._unqueued_ns()
        if low is not None:
            rested_ns = low._unqueued_ns()
            less = min(float(np.median(outside_ns)) / max(float(np.median(rested_ns)), 1.0), 1.0)
            outside_ns = np.random.default_rng(0).choice(rested_ns, len(outside_ns)) * less
        return measured_steps(self._stages, outside_ns, self._overheads(handover_ns))

    def _unqueued_ns(self) -> npt.NDArray[np.float64]:
        """Return what network and client add without the wait for the event loop, which the simulation adds by itself.

        That wait is taken for the mean one of a queue with Poisson arrivals and equal service times (M/D/1, by
        Pollaczek and Khinchine).
        """
        busy = min(self._loop.ran_ns / (self._took_s * 1e9), _FULL)
        wait_ns = busy / (2.0 * (1.0 - busy)) * self._loop.ran_ns / self._replies
        return self._outside_ns * max(1.0 - wait_ns / max(float(np.median(self._outside_ns)), 1.0), 0.0)

    def _overheads(self, handover_ns: float) -> Overheads:
        counted = sum(count for count, _ in self.batches.values())
        beside_ns = self._beside.ran_ns + self._apart.ran_ns
        beside_ns -= 0.0 if self.executor == "inline" else self.infer_ns
        beside_ns -= self._hooks_ns * (1.0 - self.hook_wait)
        return Overheads(
            loop_ns=self.loop_ns / self._replies,
            # Without a core of its own the loop shares it with them.
            beside_ns=max(beside_ns, 0.0) / self._replies if self.cores == 1.0 else 0.0,
            preprocess_threads=self._threaded(Stage.PREPROCESS),
            postprocess_threads=self._threaded(Stage.POSTPROCESS),
            rows={rows: count / counted for rows, (count, _) in self.batches.items()},
            handover_ns=handover_ns,
        )

    def spread(self) -> float | None:
        """Standard deviation of the logarithm of a batch's time, where nearly all batches have one size."""
        counts = [count for count, _ in self.batches.values()]
        took = self._stage(Stage.INFER)
        took = took[took > 0]
        if not counts or max(counts) < 0.9 * sum(counts) or len(took) < 20:
            return None
        p50, p95 = np.quantile(took, (0.5, 0.95))
        return float(min(np.log(p95 / p50) / 1.645, 1.0))

    def costs(self) -> RequestCosts:
        """Return the figures for people and files."""
        fetched = fetches(self._stage(Stage.FEATURES))
        waits = self._stage(Stage.FEATURES)[fetched]
        hooks = {}
        for stage in _HOOKS:
            took = self._stage(stage)
            hooks[stage] = float(took[took > 0].mean() / 1e6) if (took > 0).any() else 0.0
        return RequestCosts(
            rate=self.rate,
            loop_ms=self.loop_ns / self._replies / 1e6,
            outside_ms=float(np.median(self._outside_ns)) / 1e6,
            cached=float((self._stage(Stage.INFER) == 0).mean()),
            fetched=float(fetched.mean()),
            fetch_ms=float(waits.mean()) / 1e6 if waits.size else 0.0,
            preprocess_ms=hooks[Stage.PREPROCESS],
            preprocess_threads=self._threaded(Stage.PREPROCESS),
            postprocess_ms=hooks[Stage.POSTPROCESS],
            postprocess_threads=self._threaded(Stage.POSTPROCESS),
            handover_ms=self.handover_ns / 1e6,
            batch_ms={rows: ns / count / 1e6 for rows, (count, ns) in sorted(self.batches.items())},
            batches={rows: int(count) for rows, (count, _) in sorted(self.batches.items())},
            groups=tuple(self._group(name) for name in self._groups()),
        )

    def _groups(self) -> list[str]:
        return list(dict.fromkeys(match[1] for name in self._counted.after.metrics if (match := _GROUP.match(name))))

    def _group(self, name: str) -> GroupCosts:
        label = f'group="{name}"'
        hits = self._counted.metric(f'tailcut_feature_cache_lookups_total{{{label},result="hit"}}')
        misses = self._counted.metric(f'tailcut_feature_cache_lookups_total{{{label},result="miss"}}')
        calls = self._counted.metric(f"tailcut_feature_source_calls_total{{{label}}}")
        seconds = self._counted.metric(f"tailcut_feature_source_seconds_total{{{label}}}")
        return GroupCosts(
            name=name,
            hits=hits / (hits + misses) if hits + misses else None,
            call_ms=seconds / calls * 1e3 if calls else None,
        )


def stalled(samples: Samples) -> npt.NDArray[np.bool_]:
    """Tell which requests met a stall of the machine, or waited behind one, shape [n].

    A stall is a stage that only computes and took many times what the third longest took: one or two requests of a
    load tell nothing about how often it happens, and drawn again and again it would be all that the simulation shows.
    """
    done = samples.done_ns >= 0
    found = np.zeros(len(done), np.bool_)
    for stage, name in zip(Stage, STAGE_NAMES, strict=True):
        if stage in _MAY_WAIT or name not in samples.stages_ms:
            continue
        took_ms = np.nan_to_num(samples.stages_ms[name])
        longest = np.sort(took_ms[took_ms > 0])[::-1]
        if longest.size:
            # Of few the median.
            usual = float(longest[min(2, longest.size // 2)])
            found |= took_ms > max(_STALL_TIMES * usual, _STALL_MS)
    for place in np.flatnonzero(found & done):
        found |= (samples.intended_ns <= samples.done_ns[place]) & (samples.done_ns >= samples.intended_ns[place])
    return found


def _running(spent: Spent, wall_ns: float) -> float:
    """Share of some wall time that is left without what its threads waited for a core."""
    return max(1.0 - spent.waited_ns / wall_ns, spent.running) if wall_ns else 1.0
