"""Source model + holdout -> variants, each judged by its quality and its speed here, in the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailcut.builder.holdouts.holdout import Holdout

if TYPE_CHECKING:
    from tailcut.builder.builder import build

__all__ = ["Holdout", "build"]


def __getattr__(name: str) -> Any:
    """Import ``build`` when it is asked for: a build's child processes, a dozen and more, do without the builder."""
    if name == "build":
        from tailcut.builder.builder import build

        return build
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
