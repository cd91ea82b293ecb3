"""The manifest's section on what is seen of a running server: figures, and what is done with them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from tailcut.common.units import Duration, Share, Size
from tailcut.manifest.section import Section


class History(Section, frozen=True, kw_only=True):
    """A row per minute of what was served, kept over restarts; `tailcut compare` reads it."""

    path: Annotated[
        str,
        Meta(
            description="SQLite file, relative to the manifest, that ends in .sqlite, on a local disk; empty: "
            ".tailcut/history.sqlite with `tailcut serve`, none where tailcut is mounted or called in the process; "
            "off: none",
            examples=["/var/lib/tailcut/history.sqlite"],
        ),
    ] = ""
    keep_s: Annotated[Duration, Meta(description="age at which rows are removed")] = field(
        default=Duration(35 * 86400.0), name="keep"
    )
    size_bytes: Annotated[
        Size,
        Meta(
            description="maximum size of the file; the oldest rows are removed before it is reached. A model under "
            "steady traffic takes some 4 MiB a day"
        ),
    ] = field(default=Size(256 * 1024 * 1024), name="size")


class Traces(Section, frozen=True, kw_only=True):
    """Traces of single requests: those that were slow, failed, shed or answered stale, and a sample of the others."""

    enabled: Annotated[
        bool, Meta(description="whether traces are kept: the last ones in memory, and all at the collector, if any")
    ] = True
    sample: Annotated[
        Share,
        Meta(
            description="share of other requests that are kept, by their trace id. A request whose caller sampled it "
            "is always kept"
        ),
    ] = Share(0.001)
    keep: Annotated[
        int, Meta(description="traces held in memory, for GET /debug/requests/{trace-id}", ge=16, le=100_000)
    ] = 512
    endpoint: Annotated[
        str,
        Meta(
            description="URL of a collector that takes OTLP over HTTP; /v1/traces is added where it has no path; "
            "empty: what OTEL_EXPORTER_OTLP_ENDPOINT says, if anything",
            examples=["http://localhost:4318"],
        ),
    ] = ""
    headers: Annotated[
        dict[str, str],
        Meta(
            description="headers for the collector; ${NAME} is taken from the environment",
            examples=[{"authorization": "Bearer ${COLLECTOR_TOKEN}"}],
        ),
    ] = field(default_factory=dict)
    queue: Annotated[
        int,
        Meta(description="traces that wait for the collector; further ones are dropped and counted", ge=16, le=100_000),
    ] = 2048


class Observe(Section, frozen=True, kw_only=True):
    """What is seen of all models of the server."""

    window_s: Annotated[
        Duration,
        Meta(
            description="time that the percentiles on /metrics and /ui are of: the last window and the running one; at "
            "least twice your scrape interval"
        ),
    ] = field(default=Duration(60.0), name="window")
    history: History = field(default_factory=History)
    traces: Traces = field(default_factory=Traces)
