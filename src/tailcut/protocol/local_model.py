"""A model of the server, called in this process by another model's feature group."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from tailcut.common.json_values import decode
from tailcut.common.timings import Stage
from tailcut.errors import TailcutError
from tailcut.observe.traces.trace_context import CallerSpan, TraceOrigin
from tailcut.pipeline.request_context import RequestContext
from tailcut.pipeline.row_transform import encode_answer
from tailcut.protocol.http import HeaderMap
from tailcut.serving.feature_chains import by_entity

if TYPE_CHECKING:
    from tailcut.protocol.data_plane import ModelPlane

ROUTE = "features"
"""What requests of other models are counted under."""

_ANY = msgspec.json.Decoder(Any)

NO_HEADERS: dict[str, str] = {}

_Ask = tuple[Sequence[dict[str, Any]], float, str, CallerSpan | None]
"""Rows, the deadline in seconds by the monotonic clock, the tenant, and the span that asks."""


class LocalDoor:
    """The ``Door`` of calls in this process: an answer is returned as it is, an error is raised."""

    def answered(self, context: RequestContext, headers: HeaderMap, answer: Any) -> Any:
        """Return the answer as it is."""
        return answer

    def failed(self, context: RequestContext, headers: HeaderMap, error: TailcutError, incident: str) -> NoReturn:
        """Raise the error."""
        try:
            raise error
        finally:
            del error  # its traceback knows this frame: a circle would keep the request


LOCAL_DOOR = LocalDoor()


class LocalModel:
    """See ``features.sources.model.ServedModel``.

    Args:
        plane: of the model that is asked.
        key: columns of the group's key. Where they are the model's entity, it is asked by entity.
    """

    def __init__(self, plane: ModelPlane, key: Sequence[str]) -> None:
        self._plane = plane
        self._engine = plane.engine
        self._key = key
        self._engine.recorder.expect(ROUTE)

    @property
    def version(self) -> bytes:
        """Of what answers now, or answered last."""
        engine = self._engine
        return engine.pipeline.serving.deployment_version if engine.is_loaded else engine.last_version

    @property
    def most_rows(self) -> int:
        """Rows of a full batch, as far as the queue has room for one."""
        batching = self._engine.deployment.batching
        return min(batching.max_rows, batching.max_queue_rows)

    @property
    def timeout_s(self) -> float:
        """Longest time that it takes for an answer."""
        return self._engine.timeout_ns / 1e9

    async def predict(
        self, rows: Sequence[dict[str, Any]], deadline_s: float, tenant: str, caller: CallerSpan | None = None
    ) -> tuple[list[Any], bool]:
        """Answer rows; see ``ServedModel.predict``."""
        ask = rows, deadline_s, tenant, caller
        found: tuple[list[Any], bool] = await self._plane.answer(LOCAL_DOOR, ROUTE, self._predict, NO_HEADERS, ask)
        return found

    async def _predict(self, context: RequestContext, headers: HeaderMap, ask: _Ask) -> tuple[list[Any], bool]:
        rows, deadline_s, tenant, caller = ask
        if caller is not None and context.tracer is not None:
            context.origin = TraceOrigin(context.tracer, None, context.tracer.called(caller))
            if not (trace := caller.trace).is_closed:
                trace.calls.append((self._engine.deployment.name, context))
        context.tenant = tenant  # checked where the request came in; none where the group is shared by all
        context.is_exact = True
        left_ns = int(deadline_s * 1e9) - context.timings.start_ns  # both by the monotonic clock
        self._plane.bound(context, max(min(left_ns, self._engine.timeout_ns), 1))
        context.timings.lap(Stage.RECEIVE, perf_counter_ns())
        pipeline = self._engine.pipeline
        entities = [_entity(row) for row in rows] if by_entity(self._key, self._engine.deployment) else None
        if context.logged is not None:
            context.logged.take_values("rows" if entities is None else "entities", entities or rows)
        if entities is not None:
            values = await pipeline.predict_entities(context, entities)
        else:
            values = await pipeline.predict_rows(context, rows)
        if context.logged is not None:
            context.logged.reply = encode_answer(values)
        decoded = [decode(_ANY, value) if isinstance(value, msgspec.Raw) else value for value in values]
        return decoded, context.cache == "stale"


def _entity(row: dict[str, Any]) -> Any:
    return row if len(row) > 1 else next(iter(row.values()))
