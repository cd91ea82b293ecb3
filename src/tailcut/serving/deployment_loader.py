"""Opens what a deployment needs: the variant from the registry, its executors warmed up, hooks, features, caches."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sized
from functools import partial
from typing import Any

from tailcut.code.loaded import LoadedCode
from tailcut.common.fingerprint import uses_gpu
from tailcut.errors import ArtifactError, NotInRegistry
from tailcut.features import FeatureService
from tailcut.features.source_opener import Models
from tailcut.manifest import Deployment, Manifest
from tailcut.models.background_loading import abandon, close_later, in_background, in_thread
from tailcut.models.deployment_version import is_live, opening_references, version_of
from tailcut.models.dispatch.dispatcher import Dispatcher
from tailcut.models.dispatch.scheduler_factory import make_dispatcher
from tailcut.models.pool import Pool
from tailcut.models.runtimes.base import StreamingRuntime
from tailcut.models.runtimes.row_coupling import coupling_operators
from tailcut.models.shed_errors import unavailable
from tailcut.models.value_limits import PathLimits
from tailcut.models.variant_loader import Warm, artifact_bytes, held_bytes, open_variant
from tailcut.models.warm_up import BRIEF, THOROUGH, warm_up
from tailcut.observe.model_sinks import ModelSinks, VariantBatches
from tailcut.pipeline.cache_stores import Caches, open_caches
from tailcut.pipeline.hook_loading import HookCode, import_code, place_hooks
from tailcut.pipeline.pipeline import Pipeline, Stores
from tailcut.pipeline.row_transform import RowTransform
from tailcut.pipeline.served_variant import ServedVariant
from tailcut.pipeline.stages.features import open_features
from tailcut.pipeline.streaming import streaming_of
from tailcut.registry import Registry, Variant, VariantEvidence
from tailcut.scheduler.core_budget import CoreBudget
from tailcut.scheduler.pool_scaling import ScalingLimits, Wear
from tailcut.serving.host_state import HostState
from tailcut.serving.variant_checks import feature_models, refuse_unjudged, refuse_unproven

__all__ = ["Opened", "Warm", "find_variant", "open_deployment", "open_variant", "warm_up"]


Choose = Callable[[Manifest], Variant]
"""Finds the variant to serve; blocks."""

StandIn = Callable[[Variant, LoadedCode], "asyncio.Future[Warm | None]"]
"""Begins to open a variant that stands in for another one; None where there is none."""


def find_variant(manifest: Manifest) -> Variant:
    """Return the variant to serve, its artifact's size and hash checked.

    ``serve.variant = "source"`` serves an .onnx ``model.source`` as it is, without a build.

    Raises:
        ArtifactError: there is no such variant, its file is corrupt, or it may not be opened on this machine.
    """
    deployment = manifest.deployment
    if deployment.serve.variant != "source":
        return _of_registry(manifest)
    path = manifest.directory / deployment.model.source
    if path.suffix == ".onnx" and not path.is_file():
        raise ArtifactError(
            f"model.source = {deployment.model.source!r} does not exist: {path}",
            hint="export the model to that file, or set model.source to its path, relative to the manifest",
        )
    if path.suffix != ".onnx":
        raise ArtifactError(
            f'serve.variant = "source" needs model.source to be an .onnx file, got {deployment.model.source!r}',
            hint="run `tailcut build` and serve a variant of the registry",
        )
    return Variant(
        model=deployment.name,
        name="source",
        runtime="onnxruntime",
        # Executors that are opened later are of the same release, wherever a link to its folder leads by then. A link
        # that is the file itself is kept: weights in files of their own lie beside it.
        artifact=path.parent.resolve() / path.name,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        inputs=deployment.model.inputs,
        outputs=deployment.model.outputs,
        version="source",
        evidence=VariantEvidence(rows_alone=bool(coupling_operators([path]))),  # no build has looked
    )


def _of_registry(manifest: Manifest) -> Variant:
    deployment = manifest.deployment
    name, source = deployment.serve.variant, deployment.model.source
    try:
        return Registry.of(manifest).variant(deployment.name, name)
    except NotInRegistry as error:
        asked = "" if name == "promoted" else f"serve.variant = {name!r}: "
        as_it_is = f', or serve {source} unchanged with serve.variant = "source"' if source.endswith(".onnx") else ""
        raise NotInRegistry(f"{asked}{error.message}", hint=f"{error.hint}{as_it_is}", detail=error.detail) from error


class Opened:
    """A variant of a deployment that is ready to serve, with what it shares with the deployment's other variants.

    Attributes:
        pipeline: the stages of the request path, the same of all variants; which of them answers, its router knows.
        served: the variant, as requests meet it.
        pool: keeps the executors.
        executor, executor_reason: "inline", "thread" or "process", and why.
        warm_up_ns, examples: see ``Warm``.
        merges: whether requests share batches: the manifest and the variant's evidence both have a say.
        rows_alone: whether each row runs alone, those of one request too, because rows influence each other.
        code: the user's functions, as they were imported.
        device: how long the variant has held its device; None where it runs on none.
        close: closes the runtimes.
        drift: what its drift is judged by; None where it is not watched.
        streams: whether the model answers in parts too.
        fallback: another variant that takes what this one has no room for; None where there is none (yet).
        loading: the variant to serve, for which this one stands in until it is warm; None where this is it. Who puts
            it in place closes it.
        budget: of the cores that it shares with other models; None where there are none.
        versions: what answers of each model of the process; see ``HostState.served``.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        served: ServedVariant,
        pool: Pool,
        warm: Warm,
        code: HookCode,
        device: VariantBatches | None,
        loading: asyncio.Task[Warm] | None = None,
        budget: CoreBudget | None = None,
        versions: Mapping[str, str] | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.served = served
        self.pool = pool
        self.device = device
        self.merges = served.dispatcher.scheduler.merge
        self.rows_alone = served.rows_alone
        self.variant = warm.variant
        self.drift = warm.drift
        self.executor, self.executor_reason = warm.choice
        self.warm_up_ns = warm.warm_up_ns
        self.examples = warm.examples
        self.code = code
        self.close = warm.close
        self.streams = streaming_of(warm.runtimes) is not None
        self.fallback: Opened | None = None
        self.loading = loading
        self.budget = budget
        self.versions = versions if versions is not None else {}

    @property
    def answers_invented(self) -> bool:
        """Whether it was warmed up with invented rows, and answered them."""
        return bool(self.warm_up_ns) and not self.examples.are_real

    @property
    def streaming(self) -> StreamingRuntime | None:
        """What streams; None where the model does not.

        Raises:
            NotReady: it does, and no executor is there (yet): a stream has no queue to wait in.
        """
        found = streaming_of(self.pool.runtimes)
        if found is None and self.streams:
            coming = self.served.dispatcher.coming
            expected = coming() if coming is not None else None
            raise unavailable(expected.retry_s if expected is not None else 0.0)
        return found

    async def stop(self, timeout_s: float) -> None:
        """Fail what waits and close the executors, the fallback's too; running batches have at most ``timeout_s``."""
        for opened in (self, self.fallback):
            if opened is not None:
                opened.pool.stop()
                await opened.served.dispatcher.stop(timeout_s)

    @property
    def executors(self) -> int:
        """How many take batches now."""
        return self.pool.size


