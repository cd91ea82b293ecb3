"""Open-loop load generator and SLO check."""

from tailcut.load.capacity import CapacityResult, SearchLimits, find_capacity
from tailcut.load.plan import LoadPlan
from tailcut.load.result import LoadResult, save_result
from tailcut.load.runner import Progress, measure, run
from tailcut.load.samples import Samples, load_samples, save_samples
from tailcut.load.summary import RunFacts, summarise_run

__all__ = [
    "CapacityResult",
    "LoadPlan",
    "LoadResult",
    "Progress",
    "RunFacts",
    "Samples",
    "SearchLimits",
    "find_capacity",
    "load_samples",
    "measure",
    "run",
    "save_result",
    "save_samples",
    "summarise_run",
]
