"""``tailcut.Client`` and ``tailcut.AsyncClient`` against ``tailcut serve``, and against servers that misbehave."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import queue
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.app_kit import FEATURES
from tests.integration.servers import free_port
from tests.integration.serving import Served
from tests.integration.test_serve_secure import TLS, Secure, make_certificate

import tailcut
from tailcut.client import ConnectionFailed, UnexpectedReply
from tailcut.errors import (
    BadRequest,
    DeadlineExceeded,
    NotFound,
    Shed,
    TailcutError,
    TooLarge,
    Unauthorized,
    UnknownEntity,
)

pytestmark = pytest.mark.integration

ROWS = np.array([[1, 2], [3, 4]], dtype=np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("client"), FEATURES, ["server.max_body=100KB"]) as served:
        yield served


class Waiting:
    """The asynchronous client, driven from a test that blocks."""

    def __init__(self, url: str, **settings: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = tailcut.AsyncClient(url, **settings)

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._client.close())
        self._loop.close()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)
        return lambda *arguments, **named: self._loop.run_until_complete(method(*arguments, **named))


Kind = Callable[..., Any]
both = pytest.mark.parametrize("kind", [tailcut.Client, Waiting], ids=["sync", "async"])


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


# -- Answers ---------------------------------------------------------------------------------------------------------


@both
def test_predictions_of_rows_and_entities(server: Served, kind: Kind) -> None:
    with kind(url(server.port), model="m", timeout_s=20) as client:
        found = client.predict([{"id": 1, "value": np.float32(2.5)}])
        assert [one["y"] for one in found] == [3.5]
        assert found.reply.variant == "source"
        assert found.reply.stages_ms["total"] > 0
        assert [one["y"] for one in client.predict(entities=[1, 2])] == [11.0, 22.0]
        assert client.predict(entities=[1]).reply.cache == "hit"


@both
def test_arrays_in_and_out(server: Served, kind: Kind) -> None:
    with kind(url(server.port), model="m", timeout_s=20) as client:
        found = client.infer({"x": ROWS})
        assert {name: array.dtype for name, array in found.items()} == {"y": np.float32, "z": np.float32}
        np.testing.assert_array_equal(found["y"], [3, 7])
        np.testing.assert_array_equal(found["z"], ROWS * 2)
        found["z"][0] = 0  # the caller's own
        np.testing.assert_array_equal(client.infer({"x": ROWS[:, ::-1]}, outputs=["z"])["z"], ROWS[:, ::-1] * 2)
        assert client.infer({"x": ROWS.astype(">f4")}, outputs=["y"], version="source")["y"].tolist() == [3, 7]
        assert found.reply.version == "source"


@both
def test_metadata_and_readiness(server: Served, kind: Kind) -> None:
    with kind(url(server.port), model="m") as client:
        assert client.ready()
        assert client.metadata()["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
    with kind(url(free_port()), model="m", retries=0) as client:
        assert not client.ready()


def test_threads_share_a_client_and_its_connections(server: Served) -> None:
    with tailcut.Client(url(server.port), model="m", timeout_s=20) as client, ThreadPoolExecutor(8) as threads:
        sums = threads.map(lambda n: client.infer({"x": np.full((1, 2), n, np.float32)})["y"][0], range(200))
        assert [float(each) for each in sums] == [2.0 * n for n in range(200)]
        assert 1 <= len(client._idle) <= 8


def test_tasks_share_a_client(server: Served) -> None:
    async def main() -> None:
        async with tailcut.AsyncClient(url(server.port), model="m", timeout_s=20) as client:
            for _ in range(3):
                asked = [client.infer({"x": np.full((1, 2), n, np.float32)}) for n in range(12)]
                assert [float(each["y"][0]) for each in await asyncio.gather(*asked)] == [2.0 * n for n in range(12)]
            assert 1 <= len(client._idle) <= 12

    asyncio.run(main())


def test_both_clients_take_the_same() -> None:
    assert inspect.signature(tailcut.Client) == inspect.signature(tailcut.AsyncClient)
    for name in ("predict", "infer", "metadata", "ready"):
        sync, other = (inspect.signature(getattr(kind, name)) for kind in (tailcut.Client, tailcut.AsyncClient))
        assert sync == other


# -- Errors ----------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("ask", "kind_of_error", "status"),
    [
        (lambda client: client.infer({"x": ROWS.astype(np.float64)}), BadRequest, 400),
        (lambda client: client.infer({"x": ROWS}, version="9"), NotFound, 404),
        (lambda client: client.infer({"x": np.ones((17, 2), np.float32)}), TooLarge, 413),
        (lambda client: client.infer({"x": np.ones((50_000, 2), np.float32)}), TooLarge, 413),
        (lambda client: client.infer({"x": ROWS}, timeout_s=1e-6), DeadlineExceeded, 504),
        (lambda client: client.predict(entities=[200]), UnknownEntity, 404),
        (lambda client: client.predict([{"value": 1}]), BadRequest, 400),
    ],
)
def test_errors_are_those_of_the_server(
    server: Served, kind: Kind, ask: Callable[[Any], Any], kind_of_error: type[TailcutError], status: int
) -> None:
    with kind(url(server.port), model="m") as client:
        with pytest.raises(kind_of_error) as caught:
            ask(client)
        assert type(caught.value) is kind_of_error
        assert caught.value.status == status
        assert caught.value.message
        assert caught.value.hint
        assert client.infer({"x": ROWS})["y"].tolist() == [3, 7]


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda client: client.infer({"x": [[1, 2]]}), "is a list, expected an array"),
        (lambda client: client.infer({"x": np.float32(1)}), "expected an array with rows"),
        (lambda client: client.infer({"x": ROWS.astype(np.complex64)}), "array of complex64"),
        (lambda client: client.infer({"x": np.array([1, None], object)}), "holds a int"),
        (lambda client: client.predict(), "either rows or entities"),
        (lambda client: client.predict([{"a": 1j}]), "cannot be written as JSON"),
        (lambda client: client.infer({"x": ROWS}, timeout_s=0), "timeout_s is 0"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_it_is_sent(ask: Callable[[Any], Any], said: str) -> None:
    with tailcut.Client("http://127.0.0.1:1", model="m") as client, pytest.raises(BadRequest, match=said):
        ask(client)


@pytest.mark.parametrize("wrong", ["127.0.0.1:8700", "ftp://h", "http://", "http://h:port", "http://h/?q"])
def test_what_is_no_url(wrong: str) -> None:
    with pytest.raises(BadRequest, match="is not the URL of a server"):
        tailcut.Client(wrong, model="m")


def test_what_is_no_header() -> None:
    for headers in ({"x-a": "1\r\nx-b: 2"}, {"": "1"}, {"x-ä": "1"}, {"x-a": "€"}):
        with pytest.raises(BadRequest, match="cannot be sent"):
            tailcut.Client("http://h", model="m", headers=headers)
    with pytest.raises(BadRequest, match="cannot be sent"):
        tailcut.Client("http://h", model="m", token="a\nb")


# -- Servers that misbehave ------------------------------------------------------------------------------------------


class Last(bytes):
    """A reply after which the server closes the connection."""


class Reset(Last):
    """The same, and the client sees a reset."""


class Scripted:
    """A server that answers its connections' requests from a list; a reply of None is never sent.

    Attributes:
        requests: what was received, in order.
    """

    def __init__(self, *replies: bytes | None, close: bool = False) -> None:
        self.requests: list[str] = []
        self.connections = 0
        self._replies: queue.Queue[bytes | None] = queue.Queue()
        for reply in replies:
            self._replies.put(reply)
        self._close = close
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection:
                connection.settimeout(30)
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        while True:
            head = b""
            while b"\r\n\r\n" not in head:
                piece = connection.recv(65536)
                if not piece:
                    return
                head += piece
            self.requests.append(head.decode("latin-1"))
            reply = self._replies.get(timeout=30)
            if reply is None:
                self._over.wait(30)
                return
            connection.sendall(reply)
            if isinstance(reply, Reset):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if self._close or isinstance(reply, Last):
                return

    def end(self) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(30)


@contextmanager
def scripted(*replies: bytes | None, close: bool = False) -> Iterator[Scripted]:
    server = Scripted(*replies, close=close)
    try:
        yield server
    finally:
        server.end()


def reply(status: int, body: bytes, *headers: str) -> bytes:
    """A whole reply of HTTP/1.1."""
    lines = [f"HTTP/1.1 {status} Said", f"content-length: {len(body)}", *headers, "\r\n"]
    return "\r\n".join(lines).encode() + body


SHED = reply(429, b'{"error": "full", "code": "shed", "hint": "later"}', "retry-after: 1")
GOOD = reply(200, b'{"model": "m", "predictions": [1]}')


def sent_timeouts_ms(server: Scripted) -> list[float]:
    """The deadlines that the requests named."""
    lines = [line for request in server.requests for line in request.split("\r\n")]
    return [float(line.split(": ")[1]) for line in lines if line.startswith("x-tailcut-timeout-ms")]


@both
def test_a_shed_request_is_sent_again_when_the_server_says_and_the_deadline_allows(kind: Kind) -> None:
    with scripted(SHED, GOOD) as server, kind(url(server.port), model="m", timeout_s=20) as client:
        begun_s = time.monotonic()
        assert client.predict([{"a": 1}]) == [1]
        assert time.monotonic() - begun_s >= 1
        first_ms, second_ms = sent_timeouts_ms(server)
        assert second_ms <= first_ms - 1000
        assert server.connections == 1


@both
@pytest.mark.parametrize("settings", [{"timeout_s": 0.9}, {"timeout_s": 20, "retries": 0}, {}])
def test_else_it_is_the_caller_who_hears_of_it(kind: Kind, settings: dict[str, Any]) -> None:
    with scripted(SHED) as server, kind(url(server.port), model="m", **settings) as client:
        with pytest.raises(Shed, match="full") as caught:
            client.predict([{"a": 1}])
        assert caught.value.retry_after_s == 1
        assert caught.value.hint == "later"
        assert len(server.requests) == 1
        assert len(sent_timeouts_ms(server)) == ("timeout_s" in settings)


@both
def test_a_refused_connection_is_tried_again(kind: Kind) -> None:
    port = free_port()
    with kind(url(port), model="m", timeout_s=20, retries=2) as client:
        begun_s = time.monotonic()
        with pytest.raises(ConnectionFailed, match=f"cannot connect to 127.0.0.1:{port}") as caught:
            client.predict([{"a": 1}])
        assert not caught.value.sent
        assert time.monotonic() - begun_s >= 0.15  # 50 ms, then 100 ms


@both
def test_what_was_sent_is_not_sent_again(kind: Kind) -> None:
    """The connection ends where the answer should begin: it may have been computed."""
    with scripted(b"", close=True) as server, kind(url(server.port), model="m", timeout_s=20) as client:
        with pytest.raises(ConnectionFailed) as caught:
            client.predict([{"a": 1}])
        assert caught.value.sent
        assert len(server.requests) == 1


@both
def test_a_kept_connection_that_the_server_has_closed_is_not_used(kind: Kind) -> None:
    with scripted(GOOD, GOOD, close=True) as server, kind(url(server.port), model="m", timeout_s=20) as client:
        assert client.predict([{"a": 1}]) == [1]
        if kind is Waiting:
            client._loop.run_until_complete(asyncio.wait_for(client._client._idle[0][0].read(), 20))
        assert client.predict([{"a": 1}]) == [1]
        assert server.connections == 2


@both
def test_a_server_that_says_nothing_costs_no_more_than_the_timeout(kind: Kind) -> None:
    with scripted(None) as server, kind(url(server.port), model="m", timeout_s=0.3) as client:
        begun_s = time.monotonic()
        with pytest.raises(DeadlineExceeded, match="waiting for the answer"):
            client.predict([{"a": 1}])
        assert 0.3 <= time.monotonic() - begun_s < 10


@both
def test_drops_of_an_answer_do_not_prolong_the_timeout(kind: Kind) -> None:
    part = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n1"
    with (
        scripted(part, None) as server,
        kind(url(server.port), model="m", timeout_s=0.3) as client,
        pytest.raises(DeadlineExceeded),
    ):
        client.predict([{"a": 1}])


@both
@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (reply(502, b"<html>Bad Gateway</html>"), UnexpectedReply),
        (reply(200, b"<html>"), UnexpectedReply),
        (b"SSH-2.0-OpenSSH_9.2\r\n", ConnectionFailed),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{", ConnectionFailed),
    ],
)
def test_what_is_no_answer(kind: Kind, raw: bytes, error: type[TailcutError]) -> None:
    with (
        scripted(raw, close=True) as server,
        kind(url(server.port), model="m", timeout_s=20) as client,
        pytest.raises(error),
    ):
        client.metadata()


@both
def test_forms_of_http_that_proxies_use(kind: Kind) -> None:
    """An interim reply, chunks, and a body that ends with the connection."""
    body = b'{"predictions": [1]}'
    chunked = b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    chunked += b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    for raw in (chunked, b"HTTP/1.1 200 OK\r\n\r\n" + body):
        with scripted(raw, close=True) as server, kind(url(server.port), model="m", timeout_s=20) as client:
            assert client.predict([{"a": 1}]) == [1]


@both
def test_an_error_of_a_newer_server_keeps_its_code(kind: Kind) -> None:
    raw = reply(418, b'{"error": "tea", "code": "teapot", "hint": "coffee", "incident": "ab12"}')
    with scripted(raw) as server, kind(url(server.port), model="m", timeout_s=20) as client:
        with pytest.raises(TailcutError) as caught:
            client.metadata()
        assert (caught.value.code, caught.value.status) == ("teapot", 418)
        assert caught.value.hint == "coffee; find incident ab12 in the server's log"


def test_token_and_headers_are_sent(tmp_path: Path) -> None:
    with scripted(GOOD) as server:
        headers = {"X-Tenant": "a"}
        with tailcut.Client(f"{url(server.port)}/below/", model="a b", token="secret", headers=headers) as client:
            client.predict([{"a": 1}])
        (request,) = server.requests
        assert request.startswith("POST /below/predict/a%20b HTTP/1.1\r\n")
        assert "\r\nauthorization: Bearer secret\r\n" in request
        assert "\r\nx-tenant: a\r\n" in request


def test_cancelling_closes_the_connection() -> None:
    async def main(server: Scripted) -> None:
        async with tailcut.AsyncClient(url(server.port), model="m") as client:
            asking = asyncio.create_task(client.predict([{"a": 1}]))
            async with asyncio.timeout(20):
                while not server.requests:
                    await asyncio.sleep(0.001)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert client._idle == []

    with scripted(None) as server:
        asyncio.run(main(server))


@both
def test_a_closed_client_says_so(kind: Kind) -> None:
    with kind("http://127.0.0.1:1", model="m", retries=20) as client:
        begun_s = time.monotonic()
        client.close()
        with pytest.raises(ConnectionFailed, match="the client is closed"):
            client.metadata()
        assert time.monotonic() - begun_s < 5  # with all retries it were 16 s


@both
def test_tls_towards_a_plain_server_is_told_from_nobody_listening(server: Served, kind: Kind) -> None:
    where = url(server.port).replace("http://", "https://")
    with kind(where, model="m", retries=0) as client, pytest.raises(ConnectionFailed) as caught:
        client.infer({"x": ROWS})
    assert "for plain HTTP write http://" in caught.value.hint


@both
def test_tls_and_tokens(tmp_path: Path, kind: Kind) -> None:
    Secure.cert, _ = make_certificate(tmp_path)
    (tmp_path / "tokens").write_text(hashlib.sha256(b"secret").hexdigest())
    trusted = ssl.create_default_context(cafile=Secure.cert)
    with Secure(tmp_path, settings=[*TLS, 'server.tokens="tokens"']) as secure:
        where = f"https://127.0.0.1:{secure.port}"
        with kind(where, model="m", token="secret", tls=trusted, timeout_s=20) as client:
            for _ in range(3):
                assert client.infer({"x": ROWS})["y"].tolist() == [3, 7]
            inner = client._client if kind is Waiting else client
            assert len(inner._idle) == 1  # the same connection each time
        with kind(where, model="m", tls=trusted, timeout_s=20) as client, pytest.raises(Unauthorized):
            client.infer({"x": ROWS})
        with kind(where, model="m", timeout_s=60, retries=20) as client:
            begun_s = time.monotonic()
            with pytest.raises(ConnectionFailed, match="certificate") as caught:  # the system does not trust it
                client.infer({"x": ROWS})
            assert not caught.value.sent
            assert "your own authority" in caught.value.hint
            assert time.monotonic() - begun_s < 10  # a certificate does not change by asking again: 16 s
        other = where.replace("127.0.0.1", "localhost")
        with kind(other, model="m", tls=trusted, retries=0) as client, pytest.raises(ConnectionFailed) as caught:
            client.infer({"x": ROWS})
        assert "a name in the server's certificate" in caught.value.hint
        plain = f"http://127.0.0.1:{secure.port}"
        with kind(plain, model="m", timeout_s=20) as client, pytest.raises(ConnectionFailed):
            client.infer({"x": ROWS})
