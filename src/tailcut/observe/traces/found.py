"""A kept request as it is shown: its spans, and who shared its batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tailcut.common.timings import STAGE_NAMES
from tailcut.observe.traces.kept import Kept
from tailcut.observe.traces.spans import BatchIds, Span, spans_of


class BatchMate(msgspec.Struct, frozen=True):
    """Another kept request that ran in the same batch."""

    trace_id: str
    request_id: str
    reason: str
    duration_ms: float


class FoundTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A kept request.

    Attributes:
        reason: why it was kept; see ``sink.REASONS``.
        started_s: seconds since the epoch.
        stages_ms: milliseconds of each stage that it met, by name.
        spans: its own first; those of requests that it sent to other models last.
        batch_requests, batch_rows: of the batches in which it ran; 0 where it ran in none.
        batch: kept requests that ran in the same batches.
    """

    trace_id: str
    request_id: str
    model: str
    route: str
    code: str
    reason: str
    variant: str
    version: str
    cache: str
    started_s: float
    duration_ms: float
    stages_ms: dict[str, float]
    spans: tuple[Span, ...]
    batch_requests: int
    batch_rows: int
    batch: tuple[BatchMate, ...]


def found_trace(kept: Kept, ids: BatchIds, in_batch: Callable[[int], Sequence[Kept]]) -> FoundTrace:
    """Make what is shown of a kept request."""
    batches = [batch for batch in kept.batches if batch]
    mates = {id(each): each for batch in batches for each in in_batch(batch[0]) if each is not kept}
    return FoundTrace(
        trace_id=f"{kept.trace.trace_id:032x}",
        request_id=kept.request_id,
        model=kept.model,
        route=kept.route,
        code=kept.code,
        reason=kept.reason,
        variant=kept.variant,
        version=kept.version,
        cache=kept.cache,
        started_s=(kept.start_ns + kept.wall_ns) / 1e9,
        duration_ms=kept.total_ns / 1e6,
        stages_ms={name: took_ns / 1e6 for name, took_ns in zip(STAGE_NAMES, kept.ns, strict=True) if took_ns},
        spans=tuple(spans_of(kept, ids, in_batch)),
        batch_requests=max((batch[1] for batch in batches), default=0),
        batch_rows=sum(batch[2] for batch in batches),
        batch=tuple(
            BatchMate(f"{each.trace.trace_id:032x}", each.request_id, each.reason, each.total_ns / 1e6)
            for each in mates.values()
        ),
    )
