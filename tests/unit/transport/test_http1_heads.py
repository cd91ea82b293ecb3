"""HTTP/1.1 of the server's own, without a socket: heads and bodies that do not say what they must, or say it oddly."""

from __future__ import annotations

import pytest
from tests.http1_kit import Link, statuses
from tests.unit.transport.test_http1_connection import HOST, body_of, get, run

from tailcut.protocol.http import Body, HeaderMap, Reply


@pytest.mark.parametrize(
    ("hosts", "version", "status"),
    [
        (b"", b"1.1", 400),
        (HOST, b"1.1", 200),
        (HOST * 2, b"1.1", 400),
        (b"", b"1.0", 200),
        (HOST * 2, b"1.0", 400),
        (b"host:\r\n", b"1.1", 200),  # of a target that has none
        (b"host: [::1]:8000\r\n", b"1.1", 200),
        (b"host: a.example \r\n", b"1.1", 200),
        (b"host: a.example, b.example\r\n", b"1.1", 400),
        (b"host: a.example/path\r\n", b"1.1", 400),
        (b"host: user@a.example\r\n", b"1.0", 400),
    ],
)
def test_a_request_names_one_host(hosts: bytes, version: bytes, status: int) -> None:
    async def test(link: Link) -> None:
        request = get().replace(HOST, hosts).replace(b"HTTP/1.1", b"HTTP/" + version)
        answer = await link.send(request)
        assert statuses(answer) == [status]
        if status == 400:
            assert b"Host" in body_of(answer)
            assert "connection: close" in answer.decode().lower()

    run(test)


ZEROS = b"0" * 5000


def test_a_length_of_thousands_of_digits_is_refused() -> None:
    """Also one that is worth 5: Python reads no such number, and nobody writes one."""

    async def test(link: Link) -> None:
        for length in (ZEROS + b"5", b"9" * 5000, b"0" * 20 + b"5"):
            one = Link(link.site.handle)
            raw = b"POST / HTTP/1.1\r\n" + HOST + b"content-length: " + length + b"\r\n\r\nhello"
            answer = await one.send(raw)
            assert statuses(answer) == [400]
            assert b"digits" in body_of(answer) or b"Content-Length overflow" in body_of(answer)

    run(test)


def test_a_length_that_cannot_be_read_costs_no_request_before_it() -> None:
    async def test(link: Link) -> None:
        first = get()
        second = get(more=b"x: " + b"a" * (16384 - 2 * len(first) - len(b"x: \r\n")) + b"\r\n")
        assert len(first + second) == 16384  # so that the third is read in the turn of the second
        third = b"POST / HTTP/1.1\r\n" + HOST + b"content-length: " + ZEROS + b"5\r\n\r\nhello"
        answer = await link.send(first + second + third)
        assert statuses(answer) == [200, 200, 400]

    run(test)


def test_who_was_answered_is_told_nothing_of_the_rest_of_the_body() -> None:
    """Two replies to one request: the client would take the second one for that to its next request."""

    async def refuse(method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        return Reply(404, [], b"no")

    async def test(link: Link) -> None:
        raw = b"POST / HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n"
        assert statuses(await link.send(raw)) == [404]
        assert statuses(await link.send(b"zz\r\n")) == []
        assert link.wire.is_closing() or "eof" in link.wire.events

    run(test, refuse)


def test_what_cannot_be_read_is_counted_and_the_first_of_a_kind_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """No route hears of it: a health check that sends no Host would be refused, and nobody could see why."""

    async def test(link: Link) -> None:
        for raw in (get().replace(HOST, b""), b"\0\1\2\r\n\r\n", get(more=b"x: " + b"a" * 70_000 + b"\r\n"), get()):
            await Link(link.site.handle, site=link.site).send(raw)
        assert [(one.labels, one.value) for one in link.site.samples()] == [
            ({"code": "bad_request"}, 2),
            ({"code": "head_too_large"}, 1),
        ]
        (host, head) = [record.getMessage().partition(": ")[2] for record in caplog.records]
        assert host == "the request has no Host header; send one Host header, the server's name and port"
        assert head.startswith("the request's head is over the limit of 65536 bytes; ")

    run(test)
