"""What a client's calls return, and how it is read from a reply."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tailcut.client.failures import UnexpectedReply, error_of
from tailcut.client.tensors import decode as arrays_of
from tailcut.client.wire import Received
from tailcut.common.json_values import UNREADABLE, decode
from tailcut.common.tensors import Array

_OBJECT = msgspec.json.Decoder(dict[str, Any])
_STAGE = re.compile(r"([a-z_-]+);dur=([0-9]+(?:\.[0-9]+)?)")


@dataclass(frozen=True)
class Reply:
    """What a reply says beside its answer.

    Attributes:
        variant: that answered.
        version: of the model.
        cache: hit, miss, stale or off.
        stages_ms: the server's milliseconds by stage, and "total".
    """

    variant: str
    version: str
    cache: str
    stages_ms: Mapping[str, float]


class Predictions(list[Any]):
    """One prediction per row or entity, in their order.

    Attributes:
        reply: what came with them.
    """

    reply: Reply


class Outputs(dict[str, Array]):
    """Arrays by output name, first dimension the rows.

    Attributes:
        reply: what came with them.
    """

    reply: Reply


def outputs_of(received: Received) -> Outputs:
    """Return the arrays of an inference reply; raises what an error says."""
    _check(received)
    try:
        found = Outputs(arrays_of(received.headers, received.body))
    except (ValueError, KeyError, TypeError, *UNREADABLE) as error:
        raise _unexpected(received, error) from error
    found.reply = _reply(received.headers)
    return found


def predictions_of(received: Received) -> Predictions:
    """Return the predictions of a reply; raises what an error says."""
    try:
        found = Predictions(metadata_of(received)["predictions"])
    except (KeyError, TypeError) as error:
        raise _unexpected(received, error) from error
    found.reply = _reply(received.headers)
    return found


def metadata_of(received: Received) -> dict[str, Any]:
    """Return a reply that is one JSON object; raises what an error says."""
    _check(received)
    try:
        return decode(_OBJECT, received.body)
    except UNREADABLE as error:
        raise _unexpected(received, error) from error


def _check(received: Received) -> None:
    if received.status != 200:
        raise error_of(received.status, received.headers, received.body)


def _unexpected(received: Received, error: Exception) -> UnexpectedReply:
    return UnexpectedReply(
        f"the answer cannot be read: {error}",
        hint="check that this is the address of a tailcut server",
        status=received.status,
    )


def _reply(headers: Mapping[str, str]) -> Reply:
    # Proxies add entries of their own, with other parameters.
    entries = [_STAGE.fullmatch(entry.strip()) for entry in headers.get("server-timing", "").split(",")]
    return Reply(
        variant=headers.get("x-tailcut-variant", ""),
        version=headers.get("x-tailcut-version", ""),
        cache=headers.get("x-tailcut-cache", ""),
        stages_ms={entry[1]: float(entry[2]) for entry in entries if entry},
    )
