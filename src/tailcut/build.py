"""``from tailcut.build import Holdout``: the name that models written for earlier versions import."""

from __future__ import annotations

from tailcut.builder import Holdout

__all__ = ["Holdout"]
