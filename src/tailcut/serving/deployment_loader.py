"""Opens what a deployment needs: the variant from the registry, its executors warmed up, hooks, features, caches."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sized
from functools import partial
from typing import Any

from tailcut.code.loaded import LoadedCode
from tailcut.common.fingerprint import uses_gpu
from tailcut.errors import ArtifactError, NotInRegistry
from tailcut.features import FeatureService
from tailcut.manifest import Manifest
from tailcut.models.background_loading import abandon, close_later, in_background, in_thread
from tailcut.models.deployment_version import is_live, opening_references, version_of
from tailcut.models.dispatch.scheduler_factory import make_dispatcher
from tailcut.models.pool import Pool
from tailcut.models.runtime_import import bring_in
from tailcut.models.runtimes.base import StreamingRuntime
from tailcut.models.runtimes.priority import lower_priority
from tailcut.models.runtimes.row_coupling import coupling_operators
from tailcut.models.shed_errors import unavailable
from tailcut.models.value_limits import PathLimits
from tailcut.models.variant_loader import Warm, artifact_bytes, held_bytes, open_variant
from tailcut.models.warm_up import BRIEF, THOROUGH
from tailcut.observe.recorder import ModelSinks, VariantBatches
from tailcut.pipeline.hook_loading import HookCode, import_code, place_hooks
from tailcut.pipeline.pipeline import Pipeline, Stores
from tailcut.pipeline.prediction_cache import open_caches
from tailcut.pipeline.request_context import ServedVariant
from tailcut.pipeline.row_transform import RowTransform
from tailcut.pipeline.stages.features import open_features
from tailcut.pipeline.streaming import streaming_of
from tailcut.registry import Registry, Variant, VariantEvidence
from tailcut.scheduler.core_budget import CoreBudget
from tailcut.scheduler.pool_scaling import ScalingLimits, Wear
from tailcut.serving.host_state import HostState
from tailcut.serving.variant_checks import (
    feature_models,
    refuse_other_model,
    refuse_unjudged,
    refuse_unproven,
)

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
        pipeline: the stages of the request path, the same of all variants; it knows which of them answers.
        served: the variant, as requests meet it.
        pool: keeps the executors.
        variant: what the registry has of it, as far as it is known by now.
        warm: its runtimes, and how it was warmed up.
        merges: whether requests share batches: the manifest and the variant's evidence both have a say.
        rows_alone: whether each row runs alone, those of one request too, because rows influence each other.
        code: the user's functions, as they were imported.
        device: how long the variant has held its device; None where it runs on none.
        streams: whether the model answers in parts too.
        fallback: another variant that takes what this one has no room for; None where there is none (yet).
        loading: the variant to serve, for which this one stands in until it is warm; None where this is it. Who puts
            it in place closes it.
        host: state that it shares with the other models of the process.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        served: ServedVariant,
        pool: Pool,
        warm: Warm,
        code: HookCode,
        device: VariantBatches | None,
        host: HostState,
        loading: asyncio.Task[Warm] | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.served = served
        self.pool = pool
        self.device = device
        self.merges = served.dispatcher.scheduler.merge
        self.rows_alone = served.rows_alone
        self.variant = warm.variant
        self.warm = warm
        self.code = code
        self.streams = streaming_of(warm.runtimes) is not None
        self.fallback: Opened | None = None
        self.loading = loading
        self.host = host

    @property
    def answers_invented(self) -> bool:
        """Whether it was warmed up with invented rows, and answered them."""
        return bool(self.warm.warm_up_ns) and not self.warm.examples.are_real

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
    host: HostState,
    in_flight: Sized = (),
    stand_in: StandIn | None = None,
    choose: Choose | None = None,
) -> Opened:
    """Load, warm up and connect everything; blocking work runs off the event loop.

    Args:
        host: state that it shares with the other models of the process.
        stand_in: begins to open a variant that answers until the one to serve is warm, where it is warm before. Who
            gave it closes that where this fails.
        choose: finds the variant to serve; by default that which the manifest says.

    Raises:
        TailcutError: whatever is missing or broken, by name.
    """
    deployment = manifest.deployment
    variant = await asyncio.to_thread(choose or find_variant, manifest)
    await asyncio.to_thread(refuse_unproven, manifest, variant)
    if deployment.serve.strict:
        await host.wait_loaded(feature_models(deployment))
        refuse_unjudged(deployment, variant, host.served)
    if not (host.quiet or host.many):
        return await _open(manifest, variant, sinks, host, in_flight, stand_in)
    room = host.memory.room_for(f"model {deployment.name!r}", artifact_bytes(variant), held_bytes(variant))
    async with room:
        return await _open(manifest, variant, sinks, host, in_flight, stand_in)


async def _open(
    manifest: Manifest,
    variant: Variant,
    sinks: ModelSinks,
    host: HostState,
    in_flight: Sized,
    stand_in: StandIn | None,
) -> Opened:
    deployment = manifest.deployment
    # The user's modules are imported here, off the event loop: what resolves them later finds them imported.
    code = await asyncio.to_thread(import_code, manifest, opening_references(manifest, variant))
    transform = RowTransform(deployment.model, code.preprocess, code.postprocess, fields=code.fields)
    outputs = tuple(tensor.name for tensor in deployment.model.outputs)
    warm, loading = await _first_warm(manifest, variant, code.files, stand_in, host)
    stores = Stores()
    try:
        stores = stores._replace(hooks=await place_hooks(deployment, code, transform, warm, outputs))
        stores = stores._replace(caches=await open_caches(deployment))
        stores = stores._replace(features=await open_features(manifest, code, host.models))
        served, pool, device = _assembled(manifest, sinks, code, warm, transform, outputs, stores.features, host.cores)
        fallback_stale = "stale" in deployment.serve.fallback
        pipeline = Pipeline(served, transform, stores, fallback_stale=fallback_stale, in_flight=in_flight)
        return Opened(pipeline, served, pool, warm, code, device, host, loading)
    except BaseException:
        if loading is None:
            close_later(Warm.close, warm)
        else:
            abandon(loading, Warm.close)  # what stands in is closed by who gave it
        await stores.close(0.0)  # last: it may fail, or be cancelled
        raise


def _assembled(
    manifest: Manifest,
    sinks: ModelSinks,
    code: HookCode,
    warm: Warm,
    transform: RowTransform,
    outputs: tuple[str, ...],
    features: FeatureService | None,
    budget: CoreBudget | None,
) -> tuple[ServedVariant, Pool, VariantBatches | None]:
    """Put a warm variant behind a queue; return it with its pool, and what counts its device's time if it has one."""
    deployment, variant = manifest.deployment, warm.variant
    settings, slo = deployment.pool, deployment.slo
    batches, loop = VariantBatches(variant.name, variant.version, sinks), asyncio.get_running_loop()
    dispatcher = make_dispatcher(deployment, variant, warm.warm_up_ns, warm.length_class, batches, loop, budget)
    # Those of the manifest, and what its version's build found.
    limits = PathLimits(deployment, variant.bounds, hook=code.preprocess is not None)
    served = ServedVariant(
        dispatcher,
        name=variant.name,
        version=variant.version,
        deployment_version=version_of(deployment, variant, warm.code.digest),
        features_version=features.version if features is not None and features.asks_models else None,
        limits=None if limits.is_empty else limits,
        input_specs=transform.specs,
        outputs=outputs,
        rows_alone=variant.evidence.rows_alone,
        needs_entities=warm.drift is not None,
    )
    latency_s = slo.p99_s or slo.p95_s or slo.p50_s or slo.timeout_s
    # More than may run at a time would win nothing, and load while the others have the most to do.
    useful = max(dispatcher.running.at_once or warm.most, len(warm.runtimes))
    pool = Pool(
        dispatcher,
        warm.choice.executor,
        warm.runtimes,
        warm.open_one,
        limits=ScalingLimits(len(warm.runtimes), min(warm.most, useful), float(latency_s)),
        wear=Wear(settings.recycle_requests, float(settings.recycle_age_s), float(settings.recycle_growth)),
        recorder=sinks.metrics,
        load_s=warm.load_s,
        size_bytes=warm.size_bytes,
    )
    return served, pool, batches if uses_gpu(variant.runtime, variant.settings) else None