async def open_deployment(
    manifest: Manifest,
    sinks: ModelSinks,
    in_flight: Sized = (),
    stand_in: StandIn | None = None,
    *,
    choose: Choose | None = None,
    host: HostState | None = None,
) -> Opened:
    """Load, warm up and connect everything; blocking work runs off the event loop.

    Args:
        stand_in: begins to open a variant that answers until the one to serve is warm, where it is warm before. Who
            gave it closes that where this fails.
        choose: finds the variant to serve; by default that which the manifest says.
        host: of the other models; None where there are none.

    Raises:
        TailcutError: whatever is missing or broken, by name.
    """
    deployment = manifest.deployment
    variant = await asyncio.to_thread(choose or find_variant, manifest)
    await asyncio.to_thread(refuse_unproven, manifest, variant)
    if host is not None and deployment.serve.strict:
        await host.wait_loaded(feature_models(deployment))
        refuse_unjudged(deployment, variant, host.served)
    if host is None or not (host.quiet or host.many):
        return await _open(manifest, variant, sinks, in_flight, stand_in, host)
    room = host.memory.room_for(f"model {deployment.name!r}", artifact_bytes(variant), held_bytes(variant))
    async with room:
        return await _open(manifest, variant, sinks, in_flight, stand_in, host)


async def _open(
    manifest: Manifest,
    variant: Variant,
    sinks: ModelSinks,
    in_flight: Sized,
    stand_in: StandIn | None,
    host: HostState | None,
) -> Opened:
    deployment = manifest.deployment
    # The user's modules are imported here, off the event loop: what resolves them later finds them imported.
    code = await asyncio.to_thread(import_code, manifest, opening_references(manifest, variant))
    transform = RowTransform(deployment.model, code.preprocess, code.postprocess, fields=code.fields)
    warm, loading = await _first_warm(manifest, variant, code.files, stand_in, host)
    stores = await _connect(manifest, code, transform, warm, loading, host.models if host is not None else None)
    try:
        return _assembled(manifest, sinks, in_flight, transform, code, warm, loading, stores, host)
    except BaseException:
        await stores.close(0.0)
        if loading is not None:
            abandon(loading, Warm.close)
        close_later(Warm.close, warm)
        raise


