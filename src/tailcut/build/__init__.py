"""Source model + holdout -> variants, each judged by its quality and its speed here, in the registry."""

from tailcut.build.builder import build
from tailcut.build.holdout import Holdout

__all__ = ["Holdout", "build"]
