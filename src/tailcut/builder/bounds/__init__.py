"""Limits of the inputs that a model itself has: found in the model, proven by running it."""

from __future__ import annotations

from tailcut.builder.bounds.edges import Edges, Finding
from tailcut.builder.bounds.source import FoundBounds, of_source

__all__ = ["Edges", "Finding", "FoundBounds", "of_source"]
