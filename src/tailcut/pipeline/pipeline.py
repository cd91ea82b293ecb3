"""The request path of one deployment, bound once at start: a stage that is not configured costs nothing.

    validate -> admit -> entity cache -> features -> preprocess -> tensor cache -> queue -> infer -> postprocess

Receiving and encoding belong to the protocol in front. The time of each stage goes to the request's ``Timings``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence, Sized
from time import perf_counter_ns
from typing import Any, NamedTuple

from tailcut.common.tensors import Arrays
from tailcut.common.timings import Stage
from tailcut.common.validation import InputSpec
from tailcut.errors import BadRequest, DeadlineExceeded, NotReady, Shed, TailcutError
from tailcut.features import FeatureService
from tailcut.observe.sample import Sample
from tailcut.pipeline.hooks import Hooks
from tailcut.pipeline.prediction_cache import Caches
from tailcut.pipeline.request_context import RequestContext, ServedVariant
from tailcut.pipeline.row_transform import Rows, RowTransform
from tailcut.pipeline.stages import EntityHandler, PathStage, RowHandler, TensorHandler
from tailcut.pipeline.stages.batching import BatchingStage, dispatcher_samples
from tailcut.pipeline.stages.entity_cache import EntityCacheStage
from tailcut.pipeline.stages.features import FeatureStage
from tailcut.pipeline.stages.tensor_cache import TensorCacheStage
from tailcut.pipeline.stages.transform import TransformStage

_NO_CACHES = Caches(None, None)


class Stores(NamedTuple):
    """What a deployment opens for its stages and its variants share: threads of hooks, caches, sources of features.

    Attributes:
        hooks: decides where preprocess and postprocess run; None where the user has neither.
        features: None where the deployment has no feature groups.
    """

    hooks: Hooks | None = None
    caches: Caches = _NO_CACHES
    features: FeatureService | None = None

    async def close(self, timeout_s: float) -> None:
        """Close all of it; hooks that run have at most ``timeout_s``."""
        if self.hooks is not None:
            await self.hooks.stop(timeout_s)
        if self.features is not None:
            await self.features.close()
        await self.caches.close()


class Pipeline:
    """The stages of a deployment, which its variants share, and the choice among these. Owned by the event loop.

    There are three entry points: tensors, feature rows and entities. A switch is one call of ``put``, so that a request
    sees the variants before it or those after it; one that it overtakes ends on the variant that admitted it.

    Args:
        served: the variant that answers.
        fallback_stale: whether an answer past its TTL is given where there is no room for a request.
        in_flight: see ``BatchingStage``.

    Attributes:
        serving: answers requests from now on.
        fallback: takes what ``serving`` has no room for; None where there is none (yet).
    """

    def __init__(
        self,
        served: ServedVariant,
        transform: RowTransform,
        stores: Stores = Stores(),  # noqa: B008 - it is immutable
        *,
        fallback_stale: bool = False,
        in_flight: Sized = (),
    ) -> None:
        self.serving = served
        self.fallback: ServedVariant | None = None
        self.outputs = outputs = served.outputs
        self.transform = transform
        self._stores = stores
        self.hooks, self.caches, self.features = hooks, caches, features = stores
        self.fallback_stale = fallback_stale
        self._stages: list[PathStage] = []
        tensors: TensorHandler = BatchingStage(transform.specs, outputs, in_flight).run
        if caches.tensor is not None:
            tensors = self._bound(TensorCacheStage(caches.tensor, stale=fallback_stale), tensors)
        rows: RowHandler = self._bound(TransformStage(transform, hooks, outputs), tensors)
        entities: EntityHandler | None = None
        if features is not None:
            entities = self._bound(FeatureStage(features), rows)
            if caches.entity is not None:
                entities = self._bound(EntityCacheStage(caches.entity, outputs, stale=fallback_stale), entities)
        self._tensors, self._rows, self._entities = tensors, rows, entities
        self._recalls = caches.tensor is not None or caches.entity is not None

    def _bound(self, stage: PathStage, behind: Any) -> Any:
        self._stages.append(stage)
        return stage.bind(behind)

    def put(self, serving: ServedVariant, fallback: ServedVariant | None = None) -> None:
        """Route requests to these variants from now on; those that were admitted stay where they are."""
        self.serving, self.fallback = serving, fallback

    @property
    def healthy(self) -> bool:
        """Whether at least one of the variants has an executor that is not stuck."""
        return self.serving.dispatcher.healthy or (self.fallback is not None and self.fallback.dispatcher.healthy)

    def admit(self, context: RequestContext, rows: int, *, recalls: bool = False) -> None:
        """Choose the variant that answers a request, which keeps it; refuse what none can answer.

        Args:
            recalls: whether a cache may have the answer: then ``context.refusal`` is set instead of raised where there
                is no room, and it is raised where the cache does not have it.

        Raises:
            DeadlineExceeded: the deadline has passed.
            Shed, NotReady: there is no room.
        """
        served, fallback = self.serving, None if context.is_exact else self.fallback
        context.served = served
        if served.name:
            context.variant = served.name
        now_ns = perf_counter_ns()
        if now_ns >= context.deadline_ns:
            raise DeadlineExceeded("the deadline passed before the request was admitted", hint="send a longer timeout")
        if fallback is not None and not served.dispatcher.healthy:
            # It does not wait for the next executor where the fallback can answer.
            if _takes(fallback, context, rows):
                context.timings.lap(Stage.ADMIT, now_ns)
                return
            fallback = None  # asked, and once is enough
        try:
            served.dispatcher.check_room(rows, context.deadline_ns, priority=context.priority, tenant=context.tenant)
        except (Shed, NotReady) as error:
            if fallback is None or not _takes(fallback, context, rows):
                if not recalls:
                    raise
                context.refusal = error
        context.timings.lap(Stage.ADMIT, now_ns)

    @property
    def specs(self) -> tuple[InputSpec, ...]:
        """What each input must be."""
        return self.serving.specs

    @property
    def recalls_tensors(self) -> bool:
        """Whether a cache may have the answer to tensors for which there is no room."""
        return self.caches.tensor is not None

    def refused_unread(self, now_ns: int) -> TailcutError | None:
        """Return why a request of the usual kind is shed before its body is read; see ``Dispatcher.refused_unread``.

        None where a cache may have its answer, or a fallback may give it.
        """
        if self._recalls or self.fallback is not None:
            return None
        return self.serving.dispatcher.refused_unread(now_ns)

    def infer(self, context: RequestContext, inputs: Arrays, rows: int, outputs: tuple[str, ...]) -> Awaitable[Arrays]:
        """Run the checked inputs of an admitted request; one that was not admitted runs on the variant that answers.

        Args:
            inputs: every input, first dimension ``rows``.
            outputs: names wanted, a subset of ``self.outputs``.
        """
        if context.served is None:
            context.served = self.serving
        return self._tensors(context, inputs, rows, outputs)

    def predict_rows(self, context: RequestContext, rows: Rows) -> Awaitable[list[Any]]:
        """Check, admit and answer feature rows that the client sent; one JSON value per row."""
        limits = self.serving.limits
        if limits is not None:
            limits.check_rows(rows)
        context.timings.lap(Stage.VALIDATE, perf_counter_ns())
        # Preprocessing for nothing is what a server without room can spare least.
        self.admit(context, len(rows), recalls=self.caches.tensor is not None and self.fallback_stale)
        return self._rows(context, rows, True)

    async def predict_entities(self, context: RequestContext, entities: Sequence[object]) -> list[Any]:
        """Check, admit and answer entities; one JSON value (or Raw) per entity.

        Raises:
            BadRequest: the deployment has no features, or an entity is malformed.
            UnknownEntity, FeatureUnavailable, FeatureTimeout: see ``FeatureService.fetch``.
        """
        if self.features is None or self._entities is None:
            raise BadRequest(
                "this model has no feature groups, so it cannot look entities up", hint='send {"rows": ...}'
            )
        # Before the entities are read: reading too many would hold the event loop up for seconds.
        limits = self.serving.limits
        self.admit(context, len(entities), recalls=self.caches.entity is not None)
        keys = [self.features.parse_entity(entity) for entity in entities]
        if limits is not None:
            limits.check_entities(keys)
        context.timings.lap(Stage.VALIDATE, perf_counter_ns())
        values, _ = await self._entities(context, keys)
        return values

    def samples(self) -> Iterator[Sample]:
        """Yield what /metrics shows of the stages, and of the queue and the executors of the variant that answers."""
        yield from dispatcher_samples(self.serving.dispatcher)
        for stage in self._stages:
            yield from stage.samples()

    async def close(self, timeout_s: float) -> None:
        """Close hooks, features and caches; see ``Stores.close``."""
        await self._stores.close(timeout_s)


def _takes(fallback: ServedVariant, context: RequestContext, rows: int) -> bool:
    """Give a request to the fallback; False where there is no room either."""
    try:
        fallback.dispatcher.check_room(rows, context.deadline_ns, priority=context.priority, tenant=context.tenant)
    except (Shed, NotReady):
        return False
    context.served = fallback
    context.variant = fallback.name
    return True
