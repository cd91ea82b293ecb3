"""What every section of the manifest is: an immutable record that refuses keys it does not know."""

from __future__ import annotations

import msgspec

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]*\Z"
"""Names that go into URLs, cache keys and metric labels."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section: immutable, keyword-only, unknown keys refused."""
