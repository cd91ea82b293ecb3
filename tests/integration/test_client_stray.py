"""What a server or a proxy sends unasked is never taken for an answer."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import tailcut
from tailcut.errors import TailcutError

pytestmark = pytest.mark.integration

Script = Callable[[Callable[[], bool], socket.socket, threading.Event], None]


def answer(number: int) -> bytes:
    body = b'{"predictions":[%d]}' % number
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


def idle_timeout(read: Callable[[], bool], connection: socket.socket, said: threading.Event) -> None:
    """Answer, and say 408 to the idle connection, as proxies do."""
    while read():
        connection.sendall(answer(1))
        connection.sendall(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
        said.set()


def two_answers(read: Callable[[], bool], connection: socket.socket, said: threading.Event) -> None:
    """Answer twice, the second time in part."""
    while read():
        connection.sendall(answer(1) + answer(666)[:-4])
        said.set()


def garbage(read: Callable[[], bool], connection: socket.socket, said: threading.Event) -> None:
    """Answer, and send what is no HTTP."""
    while read():
        connection.sendall(answer(1) + b"\x00\x01garbage\r\n")
        said.set()


SCRIPTS = [idle_timeout, two_answers, garbage]


@contextmanager
def server(script: Script) -> Iterator[tuple[str, threading.Event]]:
    said = threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def talk(connection: socket.socket) -> None:
        def read() -> bool:
            received = b""
            while b"\r\n\r\n" not in received or not received.endswith(b"}"):
                piece = connection.recv(65536)
                if not piece:
                    return False
                received += piece
            return True

        with connection:
            try:
                script(read, connection, said)
            except OSError:
                return  # the client has closed what it does not trust

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=talk, args=(connection,)))
            threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", said
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        for thread in [accepting, *threads]:
            thread.join(10)


@pytest.mark.parametrize("script", SCRIPTS)
def test_stray_bytes_do_not_reach_the_next_call(script: Script) -> None:
    with server(script) as (url, said), tailcut.Client(url, model="m", timeout_s=10) as client:
        for _ in range(3):
            assert client.predict([{}]) == [1]
            assert said.wait(10)
            said.clear()


@pytest.mark.parametrize("script", SCRIPTS)
def test_stray_bytes_do_not_reach_the_next_call_of_asyncio(script: Script) -> None:
    async def ask(url: str, said: threading.Event) -> None:
        async with tailcut.AsyncClient(url, model="m", timeout_s=10) as client:
            for _ in range(3):
                assert await client.predict([{}]) == [1]
                assert await asyncio.to_thread(said.wait, 10)
                said.clear()

    with server(script) as (url, said):
        asyncio.run(ask(url, said))


def test_a_connection_that_brings_nothing_is_used_again() -> None:
    opened: list[socket.socket] = []

    def well_behaved(read: Callable[[], bool], connection: socket.socket, said: threading.Event) -> None:
        opened.append(connection)
        while read():
            connection.sendall(answer(len(opened)))

    async def ask(url: str) -> None:
        async with tailcut.AsyncClient(url, model="m", timeout_s=10) as client:
            assert [await client.predict([{}]) for _ in range(5)] == [[1]] * 5

    with server(well_behaved) as (url, _):
        asyncio.run(ask(url))


def test_a_proxy_in_between_may_add_server_timing() -> None:
    def proxied(read: Callable[[], bool], connection: socket.socket, said: threading.Event) -> None:
        timing = b'server-timing: cdn;desc="a, b", edge;dur=1;desc="x", infer;dur=2.5\r\ncontent-length'
        while read():
            connection.sendall(answer(1).replace(b"content-length", timing))

    with server(proxied) as (url, _), tailcut.Client(url, model="m", timeout_s=10) as client:
        assert client.predict([{}]).reply.stages_ms == {"infer": 2.5}


def test_json_of_another_server_is_an_error_of_the_client() -> None:
    def other(read: Callable[[], bool], connection: socket.socket, said: threading.Event) -> None:
        while read():
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    with server(other) as (url, _), tailcut.Client(url, model="m", timeout_s=10) as client:
        with pytest.raises(TailcutError) as caught:
            client.predict([{}])
        assert caught.value.code == "unexpected_reply"
