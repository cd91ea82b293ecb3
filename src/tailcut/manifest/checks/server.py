"""Combinations of server settings that no single key forbids and that still cannot work. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from tailcut.common.units import format_duration, format_size
from tailcut.errors import ManifestError
from tailcut.manifest.checks.rules import Rule, broken
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
    server, window_s = deployment.server, deployment.observe.window_s
    given, missing = ("tls_cert", "tls_key") if server.tls_cert else ("tls_key", "tls_cert")
    yield from broken(
        (
            not server.idle_s,
            "server.idle is 0s, so no client could send a request",
            "leave it out, or set it above the idle timeout of your load balancer",
        ),
        (
            window_s < 1,
            f"observe.window is {format_duration(window_s)}, below 1s: too few requests for a p99",
            "leave it out, or set it to at least twice your scrape interval",
        ),
        *_history_rules(deployment.observe.history),
        *_alert_rules(deployment.observe.alerts),
        (
            not server.max_body_bytes,
            "server.max_body is 0 bytes: every prediction request would be refused",
            'leave it out, or set it to the largest body to accept, such as "16MiB"',
        ),
        (
            bool(server.tls_cert) != bool(server.tls_key),
            f"server.{given} is set but server.{missing} is not",
            f"set server.{missing} too, or remove server.{given}",
        ),
        *(
            (
                not _ORIGIN.fullmatch(origin),
                f'server.cors_origins: "{origin}" is not an origin',
                'write scheme, host and port as browsers send them, such as "https://app.example.com", or "*"',
            )
            for origin in server.cors_origins
        ),
        (
            bool(server.tokens) and server.tokens == server.management_tokens,
            f'server.management_tokens: "{server.tokens}" is also the file of server.tokens, so every client of the '
            "model could unload it",
            "put the management tokens in a separate file",
        ),
    )


def _history_rules(history: HistorySettings) -> tuple[Rule, ...]:
    return (
        (
            # A damaged history is renamed: no other file may be taken for one.
            history.path not in {"", "off"} and not history.path.endswith(".sqlite"),
            f'observe.history.path is "{history.path}", which does not end in .sqlite',
            'name a file such as "history.sqlite", or write "off"',
        ),
        (
            history.keep_s < _LEAST_KEPT_S,
            f"observe.history.keep is {format_duration(history.keep_s)}, below 1h",
            'write for example "5w", or set observe.history.path to "off"',
        ),
        (
            history.size_bytes < _LEAST_BYTES,
            f"observe.history.size is {format_size(history.size_bytes)}, below 1MiB",
            'write for example "1GiB", or set observe.history.path to "off"',
        ),
    )


def _alert_rules(alerts: Alerts) -> Iterator[Rule]:
    schemes = ("https://", "http://") if alerts.allow_private else ("https://",)
    host = _host(alerts.webhook)
    yield (
        bool(alerts.webhook) and not (alerts.webhook.startswith(schemes) and host),
        f'observe.alerts.webhook is "{alerts.webhook}", expected {" or ".join(schemes)}, a host, and '
        "perhaps a port up to 65535",
        "correct the URL; http is for receivers in your own network: observe.alerts.allow_private = true",
    )
    yield (
        bool(host) and not alerts.allow_private and _is_private(host),
        f"observe.alerts.webhook has the host {host}, which is not public",
        "set observe.alerts.allow_private = true for a receiver in your own network",
    )
    yield (
        bool(alerts.webhook) and bool(alerts.secret_file) == bool(alerts.secret_env),
        f"observe.alerts.webhook needs one secret, but {'two are' if alerts.secret_file else 'none is'} named",
        "set observe.alerts.secret_file or observe.alerts.secret_env",
    )
    yield (
        not 60 <= alerts.window_s <= 3600,
        f"observe.alerts.window is {format_duration(alerts.window_s)}; it must be between 1m and 1h",
        "leave it out for 15m",
    )
    for name, judged in _GROWTHS.items():
        yield (
            not getattr(alerts, name) and not judged <= set(alerts.off),
            f"observe.alerts.{name} is 0, which every fluctuation exceeds",
            "leave it out, write for example 0.1, or switch the alert off in observe.alerts.off",
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
