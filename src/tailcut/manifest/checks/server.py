"""Combinations of server settings that no single key forbids and that still cannot work. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tailcut.errors import ManifestError
from tailcut.manifest.schema import Deployment

_ORIGIN = re.compile(r"\*|https?://[^/\s@?#]+")
"""Source: RFC 6454, 6.2: a scheme, a host and a port or none; no path."""


def server_problems(deployment: Deployment) -> Iterator[ManifestError]:
    """Yield what cannot work of TLS, CORS, tokens, connections and what is observed."""
    server = deployment.server
    if not server.idle_s:
        yield ManifestError(
            "server.idle is 0s, so no client could send a request",
            hint="leave it out, or set it above the idle timeout of your load balancer",
        )
    if deployment.observe.window_s < 1:
        yield ManifestError(
            f"observe.window is {deployment.observe.window_s:g}s, below 1s: too few requests for a p99",
            hint="leave it out, or set it to at least twice your scrape interval",
        )
    if not server.max_body_bytes:
        yield ManifestError(
            "server.max_body is 0 bytes: every prediction request would be refused",
            hint='leave it out, or set it to the largest body to accept, such as "16MiB"',
        )
    if bool(server.tls_cert) != bool(server.tls_key):
        given, missing = ("tls_cert", "tls_key") if server.tls_cert else ("tls_key", "tls_cert")
        yield ManifestError(
            f"server.{given} is set but server.{missing} is not",
            hint=f"set server.{missing} too, or remove server.{given}",
        )
    for origin in server.cors_origins:
        if not _ORIGIN.fullmatch(origin):
            yield ManifestError(
                f'server.cors_origins: "{origin}" is not an origin',
                hint='write scheme, host and port as browsers send them, such as "https://app.example.com", or "*"',
            )
    if server.tokens and server.tokens == server.management_tokens:
        yield ManifestError(
            f'server.management_tokens: "{server.tokens}" is also the file of server.tokens, so every client of the '
            "model could unload it",
            hint="put the management tokens in a separate file",
        )
