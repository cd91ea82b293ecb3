"""Where the example keeps what it makes, and what makes it out of date."""

from __future__ import annotations

import hashlib
from pathlib import Path

HERE = Path(__file__).resolve().parent

COLUMNS = ("months", "late_orders")
"""The two SQL features: months as a customer, and orders of the last 90 days that came late."""
SEED = 2468


def home() -> Path:
    """Return the artefact folder, which the manifests name too."""
    return HERE / ".artifacts"


def source_hash(*modules: str) -> str:
    """Hash the source of the example's modules, so that what they made is made again when they change."""
    digest = hashlib.sha256()
    for module in modules:
        digest.update((HERE / f"{module}.py").read_bytes())
    return digest.hexdigest()[:16]
