"""Opens what a deployment needs: the variant from the registry, its executors warmed up, hooks, features, caches."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence, Sized
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path as FilePath
from statistics import median
from time import perf_counter_ns
from typing import Any

import msgspec
import numpy as np

from tailcut.cache import MemoryStore
from tailcut.core.batching import Planner
from tailcut.core.placement import INLINE_LIMIT_NS
from tailcut.core.tensors import Arrays
from tailcut.core.validation import InputSpec
from tailcut.engine.assembly import Assembly
from tailcut.engine.dispatcher import Dispatcher
from tailcut.engine.executors import Executor, InlineExecutor, ThreadExecutor
from tailcut.engine.hooks import Hooks, time_postprocess
from tailcut.engine.path import Path, PredictionStore
from tailcut.engine.ticket import Ticket, run_rows
from tailcut.engine.version import deployment_version
from tailcut.errors import ArtifactError, StartError, TailcutError
from tailcut.features import FeatureService
from tailcut.manifest import Deployment, Features, Manifest, PredictionCache, resolve
from tailcut.observe.recorder import Recorder
from tailcut.registry import Registry, Variant
from tailcut.runtimes import open_runtime
from tailcut.runtimes.base import Runtime

_SQLITE = "sqlite:///"
_WARM_UP_RUNS = 5
_FREE_DIMENSION = 8
"""Size that warm-up gives to a free dimension that is not the batch."""


def find_variant(manifest: Manifest) -> Variant:
    """Return the variant to serve, its artifact's size and hash checked.

    ``serve.variant = "source"`` serves an .onnx ``model.source`` as it is, without a build.

    Raises:
        ArtifactError: there is no such variant, or its file is corrupt.
    """
    deployment = manifest.deployment
    if deployment.serve.variant != "source":
        registry = Registry.of(manifest)
        return registry.variant(deployment.name, deployment.serve.variant)
    path = manifest.directory / deployment.model.source
    if path.suffix != ".onnx" or not path.is_file():
        raise ArtifactError(
            f'serve.variant = "source" needs model.source to be an .onnx file, got {deployment.model.source!r}',
            hint="run `tailcut build` and serve a variant of the registry",
        )
    return Variant(
        model=deployment.name,
        name="source",
        runtime="onnxruntime",
        artifact=path,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        inputs=deployment.model.inputs,
        outputs=deployment.model.outputs,
        version="source",
    )


def open_runtimes(manifest: Manifest, variant: Variant) -> list[Runtime]:
    """Open one runtime per executor."""
    pool = manifest.deployment.pool
    source: Callable[[], Any] | None = None
    if variant.runtime == "torch":
        source = resolve(manifest.deployment.model.source, manifest)
    runtimes: list[Runtime] = []
    try:
        # As they open, so that those before a failure are known.
        runtimes.extend(open_runtime(variant, threads=pool.threads, source=source) for _ in range(pool.executors))
    except BaseException:
        for runtime in runtimes:
            runtime.close()
        raise
    return runtimes


def example_inputs(specs: Sequence[InputSpec], rows: int) -> Arrays:
    """Return zeros of the right form: indexes into embeddings stay valid, and kernels do the same work."""
    shapes = {spec.name: (rows, *(_FREE_DIMENSION if size == -1 else size for size in spec.tail)) for spec in specs}
    return {
        spec.name: np.full(shapes[spec.name], "", object)
        if spec.datatype == "BYTES"
        else np.zeros(shapes[spec.name], spec.dtype)
        for spec in specs
    }


def buckets(max_rows: int) -> list[int]:
    """Return the batch sizes to warm up: powers of two up to, and then, the largest batch."""
    sizes = [1 << power for power in range(max_rows.bit_length()) if 1 << power < max_rows]
    return [*sizes, max_rows]


def warm_up(runtime: Runtime, specs: Sequence[InputSpec], outputs: Sequence[str], max_rows: int) -> dict[int, int]:
    """Run every bucket; return the median nanoseconds of each.

    Raises:
        StartError: the model fails on a bucket.
    """
    medians: dict[int, int] = {}
    for rows in buckets(max_rows):
        inputs = example_inputs(specs, rows)
        durations = []
        for _ in range(_WARM_UP_RUNS):
            started_ns = perf_counter_ns()
            try:
                run_rows(runtime, inputs, rows, outputs)
            except TailcutError as error:
                raise StartError(
                    f"warm-up failed at {rows} rows: {error.message}",
                    hint="the model must run every batch size up to batching.max_rows; lower it or export it anew",
                ) from error
            durations.append(perf_counter_ns() - started_ns)
        medians[rows] = int(median(durations))
    return medians


async def _place_hooks(
    deployment: Deployment, assembly: Assembly, runtime: Runtime, outputs: Sequence[str]
) -> Hooks | None:
    """Make what runs the hooks; postprocess is measured on what the warm-up computes, off the event loop."""
    model = deployment.model
    if not model.preprocess and not model.postprocess:
        return None
    hooks = Hooks(
        assembly,
        preprocess=bool(model.preprocess),
        postprocess=bool(model.postprocess),
        stuck_after_s=deployment.slo.timeout_s,
    )
    if model.postprocess:
        sizes = buckets(deployment.batching.max_rows)
        computed = (run_rows(runtime, example_inputs(assembly.specs, rows), rows, outputs) for rows in sizes)
        timed = partial(time_postprocess, assembly, computed, _WARM_UP_RUNS)
        for rows, took_ns in await asyncio.get_running_loop().run_in_executor(None, timed):
            hooks.postprocess.observe(rows, took_ns)
    return hooks


def _features(manifest: Manifest) -> Features:
    """Return the feature settings with a relative SQLite path taken from the manifest's folder."""
    features = manifest.deployment.features
    path = features.database.removeprefix(_SQLITE)
    if path == features.database or FilePath(path).is_absolute():
        return features
    return msgspec.structs.replace(features, database=f"{_SQLITE}{manifest.directory / path}")


