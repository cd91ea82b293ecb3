"""``tailcut.AsyncClient``: the calls of ``tailcut.Client`` for asyncio; one client may be used by many tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

from tailcut.client.base import Attempts, Base, broken, closed, is_unready, too_late, unreachable
from tailcut.client.failures import ConnectionFailed
from tailcut.client.replies import Outputs, Predictions, metadata_of, outputs_of, predictions_of
from tailcut.client.wire import CHUNK_BYTES, Received, WireRequest
from tailcut.common.tensors import Array
from tailcut.errors import TailcutError

T = TypeVar("T")
_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AsyncClient(Base[_Connection]):
    """Asks one model of one server, from one event loop. Close it, or use it in an ``async with`` statement.

    Arguments, returns and errors are those of ``tailcut.Client``. Cancelling a call closes its connection, and with it
    drops its work on the server.
    """

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def predict(
        self,
        rows: Sequence[Mapping[str, Any]] | None = None,
        *,
        entities: Sequence[Any] | None = None,
        timeout_s: float | None = None,
    ) -> Predictions:
        """Predict feature rows, or entities whose features the server looks up; see ``Client.predict``."""
        return await self._ask(self._predicting(rows, entities), predictions_of, timeout_s)

    async def infer(
        self,
        inputs: Mapping[str, Array],
        *,
        outputs: Sequence[str] | None = None,
        version: str = "",
        timeout_s: float | None = None,
    ) -> Outputs:
        """Run the model on arrays, which travel as binary tensors; see ``Client.infer``."""
        return await self._ask(self._inferring(inputs, outputs, version), outputs_of, timeout_s)

    async def metadata(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        """Return name, versions, inputs and outputs of the model."""
        return await self._ask(self._describing(), metadata_of, timeout_s)

    async def ready(self, *, timeout_s: float | None = None) -> bool:
        """Return whether requests should be sent: the server is there, and its model is warm and not draining."""
        try:
            await self._ask(self._describing("/ready"), metadata_of, timeout_s)
        except TailcutError as error:
            if not is_unready(error):
                raise
            return False
        return True

    async def close(self) -> None:
        """Close the connections that nobody uses; those in use close after their call."""
        self._closed = True
        idle, self._idle = self._idle, []
        for _, writer in idle:
            writer.close()
        await asyncio.gather(*[writer.wait_closed() for _, writer in idle], return_exceptions=True)

    # -- Inside ------------------------------------------------------------------------------------------------------

    async def _ask(self, request: WireRequest, read: Callable[[Received], T], timeout_s: float | None) -> T:
        now_s = asyncio.get_running_loop().time
        attempts = self._attempts(now_s(), timeout_s)
        while True:
            try:
                return read(await self._exchange(request, attempts))
            except TailcutError as error:
                wait_s = attempts.retry_in(error, now_s())
                if wait_s is None:
                    raise
            await asyncio.sleep(wait_s)

    async def _exchange(self, request: WireRequest, attempts: Attempts) -> Received:
        """Send a request on a connection that is kept, or a new one, and read its reply."""
        connection, received = self._kept(), Received()
        kept = connection is not None
        phase = ["connecting"]
        try:
            async with asyncio.timeout_at(attempts.deadline_s):
                try:
                    connection = connection or await self._connected(attempts)
                    return await self._sent(connection, request, attempts, received, phase)
                except ConnectionFailed:
                    if not attempts.was_stale(kept, received):
                        raise
                phase[0] = "connecting"
                return await self._sent(await self._connected(attempts), request, attempts, Received(), phase)
        except TimeoutError as error:
            raise too_late(phase[0]) from error

    async def _sent(
        self, connection: _Connection, request: WireRequest, attempts: Attempts, received: Received, phase: list[str]
    ) -> Received:
        reader, writer = connection
        try:
            phase[0] = "sending its request"
            writer.write(request.encoded(self._address, attempts.timeout_s(asyncio.get_running_loop().time())))
            with suppress(BrokenPipeError, ConnectionResetError):  # refused before it was read: the answer says why
                await writer.drain()
            phase[0] = "waiting for the answer"
            while not received.done:
                received.feed(await reader.read(CHUNK_BYTES))
        except TimeoutError:
            raise
        except OSError as error:
            raise broken(self._address, phase[0], error) from error
        finally:
            self._put_back(connection, received)
        return received

    def _kept(self) -> _Connection | None:
        """Return a connection that is still open; the server closes those that it has no use for."""
        if self._closed:
            raise closed()
        while self._idle:
            reader, writer = self._idle.pop()
            if not writer.is_closing() and _is_silent(reader):
                return reader, writer
            writer.close()
        return None

    async def _connected(self, attempts: Attempts) -> _Connection:
        try:
            return await asyncio.open_connection(self._address.host, self._address.port, ssl=self._address.tls)
        except TimeoutError:
            raise
        except OSError as error:
            raise unreachable(self._address, error, attempts) from error

    def _put_back(self, connection: _Connection, received: Received) -> None:
        if self._keeps(received):
            self._idle.append(connection)
        else:
            connection[1].close()


def _is_silent(reader: asyncio.StreamReader) -> bool:
    """Whether a connection that nobody uses is open and has brought nothing.

    What came unasked, such as a proxy's 408 for an idle connection, would be taken for the next request's answer.
    """
    reading = reader.read(1)
    try:
        reading.send(None)
    except (StopIteration, OSError):  # data or the end; or it broke
        return False
    finally:
        reading.close()
    return True
