"""ModelStreamInfer: many requests on one stream, each answered when it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from tailcut.errors import NotReady, TailcutError
from tailcut.protocol.http import clipped
from tailcut.transport.grpc.calls import EOF, Context, abort, headers_of, remaining_ns
from tailcut.transport.grpc.codec import FINAL, parse
from tailcut.transport.grpc.inference import Failed, Inferences
from tailcut.transport.grpc.open_inference_pb2 import ModelInferResponse, ModelStreamInferResponse

_AHEAD = 256
"""Requests of one stream that are being answered at once; beyond it the stream is not read, so the client waits."""


class InferenceStreams:
    """The streams of a host's clients."""

    def __init__(self, inferences: Inferences) -> None:
        self._inferences = inferences
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End every stream once what it has sent is answered: an idle one would hold the stop up."""
        self._stopping.set()

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
        except Failed as failed:
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
    """Take the result of a read that nobody waits for any more: its failure is the end of the stream, no bug."""
    if not reading.cancelled():
        reading.exception()


def _id_of(message: bytes) -> str:
    try:
        return parse(message).id
    except TailcutError:
        return ""
