"""The gRPC server: its services on one port, from before the model is loaded to the end of the drain."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio

from tailcut.errors import StartError
from tailcut.protocol.access_log import AccessLog
from tailcut.protocol.data_plane import DataPlane
from tailcut.transport.grpc import health_pb2, open_inference_pb2, reflection_pb2
from tailcut.transport.grpc.calls import SERVICE, Method
from tailcut.transport.grpc.health import Health
from tailcut.transport.grpc.inference import Inferences
from tailcut.transport.grpc.models import Models
from tailcut.transport.grpc.reflection import NAMES as REFLECTION_NAMES
from tailcut.transport.grpc.reflection import Reflection
from tailcut.transport.grpc.streams import InferenceStreams
from tailcut.transport.tls import find_tls

_CONNECTIONS = (
    # Further requests of a connection wait at the client, where they take no memory of the server's.
    ("grpc.max_concurrent_streams", 1024),
    # A client that vanished without a word is noticed, and what it left on a stream is dropped.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Clients may look as often whether this server is there, also while they ask nothing.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
)


class GRPCServer:
    """Answers gRPC for the models of a host, on the running event loop.

    Args:
        address: an IP address of this machine.
        port: 0 takes a free one.
        log: the access log; None where there is none.
    """

    def __init__(self, plane: DataPlane, address: str, port: int, log: AccessLog | None = None) -> None:
        self._host = host = plane.host
        self._address = f"[{address}]" if ":" in address else address
        self.port = port
        self._server: grpc.aio.Server | None = None
        self._guard = plane.guard
        self._inferences = Inferences(plane, log)
        self._streams = InferenceStreams(self._inferences)
        self._health = Health(host, frozenset({SERVICE}))

    async def start(self) -> None:
        """Listen and answer; before the model is loaded inference is refused as not ready.

        Raises:
            StartError: the port is taken or may not be used, or the certificate or its key cannot be read.
        """
        server = grpc.aio.server(options=self._options())
        server.add_generic_rpc_handlers(tuple(self._handlers()))
        try:
            self.port = self._listen(server, f"{self._address}:{self.port}")
        except RuntimeError as error:
            raise StartError(
                f"cannot listen on {self._address}:{self.port} for gRPC",
                hint="choose another port with server.grpc_port; the log lines above may name the cause",
            ) from error
        await server.start()
        self._server = server

    async def stop(self, timeout_s: float) -> None:
        """Take no new requests, answer those that were begun for at most ``timeout_s``, then cancel what is left."""
        server, self._server = self._server, None
        if server is not None:
            self._health.stop()
            self._streams.stop()
            await server.stop(timeout_s)

    def _options(self) -> list[tuple[str, int]]:
        server = self._host.server
        return [
            ("grpc.max_receive_message_length", int(server.max_body_bytes)),
            # The answer to a request that was accepted is sent whatever its size, as over HTTP.
            ("grpc.max_send_message_length", -1),
            # A second server on the port is an error, not a silent half of the requests.
            ("grpc.so_reuseport", 0),
            ("grpc.max_connection_idle_ms", int(server.idle_s * 1000)),
            *_CONNECTIONS,
        ]

    def _listen(self, server: grpc.aio.Server, where: str) -> int:
        tls = find_tls(self._host.manifest)
        if tls is None:
            return int(server.add_insecure_port(where))
        credentials = grpc.ssl_server_credentials([(tls.key.read_bytes(), tls.cert.read_bytes())])
        return int(server.add_secure_port(where, credentials))

    def _handlers(self) -> list[Any]:
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        methods: dict[str, Method] = Models(self._host, self._guard).methods()
        rpcs: dict[str, Any] = {name: unary(method) for name, method in methods.items()}
        # Messages are handed over as bytes: gRPC answers one that it cannot read itself with INTERNAL.
        rpcs["ModelInfer"] = unary(self._inferences.unary)
        rpcs["ModelStreamInfer"] = stream(self._streams.stream)
        health = {
            "Check": unary(self._health.check()),
            "Watch": grpc.unary_stream_rpc_method_handler(self._health.watch),
        }
        files = [module.DESCRIPTOR for module in (open_inference_pb2, health_pb2, reflection_pb2)]
        reflection = {"ServerReflectionInfo": stream(Reflection(files).info)}
        services = {SERVICE: rpcs, Health.NAME: health, **dict.fromkeys(REFLECTION_NAMES, reflection)}
        return [grpc.method_handlers_generic_handler(name, handlers) for name, handlers in services.items()]
