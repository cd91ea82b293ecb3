"""Opens the executors' runtimes of a variant and runs every batch size on each, before anything is served."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from time import perf_counter, perf_counter_ns, thread_time_ns
from typing import NamedTuple

from tailcut.code.digest import few
from tailcut.code.files import changed_data
from tailcut.code.loaded import CodeSnapshot
from tailcut.common.fingerprint import Machine, uses_gpu
from tailcut.common.runtime_spec import spec_of
from tailcut.errors import ArtifactError, StartError, TailcutError
from tailcut.manifest import Manifest
from tailcut.models.batch_item import length_class
from tailcut.models.deployment_version import opens_with_code
from tailcut.models.dispatch import scheduler_factory
from tailcut.models.example_rows import Examples, examples_of
from tailcut.models.runtimes import open_runtime
from tailcut.models.runtimes.base import Runtime
from tailcut.models.runtimes.live import source_of
from tailcut.models.runtimes.remote import RemoteRuntime
from tailcut.models.runtimes.sliced import whole
from tailcut.models.shared_runtime import lendable
from tailcut.models.warm_up import (
    BRIEF,
    THOROUGH,
    ExecutorChoice,
    Unanswered,
    Warmth,
    choose_executor,
    timed_again,
    undisturbed_ns,
    warm_up,
)
from tailcut.observe.drift.detector import DriftSettings
from tailcut.observe.drift.sketch import NAME as SKETCHES
from tailcut.observe.drift.sketch import decode
from tailcut.observe.drift_sink import Watch
from tailcut.registry import Registry, Variant
from tailcut.scheduler.executor_placement import BatchTime
from tailcut.system.machine import read_machine

log = logging.getLogger("tailcut.server")
_drift_log = logging.getLogger("tailcut.drift")

_UNKNOWN = CodeSnapshot()

_SPARE = 2
"""Executors that are kept warm where nothing else is said: one that dies leaves one that answers meanwhile."""

_MEMORY_SHARE = 0.25
_OVER_ARTIFACT = 3
"""An opened model holds up to this many times its artifact: weights, their packed copies, and activations."""


class Warm(NamedTuple):
    """A variant that is open and warm.

    Attributes:
        runtimes: one per executor.
        warm_up_ns: nanoseconds per batch size; empty where it refuses the row that was invented for it.
        examples: inputs that it was warmed up with.
        choice: kind of executor, and the reason for it.
        most: executors that its pool may grow to.
        load_s: how long opening and warming up one of them took.
        size_bytes: what an opened one is taken to hold in memory.
        open_one: opens and warms up one more; blocks.
        code: what it runs of the user's code.
        drift: what its drift is judged by; None where it is not watched.
    """

    variant: Variant
    runtimes: list[Runtime]
    warm_up_ns: dict[int, int]
    examples: Examples
    choice: ExecutorChoice
    most: int
    load_s: float
    size_bytes: int
    open_one: Callable[[], Runtime]
    code: CodeSnapshot
    drift: Watch | None = None

    @property
    def length_class(self) -> int:
        """Of the rows of ``warm_up_ns``: see ``batch_item.length_class``."""
        return length_class(self.examples.batch(1), 1)

    def close(self) -> None:
        """Close the runtimes."""
        for runtime in self.runtimes:
            runtime.close()


def close_warm(warm: Warm | None) -> None:
    """Close what was opened, where anything was."""
    if warm is not None:
        warm.close()


class _Opener:
    """Opens and warms up executors of a variant, one after the other; blocks.

    Attributes:
        took_ns: nanoseconds per batch size, of the executor that was opened last.
        examples: inputs that they are warmed up with.
    """

    def __init__(self, manifest: Manifest, variant: Variant, code: CodeSnapshot, *, must_answer: bool) -> None:
        self.examples = examples_of(manifest, variant)
        self.took_ns: dict[int, int] = {}
        self._manifest = manifest
        self._variant = variant
        self._outputs = tuple(tensor.name for tensor in manifest.deployment.model.outputs)
        self._max_rows = scheduler_factory.most_rows(manifest.deployment.batching, variant)
        self._imports = opens_with_code(manifest, variant)
        self._code = code
        self._in_one_thread = _runs_in_one_thread(manifest, variant)
        self._must_answer = must_answer
        self._unanswered = False

    def open(self, warmth: Warmth) -> Runtime:
        """Open one and run every batch size on it, but where the variant has refused an invented row before.

        Raises:
            TailcutError: it cannot be opened, or fails on a batch size.
        """
        runtime = self._open()
        if self._unanswered:
            return runtime
        try:
            self.took_ns = warm_up(
                runtime, self.examples, self._outputs, self._max_rows, warmth, self._clock_ns(warmth, perf_counter_ns)
            )
        except Unanswered as refused:
            if self._must_answer or self.took_ns:
                runtime.close()
                hint = _FIRST if self._must_answer else _LATER
                raise StartError(f"warm-up failed at 1 rows: {refused.error.explained}", hint=hint) from refused.error
            self._unanswered = True
            self._warn(refused.error)
            if isinstance(runtime, RemoteRuntime) and runtime.has_ended:
                runtime.close()
                return self._open()
        except BaseException:
            runtime.close()
            raise
        return runtime

    def largest(self, runtime: Runtime, warmth: Warmth) -> BatchTime | None:
        """Time the largest batch, beside what the build saw of it; None where no batch was answered.

        Raises:
            TailcutError: the variant fails on it.
        """
        if not self.took_ns:
            return None
        rows = max(self.took_ns)
        built_ns = scheduler_factory.built_ns(self._manifest.deployment, self._variant, rows)
        found = BatchTime(rows, self.took_ns[rows], built_ns)
        if found.is_long:
            return found
        return timed_again(found, runtime, self.examples, self._outputs, self._clock_ns(warmth, undisturbed_ns))

    def _clock_ns(self, warmth: Warmth, usual: Callable[[], int]) -> Callable[[], int]:
        return thread_time_ns if warmth is BRIEF and self._in_one_thread else usual

    def open_later(self) -> Runtime:
        """Open one more while others serve.

        Raises:
            TailcutError: as ``open``; or a data file is not what it was at the start, and the user's code may read it.
        """
        runtime = self.open(BRIEF)
        if self._imports and self._code.digest and (changed := changed_data(self._manifest, self._code.data)):
            runtime.close()
            raise ArtifactError(
                f"{few(changed)} changed since this server started; a new executor would read the changed data",
                hint="restart to serve the new data, or restore the old",
            )
        return runtime

    def _open(self) -> Runtime:
        return lendable(_open(self._manifest, self._variant, self._code.imports if self._imports else {}))

    def _warn(self, error: TailcutError) -> None:
        log.warning(
            "variant %s of version %s is not warm: it refuses an invented row: %s. The first request warms it up; "
            "larger batches are not tested. Build with holdout.keep above 0 to warm up with holdout rows, or give the "
            "inputs "
            "min and max, or values",
            self._variant.name,
            self._variant.version,
            error.explained,
        )


_FIRST = (
    "the served variant answers this invented row. Build with holdout.keep above 0 to warm up with holdout rows; or "
    "restart the server, which then serves this variant although it refuses such a row"
)
_LATER = "another executor of this variant answered the same row: check shared resources, such as memory"


def open_variant(
    manifest: Manifest,
    variant: Variant,
    warmth: Warmth = THOROUGH,
    *,
    code: CodeSnapshot = _UNKNOWN,
    must_answer: bool = False,
) -> Warm:
    """Open one runtime per executor and run every batch size on each; blocks. Nothing stays open where one fails.

    Args:
        warmth: of these; executors that are opened later, while these serve, are warmed up briefly.
        code: what the variant runs of the user's code: processes of executors run nothing else, nor do executors that
            are opened later. By default it is not compared.
        must_answer: whether it has to answer an invented row, too: it is to take the place of a variant that does, and
            a broken one must not.

    Raises:
        TailcutError: it cannot be opened, or fails on a batch size.
    """
    deployment = manifest.deployment
    if deployment.batching.mode != "auto":  # the sizes of batches are the manifest's
        variant = replace(variant, settings=whole(variant.settings))
    pool = deployment.pool
    asked, drift = pool.executors_of(variant.settings), watch_of(manifest, variant)
    opener = _Opener(manifest, variant, code, must_answer=must_answer)
    runtimes: list[Runtime] = []
    try:
        began_s = perf_counter()
        runtimes.append(opener.open(warmth))
        load_s = perf_counter() - began_s
        choice = choose_executor(deployment, asked or 1, partial(opener.largest, runtimes[0], warmth))
        inline = choice.executor == "inline"
        count = asked or (1 if inline else _spares(manifest, variant, read_machine()))
        while len(runtimes) < count:
            runtimes.append(opener.open(warmth))
    except BaseException:
        for runtime in runtimes:
            runtime.close()
        raise
    most = 1 if inline else max(pool.max_executors, count)
    took_ns, held = dict(opener.took_ns), held_bytes(variant)
    return Warm(variant, runtimes, took_ns, opener.examples, choice, most, load_s, held, opener.open_later, code, drift)


def _open(manifest: Manifest, variant: Variant, code: Mapping[str, str]) -> Runtime:
    threads = manifest.deployment.pool.threads_of(variant.settings)
    if manifest.deployment.pool.executor == "process":
        return RemoteRuntime(manifest, variant, threads=threads, code=code)
    return open_runtime(variant, threads=threads, source=source_of(manifest, variant.runtime))


def _runs_in_one_thread(manifest: Manifest, variant: Variant) -> bool:
    """Whether what a batch takes is what the calling thread has of a core, however long it waits for one.

    So it is in onnxruntime 1.31 and OpenVINO 2026.4, unless OpenVINO's own properties (in capitals) say otherwise.
    """
    pool, settings = manifest.deployment.pool, variant.settings
    usual = spec_of(variant.runtime).computes and not any(name.isupper() for name in settings)
    return usual and pool.executor != "process" and pool.threads_of(settings) == 1


def _spares(manifest: Manifest, variant: Variant, machine: Machine) -> int:
    """Return how many executors are kept warm where nobody says: two, where cores and memory allow.

    More executors than cores only take turns, and each is as late as all of them. A device has one queue and one
    memory: a second executor would hold the model twice for nothing.
    """
    if uses_gpu(variant.runtime, variant.settings):
        return 1
    fit = int(machine.usable_cores // manifest.deployment.pool.threads_of(variant.settings))
    if held_bytes(variant) * _SPARE > _MEMORY_SHARE * machine.memory_bytes:
        return 1
    return max(min(_SPARE, fit), 1)


def held_bytes(variant: Variant) -> int:
    """Return what an opened executor of a variant is taken to hold in memory."""
    return artifact_bytes(variant) * _OVER_ARTIFACT


def artifact_bytes(variant: Variant) -> int:
    """Return the size of a variant's files."""
    return sum(path.stat().st_size for path in (variant.artifact, *variant.parts.values()))


