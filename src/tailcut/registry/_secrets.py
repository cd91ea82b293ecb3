"""Keeps passwords out of what is stored and said."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_PASSWORD = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]+@")


def without_passwords(tree: Any) -> Any:
    """Leave out the passwords of addresses ("postgresql://me:secret@host/db"): a registry is handed around."""
    if isinstance(tree, str):
        return _PASSWORD.sub(r"\1:***@", tree)
    if isinstance(tree, Mapping):
        return {name: without_passwords(each) for name, each in tree.items()}
    if isinstance(tree, list | tuple):
        return [without_passwords(each) for each in tree]
    return tree
