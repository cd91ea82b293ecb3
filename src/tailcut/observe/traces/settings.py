"""Where traces are exported to: the manifest, and what OpenTelemetry's environment variables say where it is silent."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tailcut.errors import StartError
from tailcut.manifest.schema.observe import Traces

log = logging.getLogger("tailcut.server")

_PATH = "/v1/traces"
_SPOKEN = "http/protobuf"
_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*)\}")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True)
class ExportSettings:
    """A collector. The exporter takes certificates, time-out, compression and further headers from the environment.

    Attributes:
        url: with its path.
        headers: of the manifest, with their secrets, which no text shows.
        is_asked_for: whether the manifest names it, so that it is an error where it cannot be used.
    """

    url: str
    headers: Mapping[str, str] = field(repr=False)
    is_asked_for: bool


def export_settings(traces: Traces, environment: Mapping[str, str] = os.environ) -> ExportSettings | None:
    """Return the collector that a manifest or the environment names; None where neither does.

    Raises:
        StartError: the manifest's endpoint is no URL, or a header is wrong or refers to a variable that is not set.
    """
    if traces.endpoint == "off":
        return None
    if traces.endpoint:
        url, problem = _url(traces.endpoint)
        if problem:
            hint = "such as http://localhost:4318"
            raise StartError(f"observe.traces.endpoint is {traces.endpoint!r}: {problem}", hint=hint)
        headers = {name.lower(): _filled(name, value, environment) for name, value in traces.headers.items()}
        return ExportSettings(url, headers, is_asked_for=True)
    exporters = environment.get("OTEL_TRACES_EXPORTER") or "otlp"
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or "otlp" not in exporters.split(","):
        return None
    name, text = _of_signal(environment, "ENDPOINT")
    if not text:
        return None
    # The general variable is of all signals: each adds its path. That of traces is the URL as it is.
    url, problem = _url(text if "TRACES" in name else text.rstrip("/") + _PATH)
    protocol = _of_signal(environment, "PROTOCOL")[1] or _SPOKEN
    if protocol != _SPOKEN:
        problem = f"expected the protocol {_SPOKEN}, but OTEL_EXPORTER_OTLP_PROTOCOL asks for {protocol}"
    if problem:
        log.warning(
            "traces are not exported: %s is %r: %s; set observe.traces.endpoint to use another collector",
            name,
            text,
            problem,
        )
        return None
    return ExportSettings(url, {}, is_asked_for=False)


def _of_signal(environment: Mapping[str, str], what: str) -> tuple[str, str]:
    """Return the name and value of a variable of the OTLP exporter: that of traces, else that of all signals."""
    name = f"OTEL_EXPORTER_OTLP_TRACES_{what}"
    if not environment.get(name):
        name = f"OTEL_EXPORTER_OTLP_{what}"
    return name, environment.get(name, "")


def _url(text: str) -> tuple[str, str]:
    """Return a URL with its path, and what is wrong with it."""
    try:
        parts = urlsplit(text)
        is_whole = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole:
        return "", "expected http:// or https://, a host, and perhaps a port up to 65535"
    if parts.username is not None:
        return "", "credentials belong into headers, not into the URL"
    return parts._replace(path=parts.path if parts.path not in {"", "/"} else _PATH, fragment="").geturl(), ""


def _filled(name: str, text: str, environment: Mapping[str, str]) -> str:
    for variable in _REFERENCE.findall(text):
        if variable not in environment:
            raise StartError(
                f"observe.traces.headers.{name}: the environment variable {variable} is not set",
                hint=f"export {variable}=..., or leave the header out",
            )
    value = _REFERENCE.sub(lambda found: environment[found[1]], text).strip()
    if not (_TOKEN.fullmatch(name) and value.isascii() and value.isprintable()):
        raise StartError(
            f"observe.traces.headers.{name} cannot be sent: a header's name has letters, digits and '-', its value "
            "printable ASCII",
            hint="correct it, or the environment variable that it refers to",
        )
    return value
