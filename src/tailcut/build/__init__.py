"""Source model + holdout -> variants, each judged by its quality and its speed here, in the registry."""

from tailcut.build.builder import RECIPES, build
from tailcut.build.holdout import Holdout

__all__ = ["RECIPES", "Holdout", "build"]
