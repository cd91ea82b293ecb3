"""What goes wrong for a client: the server's errors by their code, and what keeps an answer from coming at all."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tailcut.errors import NotReady, Shed, TailcutError

_SHOWN = 200


class ConnectionFailed(TailcutError):
    """The server could not be reached, or the connection broke before the whole answer had come.

    Args:
        sent: whether the server may have got the request: if not, sending it again is safe.
        lasting: whether trying again would end the same.
    """

    code = "connection_failed"
    status = 0

    def __init__(self, message: str, *, hint: str = "", sent: bool, lasting: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.sent = sent
        self.lasting = lasting


class UnexpectedReply(TailcutError):
    """An answer that is none of tailcut's: a proxy's page, another server's.

    Args:
        status: of HTTP.
    """

    code = "unexpected_reply"

    def __init__(self, message: str, *, hint: str = "", status: int) -> None:
        super().__init__(message, hint=hint)
        self.status = status  # type: ignore[misc]  # each has its own


class _Said(msgspec.Struct):
    error: str
    code: str = ""
    hint: str = ""
    incident: str = ""


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> TailcutError:
    """Return the error that a reply says: of the class that the server raised, where this version knows it.

    Args:
        headers: by lower-case name.
    """
    try:
        said = msgspec.json.decode(body, type=_Said)
    except (msgspec.DecodeError, UnicodeDecodeError):
        start = body[:_SHOWN].decode("utf-8", "replace")
        return UnexpectedReply(
            f"the server answered {status} with {start!r}",
            hint="check that this is the address of a tailcut server",
            status=status,
        )
    hint = said.hint
    if said.incident:
        hint = f"{hint}; find incident {said.incident} in the server's log".removeprefix("; ")
    kind = _by_code(TailcutError).get(said.code)
    if kind is not None and issubclass(kind, Shed | NotReady):
        return kind(said.error, hint=hint, retry_after_s=_seconds(headers.get("retry-after")))
    error = (kind or TailcutError)(said.error, hint=hint)
    if kind is None:
        error.code, error.status = said.code or "internal", status  # type: ignore[misc]  # of a newer server
    return error


def _by_code(root: type[TailcutError]) -> dict[str, type[TailcutError]]:
    """Return the classes that a server may raise; the first of each code, which is the one that defines it."""
    found = {root.code: root}
    for kind in root.__subclasses__():
        if kind.__module__ == TailcutError.__module__:
            found = {**_by_code(kind), **found}
    return found


def _seconds(text: str | None) -> float:
    return float(text) if text is not None and text.isdecimal() and len(text) < 10 else 0.0
