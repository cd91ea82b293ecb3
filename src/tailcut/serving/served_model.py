"""A model of the server, called in this process by another model's feature group."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any

import msgspec

from tailcut.errors import ClientGone, TailcutError
from tailcut.serving.deployment import Engine

ROUTE = "features"
"""What requests of other models are counted under."""


class LocalModel:
    """See ``features.sources.model.ServedModel``.

    Args:
        engine: of the model that is asked.
        by_entity: whether the keys of the group are its entities.
    """

    def __init__(self, engine: Engine, *, by_entity: bool) -> None:
        self._engine = engine
        self._by_entity = by_entity
        self._version = b""
        engine.recorder.expect(ROUTE)

    @property
    def version(self) -> bytes:
        """Of what answers now, or answered last."""
        if self._engine.is_loaded:
            self._version = self._engine.pipeline.version
        return self._version

    @property
    def most_rows(self) -> int:
        """Rows of a full batch, as far as the queue has room for one."""
        batching = self._engine.manifest.deployment.batching
        return min(batching.max_rows, batching.max_queue_rows)

    async def predict(self, rows: Sequence[dict[str, Any]], deadline_s: float, tenant: str) -> list[Any]:
        """Answer rows; see ``ServedModel.predict``."""
        engine = self._engine
        context = engine.begin(ROUTE, perf_counter_ns(), tenant=tenant)
        context.deadline_ns = min(context.deadline_ns, int(deadline_s * 1e9))  # both by the monotonic clock
        outcome = TailcutError.code
        try:
            pipeline = engine.pipeline
            if self._by_entity:
                values = await pipeline.predict_entities(context, [_entity(row) for row in rows])
            else:
                values = await pipeline.predict_rows(context, rows)
            outcome = "ok"
            return [msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value for value in values]
        except TailcutError as error:
            outcome = error.code
            raise
        except asyncio.CancelledError:
            outcome = ClientGone.code
            raise
        finally:
            engine.end(context, outcome)


def _entity(row: dict[str, Any]) -> Any:
    return row if len(row) > 1 else next(iter(row.values()))