async def _first_warm(
    manifest: Manifest, variant: Variant, files: LoadedCode, stand_in: StandIn | None, host: HostState
) -> tuple[Warm, asyncio.Task[Warm] | None]:
    """Open a variant; return it, or what stands in for it and the loading that goes on."""
    code = await asyncio.to_thread(files.snapshot, live=is_live(variant))
    if stand_in is None and host.quiet:
        return await in_background(partial(open_variant, manifest, variant, BRIEF, code=code), Warm.close), None
    if stand_in is None:
        # Beside others that load at the same time, the least of several runs tells the most.
        warmth = BRIEF if host.many else THOROUGH
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


def open_candidate(manifest: Manifest, running: Opened, variant: Variant) -> Warm:
    """Open and warm up a variant that is to take the place of a running one. Runs in the background; blocks.

    Raises:
        TailcutError: this process cannot serve it, or may not.
    """
    refuse_other_model(manifest, running.code.files, variant)
    refuse_unjudged(manifest.deployment, variant, running.host.served)
    running.host.refuse_too_large(variant)
    for runtime in (variant.runtime, *variant.part_runtimes):
        bring_in(runtime)
    if variant.runtime == "onnxruntime" and manifest.deployment.pool.threads_of(variant.settings) == 1:
        lower_priority()  # it starts no thread that would inherit this for good
    # The least of several runs: others use the processor meanwhile, and this thread gives way to them.
    code = running.code.files.snapshot(live=is_live(variant))
    return open_variant(manifest, variant, BRIEF, code=code, must_answer=running.answers_invented)


def open_beside(manifest: Manifest, running: Opened, warm: Warm, sinks: ModelSinks) -> Opened:
    """Put another variant behind the hooks, features and prediction caches of a running deployment.

    The caches are shared because their keys hold the deployment version: no entry of one variant ever answers for the
    other, memory stays within the one limit, and after a rollback within their TTL the old entries are still good.
    """
    code, pipeline, host = running.code, running.pipeline, running.host
    served, pool, device = _assembled(
        manifest, sinks, code, warm, pipeline.transform, pipeline.outputs, pipeline.features, host.cores
    )
    return Opened(pipeline, served, pool, warm, code, device, host)
