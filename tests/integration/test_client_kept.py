"""Connections that are kept, and servers that close them while the next request is on its way."""

from __future__ import annotations

import pytest
from tests.integration.servers import free_port
from tests.integration.test_client import GOOD, Kind, Last, Reset, both, scripted, sent_timeouts_ms, url

from tailcut.client import ConnectionFailed

pytestmark = pytest.mark.integration

closed = pytest.mark.parametrize("cut", [Last(), Reset()], ids=["end", "reset"])


@both
@closed
def test_a_request_that_meets_the_closing_of_its_kept_connection_goes_out_on_a_new_one(kind: Kind, cut: Last) -> None:
    """The server closes when it has the request: so it surely was open when the client looked."""
    with (
        scripted(GOOD, cut, GOOD, GOOD) as server,
        kind(url(server.port), model="m", timeout_s=20, retries=0) as client,
    ):
        for _ in range(3):
            assert client.predict([{"a": 1}]) == [1]
        first, lost, again, last = (request.split("\r\n\r\n")[1] for request in server.requests)
        assert first == lost == again == last
        assert server.connections == 2
        deadlines_ms = sent_timeouts_ms(server)
        assert deadlines_ms[2] < deadlines_ms[1]  # of one and the same call


@both
@closed
def test_a_new_connection_that_breaks_is_an_error(kind: Kind, cut: Last) -> None:
    with scripted(cut) as server, kind(url(server.port), model="m", timeout_s=20) as client:
        with pytest.raises(ConnectionFailed) as caught:
            client.predict([{"a": 1}])
        assert caught.value.sent
        assert len(server.requests) == 1


@both
@closed
def test_it_goes_out_once_more_and_no_more(kind: Kind, cut: Last) -> None:
    with scripted(GOOD, cut, cut) as server, kind(url(server.port), model="m", timeout_s=20) as client:
        client.predict([{"a": 1}])
        with pytest.raises(ConnectionFailed) as caught:
            client.predict([{"a": 1}])
        assert caught.value.sent
        assert len(server.requests) == 3


@both
def test_an_answer_that_had_begun_is_not_asked_for_again(kind: Kind) -> None:
    with scripted(GOOD, Last(b"H")) as server, kind(url(server.port), model="m", timeout_s=20) as client:
        client.predict([{"a": 1}])
        with pytest.raises(ConnectionFailed) as caught:
            client.predict([{"a": 1}])
        assert caught.value.sent
        assert len(server.requests) == 2


@both
def test_a_server_that_is_gone_after_all_may_have_got_it(kind: Kind) -> None:
    """Nobody listens where the new connection goes; what the caller hears is that the server may have it."""
    with scripted(GOOD, Last()) as server, kind(url(server.port), model="m", timeout_s=20) as client:
        client.predict([{"a": 1}])
        asking = client._client if hasattr(client, "_client") else client
        asking._address = asking._address._replace(port=free_port())
        with pytest.raises(ConnectionFailed, match="cannot connect") as caught:
            client.predict([{"a": 1}])
        assert caught.value.sent
