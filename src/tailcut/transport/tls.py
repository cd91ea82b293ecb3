"""The certificate and the key of the server, looked at before anything starts."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

from tailcut.errors import StartError
from tailcut.manifest.host import HostManifest


class Tls(NamedTuple):
    """Files in PEM."""

    cert: Path
    key: Path


def find_tls(manifest: HostManifest) -> Tls | None:
    """Return the certificate chain and its key; None where the server speaks plain HTTP.

    Raises:
        StartError: one of them cannot be read, or they do not belong together.
    """
    server = manifest.server
    if not server.tls_cert:
        return None
    found = Tls(manifest.directory / server.tls_cert, manifest.directory / server.tls_key)
    for name, path in (("tls_cert", found.cert), ("tls_key", found.key)):
        try:
            path.read_bytes()
        except OSError as error:
            raise StartError(
                f"server.{name}: {path} cannot be read: {error.strerror}",
                hint=f"set server.{name} to a PEM file; paths are relative to the manifest",
            ) from error
    try:
        context_of(found)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        said = getattr(error, "strerror", None) or error
        raise StartError(
            f"TLS: {found.cert} and {found.key} are not a certificate and its key: {said}",
            hint="set server.tls_cert and server.tls_key to a matching pair of PEM files, the key without a password",
        ) from error
    return found


def context_of(tls: Tls) -> ssl.SSLContext:
    """Return what a server of HTTP/1.1 needs: TLS 1.2 or later.

    Raises:
        OSError: a file cannot be read; ssl.SSLError where the two do not belong together.
        ValueError: likewise.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # An empty password: without one Python would ask for it on the terminal.
    context.load_cert_chain(tls.cert, tls.key, password="")
    return context
