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
            description="auto: wait for more rows only where that lowers predicted latency; fixed: wait by "
            "preferred_rows and max_queue_delay, as in Triton's dynamic batcher; off: one request per batch"
        ),
    ] = "auto"
    max_rows: Annotated[int, Meta(description="maximum number of rows in a batch", ge=1)] = 32
    order: Annotated[
        Literal["slo", "deadline"],
        Meta(
            description="slo: requests that can still meet slo.p95 or slo.p99 go first; during sustained overload, "
            "requests that would miss it are shed (429); deadline: the earliest deadline goes first, and only requests "
            "that would miss their deadline are shed"
        ),
    ] = "slo"
    preferred_rows: Annotated[
        tuple[int, ...], Meta(description="with mode fixed: batch sizes that start without waiting", examples=[(8, 16)])
    ] = ()
    max_queue_delay_s: Annotated[
        Duration, Meta(description="with mode fixed: maximum wait for a preferred or full batch", examples=["500us"])
    ] = field(default=Duration(0.0), name="max_queue_delay")
    max_queue_rows: Annotated[
        int, Meta(description="maximum number of queued rows; further requests are shed (429)", ge=1)
    ] = 1024
    max_queue_bytes: Annotated[
        Size, Meta(description="maximum size of queued tensors; further requests are shed (429)")
    ] = Size(256 * 1024 * 1024)
    tenant_share: Annotated[
        Share, Meta(description="maximum share of the queue for one tenant (see server.tenant_header)")
    ] = Share(1.0)
    tenant_rate: Annotated[
        float, Meta(description="maximum rows per second of one tenant; 0: no limit", ge=0, examples=[100.0])
    ] = 0.0
