"""What stands before the routes where the manifest asks for it: CORS, compression, the access log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tailcut.manifest.host import HostManifest
from tailcut.protocol.access_log import AccessLog
from tailcut.protocol.cors import Cors
from tailcut.protocol.encodings import compressed
from tailcut.protocol.http import Body, HeaderMap, Reply

Handle = Callable[[str, str, HeaderMap, Body], Awaitable[Reply]]


class Middleware:
    """Wraps what handles requests; close it at the end.

    Attributes:
        log: the access log; None where there is none.

    Raises:
        StartError: the access log cannot be opened.
    """

    def __init__(self, handle: Handle, manifest: HostManifest) -> None:
        server = manifest.server
        self.log: AccessLog | None = None
        if server.compress_bytes:
            handle = _compressing(handle, int(server.compress_bytes))
        if server.cors_origins:
            handle = Cors(handle, server.cors_origins).handle
        if server.access_log:
            self.log = AccessLog(handle, manifest)
            handle = self.log.handle
        self.handle = handle

    def close(self) -> None:
        """Write what is left to write."""
        if self.log is not None:
            self.log.close()


def _compressing(handle: Handle, least_bytes: int) -> Handle:
    async def wrapped(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        return await compressed(await handle(method, path, headers, body), headers, least_bytes)

    return wrapped
