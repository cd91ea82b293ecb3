"""Smoke tests before ``tailcut registry`` verifies, promotes or rolls back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailcut.cli._registry import load_named
from tailcut.registry import Registry
from tailcut.registry.checking import Trial

Quick = Annotated[bool, typer.Option("--quick", help="Check only size and SHA-256; open no variant.")]


def smoke_test(
    manifest: list[Path] | None,
    model: str,
    settings: list[str] | None,
    place: str | None,
    registry: Registry,
    *,
    quick: bool,
) -> Trial | None:
    """Return what opens a variant and runs rows on it; None for the quick check.

    Args:
        place: of the registry, where it was given in place of the manifest: then there is no code of the user's.
    """
    if quick:
        return None
    from tailcut.models.smoke_test import SmokeTest

    return SmokeTest(registry, load_named(manifest, model, settings) if place is None else None)