async def _open_features(manifest: Manifest) -> FeatureService | None:
    if not manifest.deployment.features.groups:
        return None
    return await FeatureService.open(_features(manifest), resolve=lambda ref: resolve(ref, manifest))


def _hooks(manifest: Manifest) -> dict[str, Callable[..., Any]]:
    """Import every function of the user that touches an answer; by its reference, in the manifest's order."""
    deployment = manifest.deployment
    references = [deployment.model.preprocess, deployment.model.postprocess]
    references += [group.function for group in deployment.features.groups]
    found = {reference: resolve(reference, manifest) for reference in references if reference}
    for key, reference in (
        ("model.preprocess", deployment.model.preprocess),
        ("model.postprocess", deployment.model.postprocess),
    ):
        hook = found.get(reference)
        if hook is not None and (iscoroutinefunction(hook) or iscoroutinefunction(getattr(hook, "__call__", None))):  # noqa: B004
            raise StartError(
                f"{key}: {reference} is async; only plain functions are supported",
                hint="write it as a plain function: where it is slow it runs in a thread",
            )
    return found


def _store(settings: PredictionCache) -> PredictionStore | None:
    return PredictionStore(MemoryStore(settings.max_bytes), settings.ttl_s) if settings.enabled else None


def _executor(kind: str, runtime: Runtime, dispatcher: Dispatcher, loop: asyncio.AbstractEventLoop, n: int) -> Executor:
    if kind == "inline":
        return InlineExecutor(runtime, dispatcher.on_done)
    return ThreadExecutor(runtime, dispatcher.on_done, loop, name=f"tailcut-executor-{n}")


