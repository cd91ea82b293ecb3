"""Heads that differ from the one before in nothing but the length of the body, as most of a client's do. No I/O.

Such a head was read by the parser once, and means the same again: every byte of it is compared.
"""

from __future__ import annotations

_LENGTH = b"\r\ncontent-length:"
_MOST_DIGITS = 15


class HeadAlike:
    """A head that was read, to know it again.

    Attributes:
        method, path: of its request.
        headers: of the one that was read last.
    """

    __slots__ = ("_after", "_before", "_head", "_size_bytes", "headers", "method", "path")

    def __init__(self, method: str, path: str, headers: dict[str, str], before: bytes, after: bytes) -> None:
        self.method = method
        self.path = path
        self._before = before
        self._after = after
        self._set(headers)

    @staticmethod
    def of(head: bytes, method: str, path: str, headers: dict[str, str]) -> HeadAlike | None:
        """Return it for a head as it was sent, to the empty line at its end; None where it has no length."""
        at = head.lower().find(_LENGTH)
        if head.find(b"\r\n\r\n") != len(head) - 4:
            return None  # a line break that belongs to no request came before or behind this one
        if at < 0 or type(headers) is not dict:  # something is repeated
            return None
        start = at + len(_LENGTH)
        while head[start : start + 1] in {b" ", b"\t"}:
            start += 1
        end = head.find(b"\r\n", start)
        if not head[start:end].isdigit() or end - start > _MOST_DIGITS:
            return None
        return HeadAlike(method, path, headers, head[:start], head[end:])

    def body_of(self, data: bytes) -> bytes | None:
        """Return the body of what came, where that is one whole request, and alike; ``headers`` are its own then."""
        if data.startswith(self._head) or self._differs_in_length(data):
            body = data[len(self._head) :]
            if len(body) == self._size_bytes:
                return body
        return None

    def _differs_in_length(self, data: bytes) -> bool:
        """Whether that is all; the other length is taken over then."""
        before = self._before
        if not data.startswith(before):
            return False
        end = data.find(b"\r\n", len(before))
        digits = data[len(before) : end]
        if not digits.isdigit() or len(digits) > _MOST_DIGITS or not data.startswith(self._after, end):
            return False
        self._set({**self.headers, "content-length": digits.decode("ascii")})
        return True

    def _set(self, headers: dict[str, str]) -> None:
        self.headers = headers
        length = headers["content-length"]
        self._head = self._before + length.encode("ascii") + self._after
        self._size_bytes = int(length)
