"""Opens the executors' runtimes of a variant and runs every batch size on each, before anything is served."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter, perf_counter_ns, thread_time_ns
from typing import NamedTuple

from tailcut.code.on_disk import source_hashes
from tailcut.core.fingerprint import Machine, uses_gpu
from tailcut.engine import planning
from tailcut.engine.lending import lendable
from tailcut.engine.limits import input_specs
from tailcut.engine.row_coupling import with_row_coupling
from tailcut.engine.version import is_live
from tailcut.engine.warming import BRIEF, THOROUGH, Warmth, choose_executor, warm_up
from tailcut.manifest import Manifest
from tailcut.registry import Variant
from tailcut.registry.machine import read_machine
from tailcut.runtimes import open_runtime
from tailcut.runtimes.base import Runtime
from tailcut.runtimes.divided import dividing, undivided
from tailcut.runtimes.live import source_of
from tailcut.runtimes.remote import RemoteRuntime

_SPARE = 2
"""Executors that are kept warm where nothing else is said: one that dies leaves one that answers meanwhile."""

_MEMORY_SHARE = 0.25
_OVER_ARTIFACT = 3
"""An opened model holds up to this many times its artifact: weights, their packed copies, and activations."""


class Warm(NamedTuple):
    """A variant that is open and warm.

    Attributes:
        runtimes: one per executor.
        warm_up_ns: nanoseconds per batch size.
        executor: "inline", "thread" or "process".
        most: executors that its pool may grow to.
        load_s: how long opening and warming up one of them took.
        size_bytes: what an opened one is taken to hold in memory.
        open_one: opens and warms up one more; blocks.
    """

    variant: Variant
    runtimes: list[Runtime]
    warm_up_ns: dict[int, int]
    executor: str
    most: int
    load_s: float
    size_bytes: int
    open_one: Callable[[], Runtime]

    def close(self) -> None:
        """Close the runtimes."""
        for runtime in self.runtimes:
            runtime.close()


def close_warm(warm: Warm | None) -> None:
    """Close what was opened, where anything was."""
    if warm is not None:
        warm.close()


def open_variant(
    manifest: Manifest,
    variant: Variant,
    warmth: Warmth = THOROUGH,
) -> Warm:
    """Open one runtime per executor and run every batch size on each; blocks. Nothing stays open where one fails.

    Args:
        warmth: of these; executors that are opened later, while these serve, are warmed up briefly.

    Raises:
        TailcutError: it cannot be opened, or fails on a batch size.
    """
    deployment, variant = manifest.deployment, with_row_coupling(variant)
    pool, outputs = deployment.pool, tuple(tensor.name for tensor in deployment.model.outputs)
    max_rows, asked = planning.most_rows(deployment.batching, variant), pool.executors_of(variant.settings)
    specs = input_specs(deployment.model, variant.bounds)
    took_ns: dict[int, int] = {}
    code = _code_of_children(manifest, variant)

    def open_one(warmth: Warmth) -> Runtime:
        runtime = lendable(_open(manifest, variant, code))
        clock_ns = thread_time_ns if warmth is BRIEF and _runs_in_one_thread(manifest, variant) else perf_counter_ns
        try:
            took_ns.update(warm_up(runtime, specs, outputs, max_rows, warmth, clock_ns))
        except BaseException:
            runtime.close()
            raise
        return runtime

    runtimes: list[Runtime] = []
    try:
        began_s = perf_counter()
        runtimes.append(open_one(warmth))
        load_s = perf_counter() - began_s
        kind = choose_executor(deployment, took_ns, asked or 1)
        if kind == "inline":
            runtimes = [undivided(runtime) for runtime in runtimes]  # all that it runs is short
        count = asked or (1 if kind == "inline" else _spares(manifest, variant, read_machine()))
        while len(runtimes) < count:
            runtimes.append(open_one(warmth))
    except BaseException:
        for runtime in runtimes:
            runtime.close()
        raise
    most = 1 if kind == "inline" else max(pool.max_executors, count)
    later = partial(open_one, BRIEF)
    return Warm(variant, runtimes, dict(took_ns), kind, most, load_s, _held(variant), later)


def _code_of_children(manifest: Manifest, variant: Variant) -> Mapping[str, str]:
    """Hash what processes of executors import: each anew, those that are opened later, too."""
    children = is_live(variant) and manifest.deployment.pool.executor == "process"
    return source_hashes(manifest) if children else {}


def _open(manifest: Manifest, variant: Variant, code: Mapping[str, str]) -> Runtime:
    threads = manifest.deployment.pool.threads_of(variant.settings)
    divides = planning.divides(manifest.deployment.batching, variant)
    if manifest.deployment.pool.executor == "process":
        return RemoteRuntime(manifest, variant, threads=threads, divides=divides, code=code)
    runtime = open_runtime(variant, threads=threads, source=source_of(manifest, variant.runtime))
    return dividing(runtime) if divides else runtime


def _runs_in_one_thread(manifest: Manifest, variant: Variant) -> bool:
    """Whether what a batch takes is what the calling thread has of a core, however long it waits for one.

    So it is in onnxruntime 1.31 and OpenVINO 2026.4, unless OpenVINO's own properties (in capitals) say otherwise.
    """
    pool, settings = manifest.deployment.pool, variant.settings
    own = variant.runtime == "openvino" and any(name.isupper() for name in settings)
    usual = variant.runtime in {"onnxruntime", "openvino"} and not own
    return usual and pool.executor != "process" and pool.threads_of(settings) == 1


def _spares(manifest: Manifest, variant: Variant, machine: Machine) -> int:
    """Return how many executors are kept warm where nobody says: two, where cores and memory allow.

    More executors than cores only take turns, and each is as late as all of them. A device has one queue and one
    memory: a second executor would hold the model twice for nothing.
    """
    if uses_gpu(variant.runtime, variant.settings):
        return 1
    fit = int(machine.usable_cores // manifest.deployment.pool.threads_of(variant.settings))
    if _held(variant) * _SPARE > _MEMORY_SHARE * machine.memory_bytes:
        return 1
    return max(min(_SPARE, fit), 1)


def _held(variant: Variant) -> int:
    return sum(path.stat().st_size for path in (variant.artifact, *variant.parts.values())) * _OVER_ARTIFACT
