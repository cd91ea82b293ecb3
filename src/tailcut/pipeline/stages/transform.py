"""Preprocess and postprocess: feature rows to the model's inputs, its outputs to answers."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from time import perf_counter_ns
from typing import Any

from tailcut.common.timings import Stage
from tailcut.errors import BadRequest
from tailcut.logs import request_id
from tailcut.models.value_limits import PathLimits
from tailcut.observe.sample import Sample, counter, gauge
from tailcut.pipeline.hooks import Hooks, ran_inline
from tailcut.pipeline.request_context import RequestContext
from tailcut.pipeline.row_transform import Rows, RowTransform
from tailcut.pipeline.stages import RowHandler, TensorHandler

HOOK_THREADS_BUSY = gauge("tailcut_hook_threads_busy", "Threads running a slow hook.")
HOOK_QUEUE = gauge("tailcut_hook_queue", "Slow hook calls waiting for a thread.")
HOOK_THREAD_CALLS = counter(
    "tailcut_hook_thread_calls", "Hook calls run in a thread instead of on the event loop.", "hook"
)


class TransformStage:
    """Runs the user's hooks, or fills inputs from columns as the manifest says.

    Args:
        hooks: decides where hooks run; None where the user has none.
        outputs: names of all outputs.
    """

    def __init__(self, transform: RowTransform, hooks: Hooks | None, outputs: tuple[str, ...]) -> None:
        self._transform = transform
        self._hooks = hooks
        self._outputs = outputs
        self._one_lane = all(spec.fixed for spec in transform.specs)

    def bind(self, tensors: TensorHandler) -> RowHandler:
        """See ``PathStage.bind``."""
        hooks = self._hooks
        together = self._plain(tensors) if hooks is None else self._hooked(hooks, tensors)
        if self._one_lane:
            return together

        def answer(context: RequestContext, rows: Rows, from_client: bool) -> Awaitable[list[Any]]:
            if len(rows) > 1 and context.served is not None and context.served.rows_alone:
                return answer_singly(together, context, rows, from_client)
            return together(context, rows, from_client)

        return answer

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the hooks' threads."""
        hooks = self._hooks
        if hooks is None:
            return
        yield HOOK_THREADS_BUSY(hooks.busy)
        yield HOOK_QUEUE(hooks.waiting)
        for name, calls in hooks.calls.items():
            yield HOOK_THREAD_CALLS(calls, name)

    def _plain(self, tensors: TensorHandler) -> RowHandler:
        transform, names = self._transform, self._outputs

        async def answer(context: RequestContext, rows: Rows, from_client: bool) -> list[Any]:
            inputs = transform.inputs(rows, from_client=from_client)
            if (limits := _limits(context)) is not None:
                limits.check_inputs(inputs, from_client=from_client)
            context.timings.lap(Stage.PREPROCESS, perf_counter_ns())
            outputs = await tensors(context, inputs, len(rows), names)
            values = transform.answers(outputs, len(rows))
            context.timings.lap(Stage.POSTPROCESS, perf_counter_ns())
            return values

        return answer

    def _hooked(self, hooks: Hooks, tensors: TensorHandler) -> RowHandler:
        transform, names = self._transform, self._outputs

        async def run(context: RequestContext, rows: Rows, from_client: bool) -> list[Any]:
            count = len(rows)
            if count <= hooks.preprocess.inline_rows:
                try:
                    inputs = transform.inputs(rows, from_client=from_client)
                finally:
                    ran_inline(hooks.preprocess, context, Stage.PREPROCESS, count)
            else:
                inputs = await hooks.inputs(context, rows, from_client)
            if (limits := _limits(context)) is not None:
                limits.check_inputs(inputs, from_client=from_client)
            outputs = await tensors(context, inputs, count, names)
            if count > hooks.postprocess.inline_rows:
                return await hooks.answers(context, outputs, count)
            try:
                return transform.answers(outputs, count)
            finally:
                ran_inline(hooks.postprocess, context, Stage.POSTPROCESS, count)

        async def answer(context: RequestContext, rows: Rows, from_client: bool) -> list[Any]:
            named = request_id.set(context.request_id)  # for what the hooks log
            try:
                return await run(context, rows, from_client)
            finally:
                request_id.reset(named)

        return answer


def _limits(context: RequestContext) -> PathLimits | None:
    return context.served.limits if context.served is not None else None


# -- Single rows -------------------------------------------------------------------------------------------------------


# Answers a request of several rows row by row, from preprocessing on, where rows run alone and differ in length.
#
# A hook pads the rows that it is given together to the longest of them, and the padding is part of what the model
# sees.

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
