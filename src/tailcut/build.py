"""The names that a user's own code imports for a build: ``from tailcut.build import Holdout``."""

from __future__ import annotations

from tailcut.builder import Holdout

__all__ = ["Holdout"]
