"""The gRPC server: its services on one port, from before the model is loaded to the end of the drain."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio

from tailcut.engine.engine import Engine
from tailcut.errors import StartError
from tailcut.server.grpc import health_pb2, open_inference_pb2, reflection_pb2
from tailcut.server.grpc.calls import Method
from tailcut.server.grpc.health import Health
from tailcut.server.grpc.inference import Inferences
from tailcut.server.grpc.models import Models
from tailcut.server.grpc.reflection import NAMES as REFLECTION_NAMES
from tailcut.server.grpc.reflection import Reflection

SERVICE = "inference.GRPCInferenceService"


class GRPCServer:
    """Answers gRPC for one engine, on the running event loop.

    Args:
        address: an IP address of this machine.
        port: 0 takes a free one.
    """

    def __init__(self, engine: Engine, address: str, port: int) -> None:
        self._engine = engine
        self._host = f"[{address}]" if ":" in address else address
        self.port = port
        self._server: grpc.aio.Server | None = None
        self._inferences = Inferences(engine)
        self._health = Health(engine, frozenset({SERVICE}))

    async def start(self) -> None:
        """Listen and answer; before the model is loaded inference is refused as not ready.

        Raises:
            StartError: the port is taken or may not be used.
        """
        limit = int(self._engine.deployment.server.max_body_bytes)
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", limit),
                # The model's answer to an accepted request is sent whatever its size, as over HTTP.
                ("grpc.max_send_message_length", -1),
                # A second server on the port is an error, not a silent half of the requests.
                ("grpc.so_reuseport", 0),
            ]
        )
        server.add_generic_rpc_handlers(tuple(self._handlers()))
        try:
            self.port = server.add_insecure_port(f"{self._host}:{self.port}")
        except RuntimeError as error:
            raise StartError(
                f"cannot listen on {self._host}:{self.port} for gRPC",
                hint="choose another port with server.grpc_port; the lines above may say why",
            ) from error
        await server.start()
        self._server = server

    async def stop(self, timeout_s: float) -> None:
        """Take no new requests, answer those that were begun for at most ``timeout_s``, then cancel what is left."""
        server, self._server = self._server, None
        if server is not None:
            self._health.stop()
            self._inferences.stop()
            await server.stop(timeout_s)

    def _handlers(self) -> list[Any]:
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        methods: dict[str, Method] = Models(self._engine).methods()
        rpcs: dict[str, Any] = {name: unary(method) for name, method in methods.items()}
        # Messages are handed over as bytes: gRPC answers one that it cannot read itself with INTERNAL.
        rpcs["ModelInfer"] = unary(self._inferences.unary)
        rpcs["ModelStreamInfer"] = stream(self._inferences.stream)
        health = {
            "Check": unary(self._health.check()),
            "Watch": grpc.unary_stream_rpc_method_handler(self._health.watch),
        }
        files = [module.DESCRIPTOR for module in (open_inference_pb2, health_pb2, reflection_pb2)]
        reflection = {"ServerReflectionInfo": stream(Reflection(files).info)}
        services = {SERVICE: rpcs, Health.NAME: health, **dict.fromkeys(REFLECTION_NAMES, reflection)}
        return [grpc.method_handlers_generic_handler(name, handlers) for name, handlers in services.items()]
