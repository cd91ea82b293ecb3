"""The request path of one deployment, compiled once: a stage that is not configured costs nothing.

    validate -> admit -> entity cache -> features -> preprocess -> tensor cache -> queue -> infer -> postprocess

Receiving and encoding belong to the protocol in front (server/). Every stage's time goes to the request's ``Timings``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Sequence, Sized
from functools import partial
from time import perf_counter_ns
from typing import Any

import msgspec

from tailcut.common.tensors import Arrays
from tailcut.common.timings import Stage
from tailcut.common.validation import InputSpec
from tailcut.errors import BadRequest, DeadlineExceeded, NotReady, Shed, TailcutError
from tailcut.features import EntityKey, FeatureService
from tailcut.logs import request_id
from tailcut.models.batch_item import join, ran_ns
from tailcut.models.dispatch.dispatcher import Dispatcher
from tailcut.models.value_limits import PathLimits
from tailcut.pipeline.feature_stage import fetch
from tailcut.pipeline.hooks import Hooks, ran_inline
from tailcut.pipeline.prediction_cache import STALE, PredictionStore
from tailcut.pipeline.prediction_caching import infer_cached, predict_cached
from tailcut.pipeline.request_context import RequestContext
from tailcut.pipeline.row_transform import Rows, RowTransform
from tailcut.pipeline.single_rows import answer_singly

__all__ = ["Pipeline", "PredictionStore", "RequestContext"]


class Pipeline:
    """The compiled path.

    Args:
        version: hash of everything an answer depends on; part of every prediction cache key.
        served: name and version of the variant that answers; told to clients.
        outputs: names of all outputs, in the manifest's order.
        hooks: decides where preprocess and postprocess run; None where the user has neither.
        features: None where the deployment has no feature groups.
        entity_cache, tensor_cache: None where they are off.
        fallback_stale: whether an answer past its TTL is given where there is no room for a request.
        rows_alone: whether each row runs alone, because rows of a batch influence each other.
        in_flight: the requests that are being answered, this one included, and those that are about to be; a request
            that is alone does not wait for the end of the loop iteration to see who else comes.
        limits: of the values of requests; None where the inputs' form is all that counts.

    Attributes:
        fallback: the path of another variant, which takes what this one has no room for; None where there is none.
    """

    def __init__(
        self,
        *,
        version: bytes,
        served: tuple[str, str] = ("", ""),
        outputs: tuple[str, ...],
        transform: RowTransform,
        dispatcher: Dispatcher,
        hooks: Hooks | None = None,
        features: FeatureService | None = None,
        entity_cache: PredictionStore[msgspec.Raw] | None = None,
        tensor_cache: PredictionStore[Arrays] | None = None,
        fallback_stale: bool = False,
        rows_alone: bool = False,
        in_flight: Sized = (),
        limits: PathLimits | None = None,
    ) -> None:
        self._version = version
        self.served = served
        self.outputs = outputs
        self.transform = transform
        self.limits = limits
        self.dispatcher = dispatcher
        self.hooks = hooks
        self.features = features
        self.entity_cache = entity_cache
        self.tensor_cache = tensor_cache
        self.fallback_stale = fallback_stale
        self.rows_alone = rows_alone
        self.fallback: Pipeline | None = None
        self._in_flight = in_flight
        self._predict: Callable[..., Coroutine[Any, Any, list[Any]]] = self._predict_plain
        if hooks is not None:
            self._predict = partial(self._predict_hooked, hooks)
        self._one_lane = all(spec.fixed for spec in transform.specs)

    def beside(
        self,
        version: bytes,
        served: tuple[str, str],
        dispatcher: Dispatcher,
        limits: PathLimits | None,
        *,
        rows_alone: bool,
    ) -> Pipeline:
        """Return a path that differs in the variant that answers, and its limits; all else is shared."""
        return Pipeline(
            version=version,
            served=served,
            outputs=self.outputs,
            transform=self.transform,
            dispatcher=dispatcher,
            hooks=self.hooks,
            features=self.features,
            entity_cache=self.entity_cache,
            tensor_cache=self.tensor_cache,
            fallback_stale=self.fallback_stale,
            rows_alone=rows_alone,
            in_flight=self._in_flight,
            limits=limits,
        )

    @property
    def version(self) -> bytes:
        """The deployment version, with those of the models that its features come from."""
        return self._version if self.features is None else self.features.version(self._version)

    async def close(self) -> None:
        """Close features and caches."""
        if self.features is not None:
            await self.features.close()
        for cache in (self.entity_cache, self.tensor_cache):
            if cache is not None:
                await cache.close()

    @property
    def specs(self) -> tuple[InputSpec, ...]:
        """What each input must be."""
        return self.transform.specs if self.limits is None else self.limits.specs

    def admit(self, context: RequestContext, rows: int, *, recalls: bool = False) -> None:
        """Refuse what cannot be answered: the deadline has passed, or the queue is full already.

        Whatever becomes of the deployment, the request goes this path to its end, or that of the fallback.

        Args:
            recalls: whether a cache may know the answer: then ``context.refusal`` is set instead of raised where there
                is no room, and it is raised where the cache does not know.

        Raises:
            DeadlineExceeded, Shed, NotReady.
        """
        context.pipeline = self
        if self.served[0]:
            context.variant = self.served[0]
        now_ns = perf_counter_ns()
        if now_ns >= context.deadline_ns:
            raise DeadlineExceeded("the deadline passed before the request was admitted", hint="send a longer timeout")
        fallback = self.fallback
        if fallback is not None and not self.dispatcher.healthy:
            # It does not wait for the next executor where somebody else can answer.
            if fallback.takes(context, rows):
                context.timings.lap(Stage.ADMIT, now_ns)
                return
            fallback = None  # asked, and once is enough
        try:
            self.dispatcher.check_room(rows, context.deadline_ns, priority=context.priority, tenant=context.tenant)
        except (Shed, NotReady) as error:
            if fallback is None or not fallback.takes(context, rows):
                if not recalls:
                    raise
                context.refusal = error
        context.timings.lap(Stage.ADMIT, now_ns)

    def refused_unread(self, now_ns: int) -> TailcutError | None:
        """Return why a request of the usual kind is shed before its body is read; see ``Dispatcher.refused_unread``.

        None where a cache may know its answer, or a fallback may give one.
        """
        if self.fallback is not None or self.tensor_cache is not None or self.entity_cache is not None:
            return None
        return self.dispatcher.refused_unread(now_ns)

    def takes(self, context: RequestContext, rows: int) -> bool:
        """Take a request over for which its own path has no room; False where there is none here either."""
        try:
            self.dispatcher.check_room(rows, context.deadline_ns, priority=context.priority, tenant=context.tenant)
        except (Shed, NotReady):
            return False
        context.pipeline = self
        context.variant = self.served[0]
        return True

    def infer(
        self, context: RequestContext, inputs: Arrays, rows: int, outputs: tuple[str, ...]
    ) -> Coroutine[Any, Any, Arrays]:
        """Run checked tensors through the tensor cache and the model.

        Args:
            inputs: every input, first dimension ``rows``.
            outputs: names wanted, a subset of ``self.outputs``.
        """
        if context.pipeline is not self and context.pipeline is not None:
            return context.pipeline.infer(context, inputs, rows, outputs)
        cache = self.tensor_cache
        if cache is None:
            return self.compute(context, inputs, rows, outputs)
        return infer_cached(self, cache, context, inputs, rows, outputs)

    async def predict_rows(self, context: RequestContext, rows: Rows) -> list[Any]:
        """Answer feature rows that the client sent; one JSON value per row."""
        if self.limits is not None:
            self.limits.check_rows(rows)
        context.timings.lap(Stage.VALIDATE, perf_counter_ns())
        # Preprocessing for nothing is what a server without room can spare least.
        self.admit(context, len(rows), recalls=self.tensor_cache is not None and self.fallback_stale)
        return await self._answer(context, rows, from_client=True)

    async def predict_entities(self, context: RequestContext, entities: Sequence[object]) -> list[Any]:
        """Answer entities: look them up, fetch what is missing, predict; one JSON value (or Raw) per entity.

        Raises:
            BadRequest: the deployment has no features, or an entity is malformed.
            UnknownEntity, FeatureUnavailable, FeatureTimeout: see ``FeatureService.fetch``.
        """
        if self.features is None:
            raise BadRequest(
                "this model has no feature groups, so it cannot look entities up", hint='send {"rows": ...}'
            )
        # Before the entities are read: reading too many would hold the event loop up for seconds.
        self.admit(context, len(entities), recalls=self.entity_cache is not None)
        keys = [self.features.parse_entity(entity) for entity in entities]
        if self.limits is not None:
            self.limits.check_entities(keys)
        context.timings.lap(Stage.VALIDATE, perf_counter_ns())
        if self.entity_cache is None:
            values, _ = await self.predict_keys(self.features, context, keys)
            return values
        # By the version of whose answer it is.
        return await predict_cached(context.pipeline or self, self.entity_cache, self.features, context, keys)

    async def predict_keys(
        self, features: FeatureService, context: RequestContext, keys: Sequence[EntityKey]
    ) -> tuple[list[Any], list[float]]:
        """Return the answers and how long each may be kept: not longer than the features it was made from."""
        found = features.fetch_nowait(keys, context.tenant)
        if found is None:
            # Another model should not compute what this one then has no time for.
            own_ns = self.dispatcher.costs.cost.batch_ns(len(keys)) if features.asks_models else 0.0
            found = await fetch(features, context, keys, own_ns)
        context.timings.lap(Stage.FEATURES, perf_counter_ns())
        if self.limits is not None:
            self.limits.check_fetched(found.rows)
        fetched_ns = perf_counter_ns()
        values = await self._answer(context, found.rows, from_client=False)
        if any(found.stale):
            context.cache = "stale"
        elapsed_s = (perf_counter_ns() - fetched_ns) / 1e9
        lives_s = zip(found.fresh_for_s, found.stale, strict=True)
        return values, [STALE if stale else life_s - elapsed_s for life_s, stale in lives_s]

    def _answer(self, context: RequestContext, rows: Rows, *, from_client: bool) -> Coroutine[Any, Any, list[Any]]:
        if len(rows) > 1 and not self._one_lane and (context.pipeline or self).rows_alone:
            return answer_singly(partial(self._predict, from_client=from_client), context, rows)
        return self._predict(context, rows, from_client=from_client)

    async def _predict_plain(self, context: RequestContext, rows: Rows, *, from_client: bool) -> list[Any]:
        inputs = self.transform.inputs(rows, from_client=from_client)
        if self.limits is not None:
            self.limits.check_inputs(inputs, from_client=from_client)
        context.timings.lap(Stage.PREPROCESS, perf_counter_ns())
        outputs = await self.infer(context, inputs, len(rows), self.outputs)
        values = self.transform.answers(outputs, len(rows))
        context.timings.lap(Stage.POSTPROCESS, perf_counter_ns())
        return values

    async def _predict_hooked(
        self, hooks: Hooks, context: RequestContext, rows: Rows, *, from_client: bool
    ) -> list[Any]:
        named = request_id.set(context.request_id)  # for what the hooks log
        try:
            return await self._run_hooked(hooks, context, rows, from_client=from_client)
        finally:
            request_id.reset(named)

    async def _run_hooked(self, hooks: Hooks, context: RequestContext, rows: Rows, *, from_client: bool) -> list[Any]:
        count = len(rows)
        if count <= hooks.preprocess.inline_rows:
            try:
                inputs = self.transform.inputs(rows, from_client=from_client)
            finally:
                ran_inline(hooks.preprocess, context, Stage.PREPROCESS, count)
        else:
            inputs = await hooks.inputs(context, rows, from_client)
        if self.limits is not None:
            self.limits.check_inputs(inputs, from_client=from_client)
        outputs = await self.infer(context, inputs, count, self.outputs)
        if count > hooks.postprocess.inline_rows:
            return await hooks.answers(context, outputs, count)
        try:
            return self.transform.answers(outputs, count)
        finally:
            ran_inline(hooks.postprocess, context, Stage.POSTPROCESS, count)

    async def compute(self, context: RequestContext, inputs: Arrays, rows: int, outputs: tuple[str, ...]) -> Arrays:
        """Run checked tensors through the model, past the tensor cache; see ``infer``."""
        if context.gone:
            raise asyncio.CancelledError  # it left between two waits: nobody is there for whom to compute
        at_once = len(self._in_flight) == 1
        if at_once and (done := self._run_now(context, inputs, rows, outputs)) is not None:
            return done
        lane, due_ns = self._lane(inputs, outputs), context.deadline_ns
        since_ns = context.timings.start_ns
        items = self.dispatcher.submit(
            inputs, rows, outputs, due_ns, lane, at_once, context.priority, context.tenant, since_ns
        )
        try:
            if len(items) == 1:
                context.waiting = future = items[0].future
                return await future
            context.waiting = parts = asyncio.gather(*[item.future for item in items])
            return join(await parts)
        except BaseException:
            # A request that was split ends as a whole: what has not started of it is not computed.
            self.dispatcher.cancel(items)
            raise
        finally:
            context.timings.waited(ran_ns(items), perf_counter_ns())
            context.waiting = None

    def _run_now(self, context: RequestContext, inputs: Arrays, rows: int, outputs: tuple[str, ...]) -> Arrays | None:
        try:
            done = self.dispatcher.run_now(inputs, rows, outputs, context.deadline_ns)
        except BaseException:
            context.timings.lap(Stage.INFER, perf_counter_ns())
            raise
        if done is None:
            return None
        context.timings.waited(done[1], perf_counter_ns())
        return done[0]

    def _lane(self, inputs: Arrays, outputs: tuple[str, ...]) -> Hashable:
        """What must match for requests to share a batch; tenants only share one where nothing of theirs differs."""
        if self._one_lane:
            return None if outputs is self.outputs else outputs
        return outputs, tuple([array.shape[1:] for array in inputs.values()])