def watch_of(manifest: Manifest, variant: Variant) -> Watch | None:
    """Return what to watch of a variant; None with ``drift.mode = "off"``, or where there is nothing to compare with.

    Reads the registry. A version that keeps no sketches is served all the same: one line says what adds them.

    Raises:
        ArtifactError: the file with the sketches is missing, truncated or corrupt.
    """
    deployment, drift = manifest.deployment, manifest.deployment.drift
    if drift.mode == "off":
        return None
    if not variant.manifest:  # a file that was never built
        if deployment.holdout.source:
            _drift_log.info(
                "drift of %s is not watched: variant %s was not built, so no sketches of a holdout were kept; "
                '`tailcut build` keeps them, drift.mode = "off" ends this line',
                deployment.name,
                variant.name,
            )
        return None
    path = Registry.of(manifest).file(variant, SKETCHES)
    if path is None:
        _drift_log.info(
            "drift of %s is not watched: version %s keeps no sketches of its holdout; `tailcut build` adds them, "
            'drift.mode = "off" ends this line',
            deployment.name,
            variant.version,
        )
        return None
    kept = decode(path.read_bytes()).of(variant.name)
    names = [each.name for each in kept]
    if unknown := [name for name in drift.ignore if name not in names]:
        _drift_log.warning(
            "drift.ignore of %s names %s, which is no column that is watched; the columns are %s",
            deployment.name,
            ", ".join(unknown),
            ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else ""),
        )
    sketches = tuple(each for each in kept if each.name not in drift.ignore)
    if not sketches:
        return None
    settings = DriftSettings(
        drift.false_alarms_per_month, float(drift.min_effect), drift.psi, window_s=float(drift.window_s)
    )
    keeps_outputs = not deployment.model.postprocess
    return Watch(
        variant.name, variant.version, sketches, variant.inputs, variant.outputs, settings, keeps_outputs=keeps_outputs
    )
