"""The manifest's batching section."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from tailcut.common.units import Duration, Share, Size
from tailcut.manifest.section import Section


class Batching(Section, frozen=True, kw_only=True):
    """How requests are put together. An idle executor waits for company only where that is a gain, or mode is fixed."""

    mode: Annotated[
        Literal["auto", "fixed", "off"],
        Meta(
            description="auto: by predicted gain; fixed: by preferred_rows and max_queue_delay, as Triton's dynamic "
            "batcher; off: every request is its own batch"
        ),
    ] = "auto"
    max_rows: Annotated[int, Meta(description="most rows in a batch", ge=1)] = 32
    order: Annotated[
        Literal["slo", "deadline"],
        Meta(
            description="slo: what can still meet slo.p95 or slo.p99 goes before what cannot, and while a backlog "
            "stands what would miss it is refused (429); deadline: the earliest deadline goes first, and only what "
            "would miss its deadline is refused"
        ),
    ] = "slo"
    preferred_rows: Annotated[
        tuple[int, ...], Meta(description="with mode fixed: batch sizes that start at once", examples=[(8, 16)])
    ] = ()
    max_queue_delay_s: Annotated[
        Duration, Meta(description="with mode fixed: longest wait for a preferred or full batch", examples=["500us"])
    ] = field(default=Duration(0.0), name="max_queue_delay")
    max_queue_rows: Annotated[int, Meta(description="most rows that wait; above it requests are shed (429)", ge=1)] = (
        1024
    )
    max_queue_bytes: Annotated[
        Size, Meta(description="most bytes of tensors that wait; above it requests are shed (429)")
    ] = Size(256 * 1024 * 1024)
    tenant_share: Annotated[
        Share, Meta(description="most of the queue that one tenant may hold (see server.tenant_header)")
    ] = Share(1.0)
    tenant_rate: Annotated[
        float, Meta(description="most rows a second of one tenant; 0: no limit", ge=0, examples=[100.0])
    ] = 0.0
