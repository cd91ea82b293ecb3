"""The end of the request path: rows wait for a batch and run in it."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator, Sequence, Sized
from time import perf_counter_ns

from tailcut.common.tensors import Arrays
from tailcut.common.timings import Stage
from tailcut.common.validation import InputSpec
from tailcut.models.batch_item import join, ran_ns
from tailcut.models.dispatch.dispatcher import Dispatcher
from tailcut.observe.path_metrics import OVERLOADED, QUEUE_AT_RISK, QUEUE_ROWS, RUNNING_ROWS
from tailcut.observe.sample import Sample, counter
from tailcut.pipeline.request_context import RequestContext

RETRIES = counter("tailcut_batch_retries", "Failed batches whose requests were retried one by one.")
RETRY_RUNS = counter(
    "tailcut_batch_retry_runs",
    "Requests, or parts of large ones, that were retried alone because their batch failed.",
    "outcome",
)


class BatchingStage:
    """Hands rows to the scheduler of the variant that admitted the request, and waits for their outputs.

    Args:
        specs: forms of the inputs. Where all are fixed, any requests may share a batch.
        outputs: names of all outputs.
        in_flight: requests that are being answered or about to be. One that is alone does not wait for the end of the
            loop's iteration to see which others come.
    """

    def __init__(self, specs: Sequence[InputSpec], outputs: tuple[str, ...], in_flight: Sized) -> None:
        self._outputs = outputs
        self._in_flight = in_flight
        self._one_lane = all(spec.fixed for spec in specs)

    async def run(self, context: RequestContext, inputs: Arrays, rows: int, outputs: tuple[str, ...]) -> Arrays:
        """Run checked inputs; a ``TensorHandler``.

        Raises:
            Shed, DeadlineExceeded, NotReady, InferenceError: see ``Dispatcher.submit``.
            CancelledError: the client is gone.
        """
        if context.gone:
            raise asyncio.CancelledError  # it left between two waits
        assert context.served is not None, "a request is admitted before it runs"
        dispatcher = context.served.dispatcher
        at_once = len(self._in_flight) == 1
        if at_once and (done := _run_now(dispatcher, context, inputs, rows, outputs)) is not None:
            return done
        lane, due_ns = self._lane(inputs, outputs), context.deadline_ns
        since_ns = context.timings.start_ns
        items = dispatcher.submit(
            inputs, rows, outputs, due_ns, lane, at_once, context.priority, context.tenant, since_ns, context.entities
        )
        try:
            if len(items) == 1:
                context.waiting = future = items[0].future
                return await future
            context.waiting = parts = asyncio.gather(*[item.future for item in items])
            return join(await parts)
        except BaseException:
            # A request that was split ends as a whole: what has not started of it is not computed.
            dispatcher.cancel(items)
            raise
        finally:
            context.timings.waited(ran_ns(items), perf_counter_ns())
            context.waiting = None
            if context.tracer is not None:
                context.batches = [item.batch for item in items]

    def _lane(self, inputs: Arrays, outputs: tuple[str, ...]) -> Hashable:
        """Return what must be equal for requests to share a batch."""
        if self._one_lane:
            return None if outputs is self._outputs else outputs
        return outputs, tuple([array.shape[1:] for array in inputs.values()])


def _run_now(
    dispatcher: Dispatcher, context: RequestContext, inputs: Arrays, rows: int, outputs: tuple[str, ...]
) -> Arrays | None:
    try:
        done = dispatcher.run_now(inputs, rows, outputs, context.deadline_ns, context.entities)
    except BaseException:
        context.timings.lap(Stage.INFER, perf_counter_ns())
        raise
    if done is None:
        return None
    context.timings.waited(done[1], perf_counter_ns())
    return done[0]


def dispatcher_samples(dispatcher: Dispatcher) -> Iterator[Sample]:
    """Yield the samples of a variant's queue and executors."""
    scheduler, batch_retry = dispatcher.scheduler, dispatcher.batch_retry
    yield QUEUE_ROWS(scheduler.waiting.rows)
    yield RUNNING_ROWS(dispatcher.running.rows)
    yield QUEUE_AT_RISK(scheduler.waiting.late_entries)
    overload = scheduler.overload
    yield OVERLOADED(float(overload is not None and overload.is_seen(perf_counter_ns())))
    yield RETRIES(batch_retry.batches)
    for outcome, count in (("answered", batch_retry.answered), ("failed", batch_retry.failed)):
        yield RETRY_RUNS(count, outcome)
