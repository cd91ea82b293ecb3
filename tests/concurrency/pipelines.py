"""A compiled path under test: fake time, a stub model, feature sources that the test controls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from time import perf_counter, perf_counter_ns
from typing import Any

import numpy as np
from tests.concurrency.dispatching import ManualExecutor
from tests.features_kit import resolver

from tailcut.cache import BypassedStore, MemoryStore
from tailcut.common.tensors import Arrays
from tailcut.features import FeatureService
from tailcut.manifest import Features, Model, TensorSpec
from tailcut.models.batch_item import BatchItem
from tailcut.models.dispatch.dispatcher import Dispatcher
from tailcut.models.executors import InlineExecutor
from tailcut.observe.recorder import ModelSinks, VariantBatches
from tailcut.pipeline.pipeline import Pipeline, Stores
from tailcut.pipeline.prediction_cache import Caches, Name, PredictionStore, json_bytes, size_bytes
from tailcut.pipeline.request_context import RequestContext, ServedVariant
from tailcut.pipeline.row_transform import RowTransform
from tailcut.pipeline.shared_cache import JSON, TENSORS, SharedCache, StoredAnswer
from tailcut.scheduler.scheduler import Scheduler
from tailcut.testing.clock import FakeClock
from tailcut.testing.runtimes import StubRuntime
from tailcut.testing.stores import FaultyStore

REDIS_TIMEOUT_S = 0.02
MODEL = Model(
    source="m:m",
    inputs=(TensorSpec(name="x", shape=(-1, 2), columns=("id", "value")),),
    outputs=(TensorSpec(name="y"), TensorSpec(name="z")),
)


def sums(inputs: Arrays) -> Arrays:
    total = inputs["x"].sum(axis=1)
    return {"y": total, "z": -total}


class Source:
    """An async feature function that counts its calls, and fails or waits when told to."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.broken = False
        self.gate: asyncio.Event | None = None
        self.cancelled = 0

    async def __call__(self, keys: Any, context: Any) -> list[dict[str, float] | None]:
        self.asked += [key[0] for key in keys]
        if self.gate is not None:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if self.broken:
            raise RuntimeError("the source is broken")
        return [{"value": 1000.0 * key[0]} if key[0] < 100 else None for key in keys]


class PipelineBench:
    """What a path is made of. ``manual`` ends batches by hand; else they run inline."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock(monotonic_s=perf_counter())
        self.runtime = StubRuntime(settings.pop("answer", sums))
        self.source = Source()
        self.manual: ManualExecutor | None = None
        self.fallback_stale = settings.pop("fallback_stale", False)
        self._stale_for_s = settings.pop("stale_for_s", 0.0)
        self._cache_settings: dict[str, Any] = settings.pop("cache", {})
        self.remote: FaultyStore[StoredAnswer] | None = FaultyStore() if settings.pop("shared", False) else None
        entity_ttl_s, tensor_ttl_s = settings.pop("entity_ttl_s", None), settings.pop("tensor_ttl_s", None)
        self.entity: PredictionStore[Any] | None = None
        self.tensor: PredictionStore[Any] | None = None
        if entity_ttl_s is not None:
            self.entity = self._store("entity", entity_ttl_s, JSON, json_bytes)
        if tensor_ttl_s is not None:
            self.tensor = self._store("tensor", tensor_ttl_s, TENSORS, size_bytes)
        self._manual = settings.pop("manual", False)
        self._features: Features | None = settings.pop("features", None)
        self._max_rows = settings.pop("max_rows", 8)
        self._max_queue_rows = settings.pop("max_queue_rows", 64)
        self._postprocess: Callable[[Arrays], list[Any]] | None = settings.pop("postprocess", None)
        self._functions = settings.pop("functions", None) or {"g": self.source}
        assert not settings, f"unknown settings {settings}"
        self.service: FeatureService | None = None
        self.in_flight: tuple[None, ...] = ()

    def _store(self, name: Name, ttl_s: float, form: Any, size: Callable[[Any], int]) -> PredictionStore[Any]:
        memory: MemoryStore[Any] = MemoryStore(1 << 20, self.clock.monotonic_s, stale_for_s=self._stale_for_s)
        shared = None
        if self.remote is not None:
            remote = BypassedStore(self.remote, REDIS_TIMEOUT_S)
            shared = SharedCache(remote, form, scope=b"test", ttl_s=ttl_s, wall_s=self.clock.wall_s)
        return PredictionStore(memory, ttl_s, name=name, size=size, shared=shared, **self._cache_settings)

    @asynccontextmanager
    async def opened(self, version: bytes = b"v1") -> AsyncIterator[Pipeline]:
        loop = asyncio.get_running_loop()
        self.runtime.closed = False
        scheduler: Scheduler[BatchItem] = Scheduler(max_rows=self._max_rows, max_queue_rows=self._max_queue_rows)
        dispatcher = Dispatcher(scheduler, VariantBatches("onnx", "1", ModelSinks("m")), loop, self.clock.monotonic_ns)
        if self._manual:
            self.manual = ManualExecutor(self.runtime, dispatcher.on_done, self.clock)
            dispatcher.add(self.manual)
        else:
            dispatcher.add(InlineExecutor(self.runtime, dispatcher.on_done))
        if self._features is not None:
            self.service = await FeatureService.open(
                self._features,
                resolve=resolver(self._functions),
                monotonic_s=self.clock.monotonic_s,
                wall_s=self.clock.wall_s,
            )
        try:
            transform = RowTransform(MODEL, None, self._postprocess)
            outputs = ("y", "z")
            yield Pipeline(
                ServedVariant(dispatcher, deployment_version=version, input_specs=transform.specs, outputs=outputs),
                transform,
                Stores(None, Caches(self.entity, self.tensor), self.service),
                fallback_stale=self.fallback_stale,
                in_flight=self.in_flight,
            )
        finally:
            dispatcher.close(0)
            if self.service is not None:
                await self.service.close()

    def context(self, tenant: str = "", within_s: float = 60.0) -> RequestContext:
        now_ns = self.clock.monotonic_ns()
        return RequestContext("predict", perf_counter_ns(), now_ns + int(within_s * 1e9), tenant, "stub")

    @property
    def computed(self) -> list[float]:
        """First column of every row that the model has seen."""
        return [value for batch in self.runtime.batches for value in batch["x"][:, 0].tolist()]

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        self.clock.run(main)


def rows(*ids: float) -> list[dict[str, float]]:
    return [{"id": id_, "value": 0.0} for id_ in ids]


def tensors(*ids: float) -> Arrays:
    return {"x": np.array([[id_, 0.0] for id_ in ids], np.float32)}
