"""gRPC server reflection: what services there are and what their messages look like, for tools such as grpcurl.

Source: https://github.com/grpc/grpc/blob/master/doc/server-reflection.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from reprlib import repr as shown
from typing import Any

import grpc

from tailcut.errors import BadRequest
from tailcut.transport.grpc.calls import EOF, Context, abort, read
from tailcut.transport.grpc.reflection_pb2 import (
    ErrorResponse,
    ExtensionNumberResponse,
    FileDescriptorResponse,
    ListServiceResponse,
    ServerReflectionRequest,
    ServerReflectionResponse,
    ServiceResponse,
)

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
