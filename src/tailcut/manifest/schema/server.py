"""The manifest's section on the server: addresses, limits, who may do what, and what is written of it."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from tailcut.common.units import Duration, Share, Size
from tailcut.manifest.section import Section


class Server(Section, frozen=True, kw_only=True):
    """The HTTP server."""

    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(description="port to listen on", ge=0, le=65535)] = 8700
    grpc_port: Annotated[
        int, Meta(description="port to listen on for gRPC, beside HTTP; 0: no gRPC", ge=0, le=65535, examples=[8701])
    ] = 0
    max_body_bytes: Annotated[Size, Meta(description="largest request body; refused before it is buffered")] = field(
        default=Size(16 * 1024 * 1024), name="max_body"
    )
    max_arriving_bytes: Annotated[
        Size,
        Meta(
            description="most bytes of request bodies that are arriving at the same time; half of it for declared "
            "lengths, half for what has come beyond those; more is 429; at least twice max_body"
        ),
    ] = field(default=Size(256 * 1024 * 1024), name="max_arriving")
    max_stream_bytes: Annotated[
        Size,
        Meta(description="most bytes of one streamed answer: a client that does not read may hold as much memory"),
    ] = field(default=Size(8 * 1024 * 1024), name="max_stream")
    drain_s: Annotated[
        Duration, Meta(description="after SIGTERM: not ready and Connection: close on replies for this long")
    ] = field(default=Duration(3.0), name="drain")
    kill_s: Annotated[
        Duration,
        Meta(description="after SIGTERM: killed at the latest after this long; at least drain plus slo.timeout"),
    ] = field(default=Duration(15.0), name="kill")
    idle_s: Annotated[
        Duration,
        Meta(
            description="longest that a connection may take to send a request's head, be idle between requests, or "
            "take nothing of a reply; above the 60 s of most load balancers, so that none sends into a connection that "
            "is being closed"
        ),
    ] = field(default=Duration(75.0), name="idle")
    max_timeout_s: Annotated[Duration, Meta(description="longest deadline that a client may ask for")] = field(
        default=Duration(60.0), name="max_timeout"
    )
    tenant_header: Annotated[
        str, Meta(description="request header that names the tenant; empty: one tenant", examples=["x-tenant"])
    ] = ""
    tokens: Annotated[
        str,
        Meta(
            description="file with the SHA-256 of the bearer tokens that may use the model, from the manifest's "
            "folder; empty: everybody may",
            examples=["tokens"],
        ),
    ] = ""
    management_tokens: Annotated[
        str,
        Meta(
            description="file with the SHA-256 of the bearer tokens that may load and unload models; empty: no token "
            "is needed on a loopback host, and nobody may elsewhere",
            examples=["management-tokens"],
        ),
    ] = ""
    tls_cert: Annotated[
        str,
        Meta(description="certificate chain in PEM, from the manifest's folder; empty: no TLS", examples=["cert.pem"]),
    ] = ""
    tls_key: Annotated[
        str, Meta(description="private key of tls_cert in PEM, without a password", examples=["key.pem"])
    ] = ""
    cors_origins: Annotated[
        tuple[str, ...],
        Meta(
            description="origins of web pages that may call this server; '*': all; none: CORS is off",
            examples=[("https://app.example.com",)],
        ),
    ] = ()
    compress_bytes: Annotated[
        Size,
        Meta(description="replies of at least this size are gzipped for clients that accept it; 0B: none is"),
    ] = field(default=Size(0), name="compress_from")
    log: Annotated[
        Literal["text", "json"],
        Meta(
            description="'text' or 'json': form of the lines that `tailcut serve` and its executors write to stderr; "
            "an application that tailcut is mounted in configures its own logging"
        ),
    ] = "text"
    access_log: Annotated[
        str, Meta(description="'stderr' or a file for one line of JSON per request that is written; empty: none")
    ] = ""
    access_log_share: Annotated[
        Share, Meta(description="share of requests in the access log, beside all that failed or were slow")
    ] = Share(0.01)
    access_log_slow_s: Annotated[
        Duration | None,
        Meta(
            description="requests that take longer are always in the access log; none: slo.p99, else slo.timeout",
            examples=["100ms"],
        ),
    ] = field(default=None, name="access_log_slow")
    backlog: Annotated[
        int, Meta(description="new connections the kernel holds until the server accepts them", ge=128)
    ] = 1024
    scheduling: Annotated[
        Literal["normal", "batch"],
        Meta(
            description="'batch': threads of the server do not interrupt each other (SCHED_BATCH): higher throughput "
            "and lower p99 on cores that it has to itself; other processes on them hold it up for milliseconds"
        ),
    ] = "normal"
    max_connections: Annotated[
        int, Meta(description="most open connections, idle ones too; further ones wait in the backlog", ge=1)
    ] = 16384
