"""The manifest's section on what is seen of a running server: figures, and what is done with them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from tailcut.common.units import Duration, Share, Size
from tailcut.manifest.section import Section

AlertName = Literal[
    "p95_growth",
    "hit_rate",
    "burn_rate",
    "errors",
    "shed",
    "stale",
    "drift",
    "memory_leak",
    "descriptor_leak",
    "thread_leak",
    "gpu_memory_leak",
    "cpu_throttled",
    "gpu_hot",
]
"""Alerts that can be switched off; the table ``observe.alerts.rules`` says which of them the server evaluates."""


class HistorySettings(Section, frozen=True, kw_only=True):
    """A row per minute of what was served, kept over restarts; `tailcut compare` reads it."""

    path: Annotated[
        str,
        Meta(
            description="SQLite file, relative to the manifest, that ends in .sqlite, on a local disk, for this server "
            "alone; empty: "
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
            "steady traffic takes some 8 MiB a day; comparing with last week needs 8 days of all models"
        ),
    ] = field(default=Size(1 << 30), name="size")


class Alerts(Section, frozen=True, kw_only=True):
    """Alerts that the server evaluates once a minute, and limits of the rules that are exported for Prometheus."""

    enabled: Annotated[bool, Meta(description="whether the server evaluates alerts")] = True
    off: Annotated[
        tuple[AlertName, ...],
        Meta(
            description="alerts that are switched off, in the server and among the exported rules",
            examples=[("hit_rate",)],
        ),
    ] = ()
    webhook: Annotated[
        str,
        Meta(
            description="URL that is sent firing and resolved alarms; https, or http with allow_private. Redirects are "
            "not followed; empty: none",
            examples=["https://hooks.example.com/tailcut"],
        ),
    ] = ""
    secret_file: Annotated[
        str,
        Meta(
            description="file with the webhook's secret (whsec_ and base64 of 24 to 64 bytes), relative to the "
            "manifest",
            examples=["webhook-secret"],
        ),
    ] = ""
    secret_env: Annotated[
        str,
        Meta(
            description="environment variable with the webhook's secret, such as WEBHOOK_SECRET, instead of secret_file"
        ),
    ] = ""
    allow_private: Annotated[
        bool,
        Meta(description="whether the webhook may have a private, link-local or loopback address, and use http"),
    ] = False
    window_s: Annotated[
        Duration,
        Meta(description="window of hit rates and of the shares of errors, shed requests, stale values, throttling"),
    ] = field(default=Duration(900.0), name="window")
    p95_growth: Annotated[Share, Meta(description="growth of p95 over the same hour a week ago; needs a history")] = (
        Share(0.15)
    )
    p95_requests: Annotated[
        int, Meta(description="minimum answered requests in both hours that are compared", ge=100)
    ] = 1000
    hit_rate: Annotated[Share, Meta(description="minimum hit rate of a feature group")] = Share(0.7)
    hit_rate_lookups: Annotated[
        int, Meta(description="minimum look-ups in the window, for hit_rate and stale", ge=1)
    ] = 1000
    burn_requests: Annotated[
        int,
        Meta(description="minimum bad requests in the long window of a burn rate: few of them do not page", ge=2),
    ] = 10
    errors: Annotated[Share, Meta(description="maximum share of failed requests")] = Share(0.01)
    shed: Annotated[
        Share,
        Meta(description="maximum share of requests that were shed or timed out in the queue; exported rule only"),
    ] = Share(0.01)
    share_requests: Annotated[int, Meta(description="minimum requests in the window, for errors and shed", ge=1)] = 100
    stale: Annotated[Share, Meta(description="maximum share of stale values of a feature group")] = Share(0.05)
    leak_growth: Annotated[
        Share,
        Meta(
            description="steady growth of memory within a day that is alarmed, less if its limit would be reached "
            "within another; in the exported rules, of open files, threads and GPU memory within 6 hours"
        ),
    ] = Share(0.25)
    throttled: Annotated[
        Share,
        Meta(
            description="maximum share of CPU periods in which the control group's quota was used up; exported rule "
            "only"
        ),
    ] = Share(0.1)
    gpu_celsius: Annotated[
        float, Meta(description="maximum temperature of a GPU in degrees Celsius; exported rule only", gt=0, le=200)
    ] = 87.0


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
            "empty: what OTEL_EXPORTER_OTLP_ENDPOINT says, if anything; off: none",
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
    history: HistorySettings = field(default_factory=HistorySettings)
    alerts: Alerts = field(default_factory=Alerts)
    traces: Traces = field(default_factory=Traces)
