"""Combinations of server settings that no single key forbids and that still cannot work. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from tailcut.common.units import format_duration, format_size
from tailcut.errors import ManifestError
from tailcut.manifest.schema import Alerts, Deployment, HistorySettings
from tailcut.system.public_address import is_public

_LEAST_KEPT_S, _LEAST_BYTES = 3600, 1024 * 1024
_GROWTHS = {
    "p95_growth": {"p95_growth"},
    "leak_growth": {"memory_leak", "descriptor_leak", "thread_leak", "gpu_memory_leak"},
}
"""Settings of a growth, and the alerts that they are of."""
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
            f"observe.window is {format_duration(deployment.observe.window_s)}, below 1s: too few requests for a p99",
            hint="leave it out, or set it to at least twice your scrape interval",
        )
    yield from _history_problems(deployment.observe.history)
    yield from _alert_problems(deployment.observe.alerts)
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


def _history_problems(history: HistorySettings) -> Iterator[ManifestError]:
    if history.path not in {"", "off"} and not history.path.endswith(".sqlite"):
        # A damaged history is renamed: no other file may be taken for one.
        yield ManifestError(
            f'observe.history.path is "{history.path}", which does not end in .sqlite',
            hint='name a file such as "history.sqlite", or write "off"',
        )
    if history.keep_s < _LEAST_KEPT_S:
        yield ManifestError(
            f"observe.history.keep is {format_duration(history.keep_s)}, below 1h",
            hint='write for example "5w", or set observe.history.path to "off"',
        )
    if history.size_bytes < _LEAST_BYTES:
        yield ManifestError(
            f"observe.history.size is {format_size(history.size_bytes)}, below 1MiB",
            hint='write for example "1GiB", or set observe.history.path to "off"',
        )


def _alert_problems(alerts: Alerts) -> Iterator[ManifestError]:
    schemes = ("https://", "http://") if alerts.allow_private else ("https://",)
    host = _host(alerts.webhook)
    if alerts.webhook and not (alerts.webhook.startswith(schemes) and host):
        yield ManifestError(
            f'observe.alerts.webhook is "{alerts.webhook}", expected {" or ".join(schemes)}, a host, and '
            "perhaps a port up to 65535",
            hint="correct the URL; http is for receivers in your own network: observe.alerts.allow_private = true",
        )
    if host and not alerts.allow_private and _is_private(host):
        yield ManifestError(
            f"observe.alerts.webhook has the host {host}, which is not public",
            hint="set observe.alerts.allow_private = true for a receiver in your own network",
        )
    if alerts.webhook and bool(alerts.secret_file) == bool(alerts.secret_env):
        yield ManifestError(
            "observe.alerts.webhook needs one secret, "
            + ("but two are named" if alerts.secret_file else "but none is named"),
            hint="set observe.alerts.secret_file or observe.alerts.secret_env",
        )
    if not 60 <= alerts.window_s <= 3600:
        yield ManifestError(
            f"observe.alerts.window is {format_duration(alerts.window_s)}; it must be between 1m and 1h",
            hint="leave it out for 15m",
        )
    for name, judged in _GROWTHS.items():
        if not getattr(alerts, name) and not judged <= set(alerts.off):
            yield ManifestError(
                f"observe.alerts.{name} is 0, which every fluctuation exceeds",
                hint="leave it out, write for example 0.1, or switch the alert off in observe.alerts.off",
            )


def _host(url: str) -> str:
    """Return the host of a URL; empty where it has none, or a port that is none."""
    try:
        parts = urlsplit(url)
        return parts.hostname if parts.hostname and parts.port != 0 else ""
    except ValueError:
        return ""


def _is_private(host: str) -> bool:
    """Whether a host is private by its text alone; the webhook judges every address when it is sent."""
    try:
        return not is_public(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
