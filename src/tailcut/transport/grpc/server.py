"""The gRPC server: inference, health and reflection, from before the model is loaded to the end of the drain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from reprlib import repr as shown
from typing import Any

import grpc
import grpc.aio

from tailcut.errors import BadRequest, NotFound, NotReady, StartError, TailcutError
from tailcut.protocol.access_log import AccessLog
from tailcut.protocol.data_plane import DataPlane
from tailcut.protocol.http import clipped
from tailcut.serving.host import Host
from tailcut.transport.grpc import health_pb2, open_inference_pb2, reflection_pb2
from tailcut.transport.grpc.calls import EOF, SERVICE, Context, Method, abort, answering, headers_of, read, remaining_ns
from tailcut.transport.grpc.codec import FINAL
from tailcut.transport.grpc.health_pb2 import HealthCheckRequest, HealthCheckResponse
from tailcut.transport.grpc.inference import Inferences, RpcFailed
from tailcut.transport.grpc.models import GrpcModels
from tailcut.transport.grpc.open_inference_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from tailcut.transport.grpc.reflection_pb2 import (
    ErrorResponse,
    ExtensionNumberResponse,
    FileDescriptorResponse,
    ListServiceResponse,
    ServerReflectionRequest,
    ServerReflectionResponse,
    ServiceResponse,
)
from tailcut.transport.tls import find_tls

_AHEAD = 256
"""Requests of one stream that are being answered at once; beyond it the stream is not read, so the client waits."""


class InferenceStreams:
    """The streams of a host's clients.

    Args:
        stopping: ends every stream once what it has sent is answered: an idle one would hold the stop up.
    """

    def __init__(self, inferences: Inferences, stopping: asyncio.Event) -> None:
        self._inferences = inferences
        self._stopping = stopping

    async def stream(self, _: object, context: Context) -> None:
        """Answer ModelStreamInfer: each request when it is done, an error as a message of the stream."""
        one_stream = _Stream(self._inferences, context)
        ended = asyncio.ensure_future(self._stopping.wait())
        try:
            async with asyncio.TaskGroup() as tasks:
                while (message := await _next(context, ended)) is not None:
                    await one_stream.room.acquire()
                    tasks.create_task(one_stream.answer(message))
        finally:
            ended.cancel()
        if self._stopping.is_set():
            await abort(context, NotReady("the server is shutting down", hint="open the stream on another server"))


class _Stream:
    def __init__(self, inferences: Inferences, context: Context) -> None:
        self._inferences = inferences
        self._context = context
        self._headers: Mapping[str, str] = headers_of(context)
        self._writing = asyncio.Lock()
        self.room = asyncio.Semaphore(_AHEAD)

    async def answer(self, message: bytes) -> None:
        """Answer one request."""
        try:
            await self._inferences.in_stream(self._headers, message, remaining_ns(self._context), self._emit)
        except RpcFailed as failed:
            await self._write(_error(message, failed.error))
        finally:
            self.room.release()

    async def _emit(self, reply: ModelInferResponse) -> None:
        await self._write(ModelStreamInferResponse(infer_response=reply))

    async def _write(self, response: ModelStreamInferResponse) -> None:
        """Write one response; another one of the same stream waits."""
        async with self._writing:
            await self._context.write(response.SerializeToString())


def _error(message: bytes, error: TailcutError) -> ModelStreamInferResponse:
    reply = ModelInferResponse(id=_id_of(message))
    reply.parameters["x-tailcut-code"].string_param = error.code
    reply.parameters[FINAL].bool_param = True
    text = f"{error.message}; {error.hint}" if error.hint else error.message
    if reply.id:  # tritonclient hands on nothing but this text
        text = f"[request id: {clipped(reply.id)}] {text}"
    return ModelStreamInferResponse(error_message=text, infer_response=reply)


async def _next(context: Context, ended: asyncio.Future[Any]) -> bytes | None:
    """Return the stream's next message; None where the client has sent all, or the server is stopping."""
    reading = asyncio.ensure_future(context.read())
    reading.add_done_callback(_retrieve)
    await asyncio.wait((reading, ended), return_when=asyncio.FIRST_COMPLETED)
    if not reading.done():
        return None
    message = reading.result()
    return None if message is EOF else message


def _retrieve(reading: asyncio.Future[Any]) -> None:
    """Collect the result of an abandoned read: that it failed only means that the stream has ended."""
    if not reading.cancelled():
        reading.exception()


def _id_of(message: bytes) -> str:
    try:
        return str(read(ModelInferRequest, message).id)
    except TailcutError:
        return ""


# gRPC server reflection: what services there are and what their messages look like, for tools such as grpcurl.
#
# Source: https://github.com/grpc/grpc/blob/master/doc/server-reflection.md.

NAMES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
_NOT_FOUND: int = grpc.StatusCode.NOT_FOUND.value[0]
_INVALID: int = grpc.StatusCode.INVALID_ARGUMENT.value[0]


