"""Webhooks: signatures after Standard Webhooks, retries, and receivers that misbehave."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import BadStatusLine
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest
from tests.wait_kit import block_until

from tailcut.errors import ManifestError
from tailcut.observe.alerts import webhook as module
from tailcut.observe.alerts.webhook import Message, Webhook, WebhookTarget, post_once, read_secret, signed_headers
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
        assert post_once(WebhookTarget(f"{url}/204", KEY, allow_private=True), MESSAGE, 1_700_000_000) == ""
        assert post_once(WebhookTarget(f"{url}/302", KEY, allow_private=True), MESSAGE, 0).endswith("is not followed")
        assert post_once(WebhookTarget(f"{url}/500", KEY, allow_private=True), MESSAGE, 0).endswith("answered 500")
    assert [path for path, _, _ in Receiver.got] == ["/204", "/302", "/500"]
    _, headers, body = Receiver.got[0]
    signed = f"msg_1.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert (headers["webhook-id"], body) == ("msg_1", MESSAGE.body)


def test_a_private_address_is_refused_before_it_is_connected_to() -> None:
    with receiver() as url, pytest.raises(AddressRefusedError, match=r"127\.0\.0\.1"):
        post_once(WebhookTarget(f"{url}/204", KEY), MESSAGE, 0)
    assert Receiver.got == []


@pytest.mark.parametrize("does", ["hangs", "drips"])
def test_a_receiver_that_does_not_answer_in_time_is_given_up(does: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TIMEOUT_S", 0.3)
    over = threading.Event()

    def drip(server: socket.socket) -> None:
        with server.accept()[0] as connection, suppress(OSError):
            while not over.wait(0.05):
                connection.send(b"H")

    with socket.create_server(("127.0.0.1", 0)) as server:
        if does == "drips":
            threading.Thread(target=drip, args=(server,)).start()
        target = WebhookTarget(f"http://127.0.0.1:{server.getsockname()[1]}/", KEY, allow_private=True)
        began_s = time.monotonic()
        with pytest.raises(TimeoutError, match="timed out"):
            post_once(target, MESSAGE, 0)
        assert time.monotonic() - began_s < 5.0
        over.set()


@pytest.mark.parametrize("answer", [b"", b"220 mail.example ESMTP\r\n", b"x" * 5000])
def test_what_is_no_http_is_no_answer(answer: bytes) -> None:
    def send(server: socket.socket) -> None:
        with server.accept()[0] as connection:
            connection.recv(10_000)
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=send, args=(server,))
        thread.start()
        target = WebhookTarget(f"http://127.0.0.1:{server.getsockname()[1]}/", KEY, allow_private=True)
        with pytest.raises(BadStatusLine):
            post_once(target, MESSAGE, 0)
        thread.join()


def test_a_connection_to_any_of_the_addresses_has_the_whole_time_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = []
    monkeypatch.setattr(module, "checked_addresses", lambda *_, **__: ["127.0.0.1"] * 4)
    monkeypatch.setattr(module, "_read_status", lambda connection: waits.append(connection.gettimeout()) or 204)
    with receiver() as url:
        assert post_once(WebhookTarget(f"{url}/204", KEY), MESSAGE, 0) == ""
    assert waits == [10.0]


# -- The queue -------------------------------------------------------------------------------------------------------


def posted(*failures: str, waits_s: tuple[float, ...] = (0.0, 0.0, 0.0)) -> tuple[Webhook, list[str]]:
    """A webhook whose attempts end like this, then succeed."""
    sent: list[str] = []
    planned = list(failures)

    def post(target: WebhookTarget, message: Message, timestamp_s: int) -> str:
        sent.append(message.id)
        return planned.pop(0) if planned else ""

    return Webhook(WebhookTarget("https://hooks.example/", KEY), post, waits_s=waits_s), sent


def test_a_message_has_three_tries_and_messages_stay_in_order(caplog: pytest.LogCaptureFixture) -> None:
    hook, sent = posted("refused", "the webhook answered 500", "", *["gone"] * 3)
    for number in (1, 2, 3):
        hook.submit(Message(f"msg_{number}", b""))
    block_until(lambda: len(sent) == 7)
    hook.close(5.0)
    assert sent == ["msg_1"] * 3 + ["msg_2"] * 3 + ["msg_3"]
    assert tuple(hook.figures.values()) == (2, 1, 0)
    assert "the alarm msg_2 was not delivered: gone; it is given up" in caplog.text


def test_what_is_raised_for_one_message_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    def post(target: WebhookTarget, message: Message, timestamp_s: int) -> str:
        if message.id == "msg_1":
            raise LookupError("no such thing")
        return ""

    hook = Webhook(WebhookTarget("https://hooks.example/", KEY), post, waits_s=(0.0, 0.0, 0.0))
    for number in (1, 2):
        hook.submit(Message(f"msg_{number}", b""))
    hook.close(5.0)
    assert tuple(hook.figures.values()) == (1, 1, 0)
    assert "the alarm msg_1 was not delivered: LookupError: no such thing; it is given up" in caplog.text


def test_a_stop_tries_what_waits_once_and_does_not_wait_for_another_try() -> None:
    hook, sent = posted("refused", waits_s=(0.0, 3600.0, 3600.0))
    for number in (1, 2):
        hook.submit(Message(f"msg_{number}", b""))
    block_until(lambda: len(sent) == 1)
    hook.close(5.0)
    assert sent == ["msg_1", "msg_2"]
    assert tuple(hook.figures.values()) == (1, 1, 0)


def test_the_queue_is_bounded() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def post(target: WebhookTarget, message: Message, timestamp_s: int) -> str:
        entered.set()
        go_on.wait(10)
        return ""

    hook = Webhook(WebhookTarget("https://hooks.example/", KEY), post)
    hook.submit(MESSAGE)
    entered.wait(10)
    for number in range(66):
        hook.submit(Message(f"msg_{number}", b""))
    assert hook.figures["dropped"] == 2
    go_on.set()
    hook.close(10.0)
    assert tuple(hook.figures.values()) == (65, 0, 2)


def test_its_thread_delivers_and_ends() -> None:
    with receiver() as url:
        hook = Webhook(WebhookTarget(f"{url}/204", KEY, allow_private=True))
        hook.submit(MESSAGE)
        block_until(lambda: hook.figures["delivered"] == 1)
        hook.close(5.0)
        assert "tailcut-webhook" not in {thread.name for thread in threading.enumerate()}
