"""gRPC health checking: the readiness of the server, once or whenever it changes.

Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from reprlib import repr as shown

from tailcut.errors import BadRequest, NotFound
from tailcut.serving.host import Host
from tailcut.transport.grpc.calls import Context, Method, abort, answering, read
from tailcut.transport.grpc.health_pb2 import HealthCheckRequest, HealthCheckResponse

_LOOK_S = 0.1
_SERVING = HealthCheckResponse.SERVING
_NOT_SERVING = HealthCheckResponse.NOT_SERVING
_UNKNOWN = HealthCheckResponse.SERVICE_UNKNOWN


class Health:
    """Answers for the server as a whole (no service named) and for each service by name.

    Args:
        services: names of the services that are as ready as the host.
    """

    NAME = "grpc.health.v1.Health"

    def __init__(self, host: Host, services: frozenset[str]) -> None:
        self._host = host
        self._services = services | {""}
        self._stopping = asyncio.Event()

    def check(self) -> Method:
        """Return the method ``Check``."""
        return answering(self._host.failures, HealthCheckRequest, self._check)

    def stop(self) -> None:
        """End every ``Watch`` after a last word: it would hold the stop up."""
        self._stopping.set()

    def _check(self, request: HealthCheckRequest, headers: Mapping[str, str]) -> HealthCheckResponse:
        status = self._status(request.service)
        if status == _UNKNOWN:
            known = ", ".join(sorted(filter(None, self._services)))
            raise NotFound(f"service {shown(request.service)} is unknown", hint=f"leave it empty, or one of {known}")
        return HealthCheckResponse(status=status)

    async def watch(self, message: bytes, context: Context) -> None:
        """Answer ``Watch``: the status now, and again whenever it changes."""
        try:
            request: HealthCheckRequest = read(HealthCheckRequest, message)
        except BadRequest as error:
            await abort(context, error)
        told = None
        while True:
            ends = self._stopping.is_set()
            status = _NOT_SERVING if ends and request.service in self._services else self._status(request.service)
            if status != told:
                told = status
                await context.write(HealthCheckResponse(status=status).SerializeToString())
            if ends:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._stopping.wait()

    def _status(self, service: str) -> HealthCheckResponse.ServingStatus:
        if service not in self._services:
            return _UNKNOWN
        return _SERVING if self._host.is_ready else _NOT_SERVING