def _assembled(
    manifest: Manifest,
    sinks: ModelSinks,
    in_flight: Sized,
    transform: RowTransform,
    code: HookCode,
    warm: Warm,
    loading: asyncio.Task[Warm] | None,
    stores: Stores,
    host: HostState | None,
) -> Opened:
    deployment, variant = manifest.deployment, warm.variant
    outputs = tuple(tensor.name for tensor in deployment.model.outputs)
    budget = host.cores if host is not None else None
    observer, loop = VariantBatches(variant.name, variant.version, sinks), asyncio.get_running_loop()
    dispatcher = make_dispatcher(deployment, variant, warm.warm_up_ns, warm.length_class, observer, loop, budget)
    limits = _limits(deployment, variant, code)
    served = _served(deployment, warm, dispatcher, transform, outputs, stores.features, limits)
    pipeline = Pipeline(
        served,
        transform,
        stores,
        fallback_stale="stale" in deployment.serve.fallback,
        in_flight=in_flight,
    )
    pool = _pool(deployment, dispatcher, warm, sinks)
    versions = host.served if host is not None else None
    return Opened(pipeline, served, pool, warm, code, _device_time(observer, warm), loading, budget, versions)


def _served(
    deployment: Deployment,
    warm: Warm,
    dispatcher: Dispatcher,
    transform: RowTransform,
    outputs: tuple[str, ...],
    features: FeatureService | None,
    limits: PathLimits | None,
) -> ServedVariant:
    variant = warm.variant
    return ServedVariant(
        dispatcher,
        name=variant.name,
        version=variant.version,
        deployment_version=version_of(deployment, variant, warm.code.digest),
        features_version=features.version if features is not None and features.asks_models else None,
        limits=limits,
        input_specs=transform.specs,
        outputs=outputs,
        rows_alone=variant.evidence.rows_alone,
        needs_entities=warm.drift is not None,
    )


async def _connect(
    manifest: Manifest,
    code: HookCode,
    transform: RowTransform,
    warm: Warm,
    loading: asyncio.Task[Warm] | None,
    models: Models | None,
) -> Stores:
    """Place the hooks and open caches and features; where that fails, what is warm is closed."""
    outputs = tuple(tensor.name for tensor in manifest.deployment.model.outputs)
    try:
        hooks = await place_hooks(manifest.deployment, code, transform, warm, outputs)
        return Stores(hooks, *await _open_stores(manifest, code, models))
    except BaseException:
        if loading is None:
            warm.close()
        else:
            abandon(loading, Warm.close)
        raise


