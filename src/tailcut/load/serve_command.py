"""The command that serves a model on a loopback port, with the models that compute its features beside it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tailcut.manifest.subject import CommandSubject

_SETTINGS = (
    "server.drain=100ms",
    "server.grpc_port=0",
    "observe.history.path=off",
    "observe.alerts.enabled=false",
    "observe.traces.endpoint=off",
    'request_log.path=""',
)
"""It is stopped idle, so nothing needs draining; a port for gRPC, history, alerts, the collector of traces and the
request log are of the place of serving."""

_OF_THE_PLACE = ("tokens", "tls_cert", "tls_key", "tenant_header")
"""Of the place where it will serve; here it is asked over the loopback."""


def serve_command(
    subject: CommandSubject, port: int, *, before: Sequence[str] = (), settings: Sequence[str] = ()
) -> list[str]:
    """Return the command that serves a model for a measurement.

    Args:
        before, settings: see ``serve_arguments``.

    Raises:
        ManifestError: a model that computes its features was not given.
    """
    files, texts = serve_arguments(subject, before=before, settings=settings)
    named = [word for file in files for word in ("--manifest", str(file))]
    flags = [word for text in texts for word in ("--set", text)]
    return [sys.executable, "-m", "tailcut", "serve", *named, "--port", str(port), *flags]


def serve_arguments(
    subject: CommandSubject, *, before: Sequence[str] = (), settings: Sequence[str] = ()
) -> tuple[list[Path], list[str]]:
    """Return the manifests and settings that serve a model for a measurement.

    Args:
        before: settings of all models, which those that were given go over.
        settings: of the model itself, over all others.

    Raises:
        ManifestError: a model that computes its features was not given.
    """
    subject.refuse_missing()
    files, given = subject.serving
    server = subject.manifest.deployment.server
    off = [f'server.{name}=""' for name in _OF_THE_PLACE if getattr(server, name)]
    return files, [*before, *given, *_SETTINGS, *off, *subject.own(settings)]
