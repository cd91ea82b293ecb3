"""What every RPC needs: metadata in, status and trailing metadata out, whatever the method."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter_ns
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from tailcut.errors import BadRequest, NotReady, Shed, TailcutError
from tailcut.observe.failures import FailureLog
from tailcut.protocol.http import by_name, clipped
from tailcut.protocol.operator_log import unforeseen

Metadata = tuple[tuple[str, str], ...]
Context = Any
"""grpc.aio.ServicerContext; the stubs for it lack what is used here."""
Method = Callable[[bytes, Context], Awaitable[bytes]]

EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs have forgotten it
"""What reading a stream gives where the client has sent all."""

SERVICE = "inference.GRPCInferenceService"

_STATUS = {status.name: status for status in grpc.StatusCode}
_LONGEST_VALUE = 600


def headers_of(context: Context) -> dict[str, str]:
    """Return the client's metadata as headers: lower-case names, the last of several values; binary ones left out."""
    return by_name([(key, value) for key, value in context.invocation_metadata() or () if isinstance(value, str)])


def remaining_ns(context: Context) -> int:
    """Return the nanoseconds until the client's deadline; 0 where it has none, 1 where it has passed."""
    left_s = context.time_remaining()
    return 0 if left_s is None else max(int(left_s * 1e9), 1)


def value_of(text: str) -> str:
    """Return text as a metadata value: printable ASCII of a bounded length.

    Source: https://grpc.io/docs/guides/metadata/; a reply with another value would fail as a whole.
    """
    plain = text.encode("ascii", "backslashreplace").decode()
    if not plain.isprintable():
        plain = "".join(char if char.isprintable() else " " for char in plain)
    return plain.strip()[:_LONGEST_VALUE]


def error_metadata(error: TailcutError, incident: str = "") -> Metadata:
    """Return what an error says beside its status and message.

    Args:
        incident: under which the server's log says more; empty where it does not.
    """
    pairs = [("x-tailcut-code", error.code)]
    if error.hint:
        pairs.append(("x-tailcut-hint", value_of(error.hint)))
    if incident:
        pairs.append(("x-tailcut-incident", incident))
    if isinstance(error, Shed | NotReady) and error.retry_after_s > 0:
        # What gRPC's own retries obey (gRFC A6), in milliseconds.
        pairs.append(("grpc-retry-pushback-ms", str(max(1, round(error.retry_after_s * 1000)))))
    return tuple(pairs)


async def abort(context: Context, error: TailcutError, metadata: Metadata = (), incident: str = "") -> NoReturn:
    """End the RPC with the error's status; never returns."""
    details = error.message.encode("utf-8", "backslashreplace").decode()
    await context.abort(_STATUS[error.grpc_status], details, (*metadata, *error_metadata(error, incident)))
    raise AssertionError("abort raises")


def read(kind: type[Message], message: bytes) -> Any:
    """Read a request of ``kind``.

    Raises:
        BadRequest: the bytes are none.
    """
    try:
        return kind.FromString(message)
    except DecodeError as error:
        raise BadRequest(
            f"the bytes are not a {kind.DESCRIPTOR.name}: {clipped(error)}",
            hint=f"send a serialised {kind.DESCRIPTOR.name}; server reflection has the server's .proto file",
        ) from error


def answering(failures: FailureLog, kind: type[Message], answer: Callable[[Any, Mapping[str, str]], Any]) -> Method:
    """Return a method that reads a request of ``kind`` and answers it with the message that ``answer`` makes.

    Args:
        answer: takes the request and the headers; a function or a coroutine function.
    """

    async def method(message: bytes, context: Context) -> bytes:
        try:
            reply = answer(read(kind, message), headers_of(context))
            if not isinstance(reply, Message):
                reply = await reply
            serialized: bytes = reply.SerializeToString()
            return serialized
        except TailcutError as error:
            await abort(context, error)
        except Exception as error:
            where = f"in {kind.DESCRIPTOR.name.removesuffix('Request')}"
            bug, incident = unforeseen(failures, where, error, perf_counter_ns())
            await abort(context, bug, incident=incident)

    return method
