"""Checks of a manifest as rows of a table."""

from __future__ import annotations

from collections.abc import Iterator

from tailcut.errors import ManifestError

Rule = tuple[bool, str, str]
"""Whether it is broken; what is wrong, with the value and the limit; the way out."""


def broken(*rules: Rule) -> Iterator[ManifestError]:
    """Yield an error for each rule that is broken."""
    return (ManifestError(message, hint=hint) for is_broken, message, hint in rules if is_broken)
