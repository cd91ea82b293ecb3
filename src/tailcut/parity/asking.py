"""Send requests to one side and read the replies; or the same requests to both, one after the other."""

from __future__ import annotations

import http.client
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import msgspec

from tailcut.common.json_values import UNREADABLE, decode, encode
from tailcut.load.plan import parse_url
from tailcut.parity.analysis.comparing import ParityExchange, ParityReply
from tailcut.parity.analysis.request_form import RequestForm, rows_in
from tailcut.parity.payloads import Payload

_PASSING = frozenset({429, 503, 504})
"""Statuses of a server that is cold or full: asked once more before they count."""
_TEXT_CHARS = 300
_JSON: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class Asker:
    """Posts JSON to one address; each request has a connection of its own, so that none meets one that was closed.

    Args:
        url: of the server, with the path that requests go to.
        path: instead of the URL's; empty: that one.
        headers: sent with each.
        timeout_s: of one request.
    """

    def __init__(
        self, url: str, path: str = "", *, headers: Iterable[tuple[str, str]] = (), timeout_s: float = 30.0
    ) -> None:
        target = parse_url(url)
        self.url = f"{'https' if target.tls else 'http'}://{target.authority}{path}" if path else url
        self._target = parse_url(self.url)
        self._headers = {"Content-Type": "application/json", "Connection": "close", **dict(headers)}
        self._timeout_s = timeout_s

    def ask(self, body: bytes, path: str = "") -> ParityReply:
        """Post a body; where the reply says "not now", post it once more.

        Args:
            body: JSON.
            path: instead of the address's own.

        Returns:
            the reply; status 0 and the reason where there was none.
        """
        reply = self._once(body, path)
        return self._once(body, path) if reply.status in _PASSING else reply

    def _once(self, body: bytes, path: str) -> ParityReply:
        target = self._target
        kind = http.client.HTTPSConnection if target.tls else http.client.HTTPConnection
        try:
            with closing(kind(target.host, target.port, timeout=self._timeout_s)) as connection:
                connection.request("POST", path or target.path, body, self._headers)
                response = connection.getresponse()
                status, content = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            return ParityReply(0, None, f"no reply: {error!r}")
        text = content[: 4 * _TEXT_CHARS].decode("utf-8", "replace")[:_TEXT_CHARS]
        try:
            return ParityReply(status, decode(_JSON, content), text)
        except UNREADABLE:
            return ParityReply(status, None, text)


def exchange(number: int, payload: Payload, pilot: Asker, ours: Asker, form: RequestForm) -> ParityExchange:
    """Ask the pilot and then the deployment.

    Args:
        number: of the request, from 1.
        payload: the pilot's request.
        form: makes the deployment's of it.
    """
    theirs = pilot.ask(payload.raw, payload.path)
    asked = form.apply(payload.body)
    if asked is None:
        reply = ParityReply(400, None, f"not sent: the request has no {form}")
        return ParityExchange(number, payload.path, payload.body, None, 0, theirs, reply)
    reply = ours.ask(encode(asked))
    return ParityExchange(number, payload.path, payload.body, asked, rows_in(asked) or 0, theirs, reply)


def exchange_all(
    payloads: Sequence[Payload],
    pilot: Asker,
    ours: Asker,
    form: RequestForm,
    *,
    concurrency: int = 1,
) -> list[ParityExchange]:
    """Send all requests to both sides, in their order.

    Args:
        concurrency: requests at a time; each goes to the pilot, then to the deployment.
    """
    numbers = range(1, len(payloads) + 1)
    with ThreadPoolExecutor(concurrency, thread_name_prefix="tailcut-parity") as pool:
        return list(pool.map(lambda number, payload: exchange(number, payload, pilot, ours, form), numbers, payloads))
