"""``tailcut.Client``: blocking calls on kept connections; one client may be used by many threads."""

from __future__ import annotations

import select
import socket
import time
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


class Client(Base[socket.socket]):
    """Asks one model of one server. Close it, or use it in a ``with`` statement.

    Args:
        url: of the server, such as http://127.0.0.1:8700.
        model: the deployment's name.
        timeout_s: of every call that names none; it travels as the request's deadline. None leaves the deadline to the
            server (``slo.timeout``).
        token: bearer token, where the server asks for one.
        headers: sent with every request, such as the tenant's.
        retries: most tries after the first. Only a request that was not begun is sent again: one that was shed, or met
            a server without an executor, when the server says so and within the timeout that the client gave; and one
            for which there was no connection. Not counted is one that went out on a kept connection while the server
            closed it: it goes out once more, on a new one.
        connections: most connections that are kept while nobody uses them.
        tls: context for https; by default the system's certificates.

    Raises:
        BadRequest: the URL, the timeout or a header is none.
    """

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def predict(
        self,
        rows: Sequence[Mapping[str, Any]] | None = None,
        *,
        entities: Sequence[Any] | None = None,
        timeout_s: float | None = None,
    ) -> Predictions:
        """Predict feature rows, or entities whose features the server looks up.

        Returns:
            one prediction each, in their order, as the deployment's postprocess makes it.

        Raises:
            TailcutError: of the class that the server raised; ConnectionFailed; DeadlineExceeded.
        """
        return self._ask(self._predicting(rows, entities), predictions_of, timeout_s)

    def infer(
        self,
        inputs: Mapping[str, Array],
        *,
        outputs: Sequence[str] | None = None,
        version: str = "",
        timeout_s: float | None = None,
    ) -> Outputs:
        """Run the model on arrays, which travel as binary tensors.

        Args:
            inputs: every input by name, first dimension the rows; text as arrays of str, bytes or object.
            outputs: names wanted; None for all.
            version: of the model; refused where another is served.

        Raises:
            TailcutError: of the class that the server raised; ConnectionFailed; DeadlineExceeded.
        """
        return self._ask(self._inferring(inputs, outputs, version), outputs_of, timeout_s)

    def metadata(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        """Return name, versions, inputs and outputs of the model."""
        return self._ask(self._describing(), metadata_of, timeout_s)

    def ready(self, *, timeout_s: float | None = None) -> bool:
        """Return whether requests should be sent: the server is there, and its model is warm and not draining."""
        try:
            self._ask(self._describing("/ready"), metadata_of, timeout_s)
        except TailcutError as error:
            if not is_unready(error):
                raise
            return False
        return True

    def close(self) -> None:
        """Close the connections; calls that are under way end."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    # -- Inside ------------------------------------------------------------------------------------------------------

    def _ask(self, request: WireRequest, read: Callable[[Received], T], timeout_s: float | None) -> T:
        attempts = self._attempts(time.monotonic(), timeout_s)
        while True:
            try:
                return read(self._exchange(request, attempts))
            except TailcutError as error:
                wait_s = attempts.retry_in(error, time.monotonic())
                if wait_s is None:
                    raise
            time.sleep(wait_s)

    def _exchange(self, request: WireRequest, attempts: Attempts) -> Received:
        """Send a request on a connection that is kept, or a new one, and read its reply."""
        connection, received = self._kept(), Received()
        kept = connection is not None
        try:
            return self._sent(connection or self._connected(attempts), request, attempts, received)
        except ConnectionFailed:
            if not attempts.was_stale(kept, received):
                raise
        return self._sent(self._connected(attempts), request, attempts, Received())

    def _sent(
        self, connection: socket.socket, request: WireRequest, attempts: Attempts, received: Received
    ) -> Received:
        phase = "sending its request"
        try:
            connection.settimeout(_left_s(attempts, phase))
            with suppress(BrokenPipeError, ConnectionResetError):  # refused before it was read: the answer says why
                connection.sendall(request.encoded(self._address, attempts.timeout_s(time.monotonic())))
            phase = "waiting for the answer"
            while not received.done:
                connection.settimeout(_left_s(attempts, phase))
                received.feed(connection.recv(CHUNK_BYTES))
        except TimeoutError as error:
            raise too_late(phase) from error
        except OSError as error:
            raise broken(self._address, phase, error) from error
        finally:
            self._put_back(connection, received)
        return received

    def _kept(self) -> socket.socket | None:
        """Return a connection that is still open; the server closes those that it has no use for."""
        while True:
            with self._lock:
                if self._closed:
                    raise closed()
                if not self._idle:
                    return None
                connection = self._idle.pop()
            poll = select.poll()
            poll.register(connection, select.POLLIN | select.POLLHUP)
            if not poll.poll(0):
                return connection
            connection.close()

    def _put_back(self, connection: socket.socket, received: Received) -> None:
        with self._lock:
            if self._keeps(received):
                self._idle.append(connection)
                return
        connection.close()

    def _connected(self, attempts: Attempts) -> socket.socket:
        left_s, tls = _left_s(attempts, "connecting"), self._address.tls
        try:
            connection = socket.create_connection((self._address.host, self._address.port), left_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is None:
                return connection
            try:
                return tls.wrap_socket(connection, server_hostname=self._address.host)
            except OSError:
                connection.close()
                raise
        except TimeoutError as error:
            raise too_late("connecting") from error
        except OSError as error:
            raise unreachable(self._address, error, attempts) from error


def _left_s(attempts: Attempts, phase: str) -> float:
    left_s = attempts.deadline_s - time.monotonic()
    if left_s <= 0:
        raise too_late(phase)
    return left_s
