"""Answers a request of several rows row by row, from preprocessing on, where rows run alone and differ in length.

A hook pads the rows that it is given together to the longest of them, and the padding is part of what the model sees.
"""

from __future__ import annotations

from typing import Any

from tailcut.errors import BadRequest
from tailcut.pipeline.request_context import RequestContext
from tailcut.pipeline.row_transform import Rows
from tailcut.pipeline.stages import RowHandler

_CACHE = ("stale", "miss", "hit")
"""Cache state of a request whose rows differ: the first of these that one row has."""


async def answer_singly(predict: RowHandler, context: RequestContext, rows: Rows, from_client: bool) -> list[Any]:
    """Return one JSON value per row, in order.

    Args:
        predict: answers rows that are preprocessed together.

    Raises:
        BadRequest: a row cannot be turned into inputs; names it.
        TailcutError: what else ``predict`` raises; the rows after it are not computed.
    """
    values: list[Any] = []
    before, seen = context.cache, set()
    for number, row in enumerate(rows):
        context.cache = before
        try:
            values += await predict(context, [row], from_client)
        except BadRequest as error:
            said = f"row {number} of {len(rows)}, preprocessed alone: {error.message}"
            raise BadRequest(said, hint=error.hint, detail=error.detail) from error
        seen.add(context.cache)
    context.cache = next((state for state in _CACHE if state in seen), before)
    return values
