"""The same traffic against the pilot and then one lever more per rung: the before/after table."""

from tailcut.ladder.climb import climb
from tailcut.ladder.options import LadderOptions, short

__all__ = ["LadderOptions", "climb", "short"]