class Reflection:
    """Answers from file descriptors.

    Args:
        files: descriptors of the .proto files, none of which imports another.
    """

    def __init__(self, files: Sequence[Any]) -> None:
        self._services = sorted(service.full_name for file in files for service in file.services_by_name.values())
        self._files: dict[str, bytes] = {file.name: file.serialized_pb for file in files}
        self._symbols: dict[str, bytes] = {}
        for file in files:
            for symbol in _symbols(file):
                self._symbols[symbol] = file.serialized_pb
        self._answers: dict[str, Callable[[Any], dict[str, Any]]] = {
            "list_services": self._list,
            "file_by_filename": lambda name: self._file(self._files, name),
            "file_containing_symbol": lambda name: self._file(self._symbols, name),
            "file_containing_extension": lambda extension: _missing(extension.containing_type),
            "all_extension_numbers_of_type": self._extensions,
        }

    async def info(self, _: object, context: Context) -> None:
        """Answer ``ServerReflectionInfo``: a stream of questions, one answer to each."""
        while (message := await context.read()) is not EOF:
            try:
                request: ServerReflectionRequest = read(ServerReflectionRequest, message)
            except BadRequest as error:
                await abort(context, error)
            await context.write(self._answer(request).SerializeToString())

    def _answer(self, request: ServerReflectionRequest) -> ServerReflectionResponse:
        kind = request.WhichOneof("message_request")
        answer = self._answers[kind](getattr(request, kind)) if kind else _wrong("the reflection request is empty")
        return ServerReflectionResponse(valid_host=request.host, original_request=request, **answer)

    def _list(self, _: str) -> dict[str, Any]:
        services = [ServiceResponse(name=name) for name in self._services]
        return {"list_services_response": ListServiceResponse(service=services)}

    def _file(self, files: dict[str, bytes], name: str) -> dict[str, Any]:
        found = files.get(name)
        if found is None:
            return _missing(name)
        return {"file_descriptor_response": FileDescriptorResponse(file_descriptor_proto=[found])}

    def _extensions(self, name: str) -> dict[str, Any]:
        """No message here has extensions; proto3 knows none."""
        if name not in self._symbols:
            return _missing(name)
        return {"all_extension_numbers_response": ExtensionNumberResponse(base_type_name=name)}


def _symbols(file: Any) -> list[str]:
    """Return the full names that a tool may ask a file's descriptor for."""
    found = [enum.full_name for enum in file.enum_types_by_name.values()]
    for service in file.services_by_name.values():
        found += [service.full_name, *[method.full_name for method in service.methods]]
    waiting = list(file.message_types_by_name.values())
    while waiting:
        message = waiting.pop()
        found += [message.full_name, *[field.full_name for field in message.fields]]
        found += [enum.full_name for enum in message.enum_types]
        waiting += message.nested_types
    return found


def _missing(name: str) -> dict[str, Any]:
    return {"error_response": ErrorResponse(error_code=_NOT_FOUND, error_message=f"{shown(name)} is unknown")}


def _wrong(why: str) -> dict[str, Any]:
    return {"error_response": ErrorResponse(error_code=_INVALID, error_message=why)}


# gRPC health checking: the readiness of the server, once or whenever it changes.
#
# Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md.

_LOOK_S = 0.1
_SERVING = HealthCheckResponse.SERVING
_NOT_SERVING = HealthCheckResponse.NOT_SERVING
_UNKNOWN = HealthCheckResponse.SERVICE_UNKNOWN


class Health:
    """Answers for the server as a whole (no service named) and for each service by name.

    Args:
        services: names of the services that are as ready as the host.
        stopping: ends every ``Watch`` after a last word: it would hold the stop up.
    """

    NAME = "grpc.health.v1.Health"

    def __init__(self, host: Host, services: frozenset[str], stopping: asyncio.Event) -> None:
        self._host = host
        self._services = services | {""}
        self._stopping = stopping

    def check(self, request: HealthCheckRequest, headers: Mapping[str, str]) -> HealthCheckResponse:
        """Answer ``Check``."""
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
        self._host = plane.host
        self._address = f"[{address}]" if ":" in address else address
        self.port = port
        self._server: grpc.aio.Server | None = None
        self._guard = plane.guard
        self._inferences = Inferences(plane, log)
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Listen and answer; before the model is loaded inference is refused as not ready.

        Raises:
            StartError: the port is taken or may not be used, or the certificate or its key cannot be read.
        """
        settings = self._host.server
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", int(settings.max_body_bytes)),
                # The answer to a request that was accepted is sent whatever its size, as over HTTP.
                ("grpc.max_send_message_length", -1),
                # A second server on the port is an error, not a silent half of the requests.
                ("grpc.so_reuseport", 0),
                ("grpc.max_connection_idle_ms", int(settings.idle_s * 1000)),
                *_CONNECTIONS,
            ]
        )
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
            self._stopping.set()
            await server.stop(timeout_s)

    def _listen(self, server: grpc.aio.Server, where: str) -> int:
        tls = find_tls(self._host.manifest)
        if tls is None:
            return int(server.add_insecure_port(where))
        credentials = grpc.ssl_server_credentials([(tls.key.read_bytes(), tls.cert.read_bytes())])
        return int(server.add_secure_port(where, credentials))

    def _handlers(self) -> list[Any]:
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        methods: dict[str, Method] = GrpcModels(self._host, self._guard).methods()
        rpcs: dict[str, Any] = {name: unary(method) for name, method in methods.items()}
        # Messages are handed over as bytes: gRPC answers one that it cannot read itself with INTERNAL.
        rpcs["ModelInfer"] = unary(self._inferences.unary)
        rpcs["ModelStreamInfer"] = stream(InferenceStreams(self._inferences, self._stopping).stream)
        health = Health(self._host, frozenset({SERVICE}), self._stopping)
        checks = {
            "Check": unary(answering(self._host.failures, HealthCheckRequest, health.check)),
            "Watch": grpc.unary_stream_rpc_method_handler(health.watch),
        }
        files = [module.DESCRIPTOR for module in (open_inference_pb2, health_pb2, reflection_pb2)]
        reflection = {"ServerReflectionInfo": stream(Reflection(files).info)}
        services = {SERVICE: rpcs, Health.NAME: checks, **dict.fromkeys(NAMES, reflection)}
        return [grpc.method_handlers_generic_handler(name, handlers) for name, handlers in services.items()]
