"""The manifest's section on the server: addresses, limits, who may do what, and what is written of it."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from tailcut.common.units import Duration, Share, Size
from tailcut.manifest.section import Section


class ServerSettings(Section, frozen=True, kw_only=True):
    """The HTTP server."""

    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(description="port to listen on", ge=0, le=65535)] = 8700
    grpc_port: Annotated[
        int, Meta(description="port to listen on for gRPC; 0: no gRPC", ge=0, le=65535, examples=[8701])
    ] = 0
    max_body_bytes: Annotated[
        Size, Meta(description="maximum size of a request body; a larger one is refused before it is buffered")
    ] = field(default=Size(16 * 1024 * 1024), name="max_body")
    max_arriving_bytes: Annotated[
        Size,
        Meta(
            description="maximum size of all request bodies being received: half for declared lengths, half for bytes "
            "received of further bodies. Requests beyond it get 429. At least twice max_body"
        ),
    ] = field(default=Size(256 * 1024 * 1024), name="max_arriving")
    max_stream_bytes: Annotated[
        Size,
        Meta(
            description="maximum size of a streamed answer, and so of the memory that a client which does not read can "
            "hold"
        ),
    ] = field(default=Size(8 * 1024 * 1024), name="max_stream")
    drain_s: Annotated[
        Duration,
        Meta(description="drain time after SIGTERM: the server is not ready, and replies carry Connection: close"),
    ] = field(default=Duration(3.0), name="drain")
    kill_s: Annotated[
        Duration,
        Meta(description="time after SIGTERM at which the server is killed; at least drain plus slo.timeout"),
    ] = field(default=Duration(15.0), name="kill")
    idle_s: Annotated[
        Duration,
        Meta(
            description="maximum time for a connection to send a request head, to be idle between requests, or to read "
            "nothing of a reply. Keep it above your load balancer's idle timeout (often 60 s), so that it never sends "
            "into a closing connection"
        ),
    ] = field(default=Duration(75.0), name="idle")
    max_timeout_s: Annotated[Duration, Meta(description="maximum deadline that a client may set")] = field(
        default=Duration(60.0), name="max_timeout"
    )
    tenant_header: Annotated[
        str, Meta(description="request header that names the tenant; empty: one tenant", examples=["x-tenant"])
    ] = ""
    tokens: Annotated[
        str,
        Meta(
            description="file with the SHA-256 of the bearer tokens that may use the model, relative to the manifest; "
            "empty: no token is needed",
            examples=["tokens"],
        ),
    ] = ""
    management_tokens: Annotated[
        str,
        Meta(
            description="file with the SHA-256 of the bearer tokens that may load and unload models; empty: no token "
            "is needed on a loopback host, and loading and unloading is off elsewhere",
            examples=["management-tokens"],
        ),
    ] = ""
    tls_cert: Annotated[
        str,
        Meta(description="certificate chain in PEM, relative to the manifest; empty: no TLS", examples=["cert.pem"]),
    ] = ""
    tls_key: Annotated[
        str, Meta(description="private key of tls_cert in PEM, without a password", examples=["key.pem"])
    ] = ""
    cors_origins: Annotated[
        tuple[str, ...],
        Meta(
            description="origins of web pages that may call this server; '*': all; empty: CORS is off",
            examples=[("https://app.example.com",)],
        ),
    ] = ()
    compress_bytes: Annotated[
        Size,
        Meta(description="minimum size of replies that are gzipped for clients that accept it; 0B: no compression"),
    ] = field(default=Size(0), name="compress_from")
    log: Annotated[
        Literal["text", "json"],
        Meta(
            description="format of the log lines of `tailcut serve` and its executors on stderr; an application in "
            "which tailcut is mounted configures its own logging"
        ),
    ] = "text"
    access_log: Annotated[
        str,
        Meta(description="access log with one JSON line per logged request: 'stderr' or a file; empty: no access log"),
    ] = ""
    access_log_share: Annotated[
        Share, Meta(description="share of requests in the access log, in addition to all failed and slow ones")
    ] = Share(0.01)
    access_log_slow_s: Annotated[
        Duration | None,
        Meta(
            description="requests slower than this are always in the access log; default: slo.p99, else slo.timeout",
            examples=["100ms"],
        ),
    ] = field(default=None, name="access_log_slow")
    backlog: Annotated[
        int,
        Meta(
            description="maximum number of new connections that the kernel queues before the server accepts them",
            ge=128,
        ),
    ] = 1024
    scheduling: Annotated[
        Literal["normal", "batch"],
        Meta(
            description="'batch': threads of the server do not interrupt each other (SCHED_BATCH): higher throughput "
            "and lower p99 on cores that it has to itself; other processes on them hold it up for milliseconds"
        ),
    ] = "normal"
    max_connections: Annotated[
        int,
        Meta(
            description="maximum number of open connections, idle ones included; further ones wait in the backlog", ge=1
        ),
    ] = 16384
