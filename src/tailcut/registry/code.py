"""The user's code in a version's record, and checks of it before a version is promoted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tailcut.code.digest import Code
from tailcut.errors import ArtifactError
from tailcut.registry.records import Version

ARCHIVE = "code"
"""Name of the file of a version that holds a copy of the code: see ``Registry.file``."""


def written(code: Code | None) -> dict[str, Any]:
    """Return the user's code as a part of a version's evidence."""
    return {} if code is None else {"code": msgspec.to_builtins(code)}


def code_of(version: Version) -> Code | None:
    """Return the user's code that a version was built with; None where the build did not write it down.

    Raises:
        ArtifactError: it cannot be read.
    """
    if "code" not in version.evidence:
        return None
    try:
        return msgspec.convert(version.evidence["code"], Code)
    except msgspec.ValidationError as error:
        raise ArtifactError(
            f"the code of model {version.model!r} version {version.id} cannot be read: {error}",
            hint="run `tailcut build` again; a later tailcut may have written the record",
        ) from None


Check = Callable[[Version, str], None]
"""Refuses the variant of a version that is about to be promoted, by an ArtifactError."""


def nothing(version: Version, variant: str) -> None:
    """Check nothing."""
