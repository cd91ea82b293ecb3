"""Webhooks: signatures after Standard Webhooks, retries, and receivers that misbehave."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest
from tests.wait_kit import block_until

from tailcut.errors import ManifestError
from tailcut.observe.alerts import webhook as module
from tailcut.observe.alerts.standard_webhooks import read_secret, signed_headers
from tailcut.observe.alerts.webhook import Attempt, Message, Target, Webhook, post_once
from tailcut.system.public_address import AddressRefusedError, checked_addresses, is_public

KEY = bytes(range(32))
MESSAGE = Message("msg_1", b'{"type":"alarm.firing"}')


# -- Signatures ------------------------------------------------------------------------------------------------------


def test_the_signature_of_the_specifications_example() -> None:
    # The example of https://github.com/standard-webhooks/standard-webhooks (libraries/python, test_webhooks.py).
    key = read_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "here")
    body = b'{"test": 2432232314}'
    headers = signed_headers(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert headers["webhook-timestamp"] == "1614265330"


@pytest.mark.parametrize(
    "text", ["", "secret", "whsec_", "whsec_???", "whsec_c2hvcnQ=", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]
)
def test_a_secret_that_is_none_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ManifestError) as refused:
        read_secret(text, "the file webhook-secret")
    assert "webhook-secret" in str(refused.value)
    assert len(text) < 10 or text.removeprefix("whsec_") not in refused.value.message


# -- Addresses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
        "64:ff9b::7f00:1", "2002:7f00:1::", "2001:db8::1",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    assert not is_public(address)
    with pytest.raises(AddressRefusedError, match="allow_private"):
        checked_addresses("hooks.example", 443, allow_private=False, resolve=lambda *_: ["93.184.216.34", address])
    assert checked_addresses("hooks.example", 443, allow_private=True, resolve=lambda *_: [address]) == [address]


def test_public_addresses_pass() -> None:
    for address in ("93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::5db8:d822"):
        assert is_public(address)


# -- Over a socket ---------------------------------------------------------------------------------------------------


class Receiver(BaseHTTPRequestHandler):
    """Answers with the status in the path, and notes what came."""

    got: ClassVar[list[tuple[str, dict[str, str], bytes]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.got.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(int(self.path.strip("/")))
        self.send_header("location", "http://127.0.0.1:1/200")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing to the terminal."""


@contextmanager
def receiver() -> Iterator[str]:
    Receiver.got = []
    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_message_arrives_signed_and_redirects_are_not_followed() -> None:
    with receiver() as url:
        assert post_once(Target(f"{url}/204", KEY, allow_private=True), MESSAGE, 1_700_000_000) == Attempt(204)
        assert post_once(Target(f"{url}/302", KEY, allow_private=True), MESSAGE, 1_700_000_000) == Attempt(302)
        assert post_once(Target(f"{url}/500", KEY, allow_private=True), MESSAGE, 1_700_000_000) == Attempt(500)
    assert [path for path, _, _ in Receiver.got] == ["/204", "/302", "/500"]
    _, headers, body = Receiver.got[0]
    signed = f"msg_1.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert (headers["webhook-id"], body) == ("msg_1", MESSAGE.body)


def test_a_private_address_is_refused_before_it_is_connected_to() -> None:
    with receiver() as url:
        attempt = post_once(Target(f"{url}/204", KEY), MESSAGE, 0)
    assert (attempt.status, Receiver.got) == (0, [])
    assert "127.0.0.1" in attempt.failure


@pytest.mark.parametrize("trickles", [False, True])
def test_a_receiver_that_hangs_or_trickles_is_given_up(trickles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TIMEOUT_S", 0.3)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                while trickles and not over.wait(0.05):
                    try:
                        connection.sendall(b"H")
                    except OSError:
                        return
                over.wait(10)

        thread = threading.Thread(target=serve)
        thread.start()
        target = Target(f"http://127.0.0.1:{server.getsockname()[1]}/", KEY, allow_private=True)
        attempt = post_once(target, MESSAGE, 0)
        over.set()
        thread.join()
    assert attempt == Attempt(0, "no answer within 0.3 s")


# -- The queue -------------------------------------------------------------------------------------------------------


class Clock:
    """A monotonic clock that tests set."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def stepped(*attempts: Attempt, most: int = 64) -> tuple[Webhook, list[str], Clock]:
    """A webhook without a thread, whose attempts end like this, then succeed."""
    sent: list[str] = []
    planned = list(attempts)

    def post(target: Target, message: Message, timestamp_s: int) -> Attempt:
        sent.append(message.id)
        return planned.pop(0) if planned else Attempt(200)

    clock = Clock()
    made = Webhook(
        Target("https://hooks.example/", KEY),
        post,
        monotonic_s=clock,
        wall_s=clock,
        jitter=lambda: 1.0,
        most_pending=most,
    )
    made._thread = threading.current_thread()
    return made, sent, clock


def test_failures_are_tried_again_with_back_off_and_in_order() -> None:
    hook, sent, clock = stepped(Attempt(500), Attempt(0, "refused"), Attempt(302))
    hook.submit(MESSAGE)
    hook.submit(Message("msg_2", b""))
    waits = []
    while (wait_s := hook.step()) != float("inf"):
        waits.append(wait_s)
        clock.now_s += wait_s
    assert waits == [2.0, 4.0, 8.0, 0.0, 0.0]
    assert sent == ["msg_1"] * 4 + ["msg_2"]
    assert hook.take_done() == ["msg_1", "msg_2"]
    assert (hook.figures.delivered, hook.figures.attempts) == (2, 5)


def test_a_message_is_given_up_in_the_end_and_at_once_where_the_receiver_is_gone() -> None:
    hook, sent, clock = stepped(*[Attempt(500)] * 18, Attempt(410))
    for number in (1, 2, 3):
        hook.submit(Message(f"msg_{number}", b""))
    while (wait_s := hook.step()) != float("inf"):
        clock.now_s += wait_s
    assert (hook.figures.failed, hook.figures.delivered) == (2, 1)
    assert 3600 < clock.now_s < 3 * 3600, "an outage of an hour loses nothing"
    assert sent[-2:] == ["msg_2", "msg_3"]


def test_the_queue_is_bounded_and_a_message_is_queued_once() -> None:
    hook, _, _ = stepped(*[Attempt(500)] * 3, most=3)
    for number in (1, 1, 2, 3, 4, 5):
        hook.submit(Message(f"msg_{number}", b""))
    assert hook.figures.dropped == 2
    assert hook.take_done() == ["msg_2", "msg_3"]


def test_its_thread_delivers_and_ends() -> None:
    with receiver() as url:
        hook = Webhook(Target(f"{url}/204", KEY, allow_private=True))
        hook.submit(MESSAGE)
        block_until(lambda: hook.figures.delivered == 1)
        hook.close(5.0)
        assert hook._thread is not None
        assert not hook._thread.is_alive()
