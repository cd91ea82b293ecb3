"""Where traces are exported to: the manifest, and what OpenTelemetry's environment variables say where it is silent.

Source: OpenTelemetry specification, "OpenTelemetry Protocol Exporter" and "SDK environment variables".
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from tailcut.errors import StartError
from tailcut.manifest.schema.observe import Traces
from tailcut.observe.traces import attributes as names
from tailcut.version import version

log = logging.getLogger("tailcut.server")

PATH = "/v1/traces"
_OFF = "off"
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_HEADERS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_SPOKEN = "http/protobuf"
_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*)\}")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LEAST_TIMEOUT_S, _MOST_TIMEOUT_S = 0.5, 10.0


@dataclass(frozen=True)
class ExportSettings:
    """A collector.

    Attributes:
        url: with its path.
        headers: with their secrets, which no text shows.
        timeout_s: of one request to it: less than the drain of the server takes.
        is_asked_for: whether the manifest names it, so that it is an error where it cannot be used.
    """

    url: str
    headers: Mapping[str, str] = field(repr=False)
    timeout_s: float
    is_asked_for: bool


def export_settings(
    traces: Traces, drain_s: float, environment: Mapping[str, str] = os.environ
) -> ExportSettings | None:
    """Return the collector that a manifest or the environment names; None where neither does.

    Raises:
        StartError: the manifest's endpoint is no URL, or a header is wrong or refers to a variable that is not set.
    """
    if traces.endpoint == _OFF:
        return None
    timeout_s = min(max(0.8 * drain_s, _LEAST_TIMEOUT_S), _MOST_TIMEOUT_S)
    if traces.endpoint:
        url, problem = _url(traces.endpoint)
        if problem:
            raise StartError(
                f"observe.traces.endpoint is {traces.endpoint!r}: {problem}", hint="such as http://localhost:4318"
            )
        headers = _from_environment(environment) | {
            name.lower(): _filled(name, value, environment) for name, value in traces.headers.items()
        }
        return ExportSettings(url, headers, timeout_s, is_asked_for=True)
    url, problem = _environment_url(environment)
    if problem:
        log.warning("traces are not exported: %s; set observe.traces.endpoint to use another collector", problem)
        return None
    return ExportSettings(url, _from_environment(environment), timeout_s, is_asked_for=False) if url else None


def resource_attributes(name: str, environment: Mapping[str, str] = os.environ) -> dict[str, str | int]:
    """Return what describes this process to a collector.

    Args:
        name: of the service, unless the environment gives it another.
    """
    found: dict[str, str | int] = {
        names.SERVICE_NAME: name,
        names.SERVICE_INSTANCE: str(uuid4()),
        names.HOST_NAME: socket.gethostname(),
        names.PROCESS_ID: os.getpid(),
    }
    found |= _pairs(environment.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    if environment.get("OTEL_SERVICE_NAME"):
        found[names.SERVICE_NAME] = environment["OTEL_SERVICE_NAME"]
    found |= {names.SDK_NAME: "tailcut", names.SDK_LANGUAGE: "python", names.SDK_VERSION: version()}
    return found


def _environment_url(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the URL that the environment names, and why it cannot be used; both empty where it names none."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return "", ""
    if environment.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return "", ""
    name = _TRACES_ENDPOINT if environment.get(_TRACES_ENDPOINT) else _ENDPOINT
    text = environment.get(name, "")
    if not text:
        return "", ""
    protocol = next((found for each in _PROTOCOLS if (found := environment.get(each))), _SPOKEN)
    if protocol != _SPOKEN:
        return "", f"{name} is set, but for the protocol {protocol}; tailcut speaks {_SPOKEN}"
    # The general variable is of all signals: each adds its path. That of traces is the URL as it is.
    url, problem = _url(text if name == _TRACES_ENDPOINT else text.rstrip("/") + PATH)
    return url, f"{name} is {text!r}: {problem}" if problem else ""


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
    return parts._replace(path=parts.path if parts.path not in {"", "/"} else PATH, fragment="").geturl(), ""


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    text = next((found for each in _HEADERS if (found := environment.get(each))), "")
    return {name.lower(): value for name, value in _pairs(text).items() if _is_header(name, value)}


def _pairs(text: str) -> dict[str, str]:
    """Read "name=value,name=value", values with %-escapes, after W3C Baggage; what is malformed is left out."""
    found = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if equals and name.strip():
            found[name.strip()] = unquote(value.strip())
    return found


def _filled(name: str, text: str, environment: Mapping[str, str]) -> str:
    for variable in _REFERENCE.findall(text):
        if variable not in environment:
            raise StartError(
                f"observe.traces.headers.{name}: the environment variable {variable} is not set",
                hint=f"export {variable}=..., or leave the header out",
            )
    value = _REFERENCE.sub(lambda found: environment[found[1]], text).strip()
    if not _is_header(name, value):
        raise StartError(
            f"observe.traces.headers.{name} cannot be sent: a header's name has letters, digits and '-', its value "
            "printable ASCII",
            hint="correct it, or the environment variable that it refers to",
        )
    return value


def _is_header(name: str, value: str) -> bool:
    return bool(_TOKEN.fullmatch(name)) and value.isascii() and value.isprintable()