async def _open_stores(
    manifest: Manifest, code: HookCode, models: Models | None
) -> tuple[Caches, FeatureService | None]:
    caches = await open_caches(manifest.deployment)
    try:
        return caches, await open_features(manifest, code, models)
    except BaseException:
        await caches.close()
        raise


async def _first_warm(
    manifest: Manifest, variant: Variant, files: LoadedCode, stand_in: StandIn | None, host: HostState | None
) -> tuple[Warm, asyncio.Task[Warm] | None]:
    """Open a variant; return it, or what stands in for it and the loading that goes on."""
    code = await asyncio.to_thread(files.snapshot, live=is_live(variant))
    if stand_in is None and host is not None and host.quiet:
        return await in_background(partial(open_variant, manifest, variant, BRIEF, code=code), Warm.close), None
    if stand_in is None:
        # Beside others that load at the same time, the least of several runs tells the most.
        warmth = BRIEF if host is not None and host.many else THOROUGH
        return await in_thread(partial(open_variant, manifest, variant, warmth, code=code), Warm.close), None
    other = stand_in(variant, files)
    # In the background, because what stands in may be serving before it is open.
    loading = asyncio.ensure_future(
        in_background(partial(open_variant, manifest, variant, BRIEF, code=code), Warm.close)
    )
    try:
        both: set[asyncio.Future[Any]] = {other, loading}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if loading.done() and loading.exception() is None:
            return loading.result(), None
        found = await other  # also where the variant itself cannot be opened
        return (await loading, None) if found is None else (found, loading)
    except BaseException:
        abandon(loading, Warm.close)
        raise


def open_beside(manifest: Manifest, running: Opened, warm: Warm, sinks: ModelSinks) -> Opened:
    """Put another variant behind the hooks, features and prediction caches of a running deployment.

    The caches are shared because their keys hold the deployment version: no entry of one variant ever answers for the
    other, memory stays within the one limit, and after a rollback within their TTL the old entries are still good.
    """
    deployment, variant = manifest.deployment, warm.variant
    observer, loop = VariantBatches(variant.name, variant.version, sinks), asyncio.get_running_loop()
    dispatcher = make_dispatcher(
        deployment, variant, warm.warm_up_ns, warm.length_class, observer, loop, running.budget
    )
    limits = _limits(deployment, variant, running.code)
    pipeline = running.pipeline
    served = _served(deployment, warm, dispatcher, pipeline.transform, pipeline.outputs, pipeline.features, limits)
    pool = _pool(deployment, dispatcher, warm, sinks)
    device = _device_time(observer, warm)
    return Opened(pipeline, served, pool, warm, running.code, device, budget=running.budget, versions=running.versions)


def _limits(deployment: Deployment, variant: Variant, code: HookCode) -> PathLimits | None:
    """Return the limits of requests to a variant: those of the manifest, and what its version's build found."""
    found = PathLimits(deployment, variant.bounds, hook=code.preprocess is not None)
    return None if found.is_empty else found


def _device_time(batches: VariantBatches, warm: Warm) -> VariantBatches | None:
    return batches if uses_gpu(warm.variant.runtime, warm.variant.settings) else None


def _pool(deployment: Deployment, dispatcher: Dispatcher, warm: Warm, sinks: ModelSinks) -> Pool:
    settings, slo = deployment.pool, deployment.slo
    latency_s = slo.p99_s or slo.p95_s or slo.p50_s or slo.timeout_s
    # More than may run at a time would win nothing, and load while the others have the most to do.
    useful = max(dispatcher.running.at_once or warm.most, len(warm.runtimes))
    return Pool(
        dispatcher,
        warm.executor,
        warm.runtimes,
        warm.open_one,
        limits=ScalingLimits(len(warm.runtimes), min(warm.most, useful), float(latency_s)),
        wear=Wear(settings.recycle_requests, float(settings.recycle_age_s), float(settings.recycle_growth)),
        recorder=sinks.metrics,
        load_s=warm.load_s,
        size_bytes=warm.size_bytes,
    )