def choose_executor(deployment: Deployment, medians: dict[int, int]) -> str:
    """Return "inline" or "thread": inline only where the largest batch stays under a millisecond.

    Raises:
        StartError: the manifest asks for inline and the model is too slow for it.
    """
    wanted = deployment.pool.executor
    slowest_ns = max(medians.values())
    if wanted == "inline" and slowest_ns > INLINE_LIMIT_NS:
        raise StartError(
            f'pool.executor = "inline" with a batch that takes {slowest_ns / 1e6:.1f} ms; the limit is '
            f"{INLINE_LIMIT_NS / 1e6:.0f} ms, because the server answers nothing else meanwhile",
            hint='set pool.executor = "thread" (or "auto"), or lower batching.max_rows',
        )
    if wanted == "auto":
        return "inline" if slowest_ns <= INLINE_LIMIT_NS and deployment.pool.executors == 1 else "thread"
    return wanted


class Opened:
    """A deployment that is ready to serve.

    Attributes:
        executor: "inline" or "thread".
        warm_up_ns: median nanoseconds per batch size.
        merges: whether requests share batches: the manifest and the variant's evidence both have a say.
    """

    def __init__(self, path: Path, variant: Variant, executor: str, warm_up_ns: dict[int, int]) -> None:
        self.path = path
        self.merges = path.dispatcher.planner.merge
        self.variant = variant
        self.executor = executor
        self.warm_up_ns = warm_up_ns


def _dispatcher(deployment: Deployment, variant: Variant, recorder: Recorder, medians: dict[int, int]) -> Dispatcher:
    """Make the dispatcher, its predictions started from warm-up."""
    settings = deployment.batching
    merge = settings.mode != "off" and bool(variant.evidence.get("merge", True))
    planner: Planner[Ticket] = Planner(max_rows=settings.max_rows, max_queue_rows=settings.max_queue_rows, merge=merge)
    loop = asyncio.get_running_loop()
    dispatcher = Dispatcher(planner, recorder, loop, stuck_after_s=deployment.slo.timeout_s)
    for rows, median_ns in medians.items():
        dispatcher.costs.observe(rows, median_ns)
    return dispatcher


async def open_deployment(manifest: Manifest, recorder: Recorder, in_flight: Sized = ()) -> Opened:
    """Load, warm up and connect everything; blocking work runs off the event loop.

    Raises:
        TailcutError: whatever is missing or broken, by name.
    """
    loop = asyncio.get_running_loop()
    deployment = manifest.deployment
    variant = await loop.run_in_executor(None, find_variant, manifest)
    # The user's modules are imported here, off the event loop: what resolves them later finds them imported.
    hooks = await loop.run_in_executor(None, _hooks, manifest)
    assembly = Assembly(
        deployment.model, hooks.get(deployment.model.preprocess), hooks.get(deployment.model.postprocess)
    )
    outputs = tuple(tensor.name for tensor in deployment.model.outputs)
    version = deployment_version(deployment, variant.sha256, list(hooks.values()))
    runtimes = await loop.run_in_executor(None, open_runtimes, manifest, variant)
    try:
        medians: dict[int, int] = {}
        for runtime in runtimes:
            max_rows = deployment.batching.max_rows
            medians = await loop.run_in_executor(None, warm_up, runtime, assembly.specs, outputs, max_rows)
        kind = choose_executor(deployment, medians)
        placed = await _place_hooks(deployment, assembly, runtimes[0], outputs)
        features = await _open_features(manifest)
    except BaseException:
        for runtime in runtimes:
            runtime.close()
        raise
    dispatcher = _dispatcher(deployment, variant, recorder, medians)
    for n, runtime in enumerate(runtimes):
        dispatcher.add(_executor(kind, runtime, dispatcher, loop, n))
    path = Path(
        version=version,
        outputs=outputs,
        assembly=assembly,
        dispatcher=dispatcher,
        hooks=placed,
        features=features,
        entity_cache=_store(deployment.cache.entity) if features is not None else None,
        tensor_cache=_store(deployment.cache.tensor),
        in_flight=in_flight,
    )
    return Opened(path, variant, kind, medians)
