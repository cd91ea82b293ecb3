"""Headers that were sent more than once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class Repeated(dict[str, str]):
    """Headers by name, the last value of each; it knows the others, too."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._pairs = list(pairs)
        super().__init__(self._pairs)

    def get_all(self, key: str) -> list[str]:
        """Return every value of a header."""
        return [value for name, value in self._pairs if name == key]


def by_name(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return headers by name; of a repeated one the last value, and ``is_repeated`` knows."""
    headers = dict(pairs)
    return headers if len(headers) == len(pairs) else Repeated(pairs)


def is_repeated(headers: Any, name: str) -> bool:
    """Whether a header was sent more than once."""
    get_all = getattr(headers, "get_all", None)
    return get_all is not None and len(get_all(name)) > 1
