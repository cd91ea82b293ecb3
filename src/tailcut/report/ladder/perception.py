"""What people make of a wait."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

PERCEPTION_MS = ((100.0, "instant"), (300.0, "noticed"), (1000.0, "slow"), (float("inf"), "focus lost"))
"""Up to when a reply seems instant, when a wait is noticed, and when attention goes elsewhere. Sources: R. B. Miller
(1968), "Response time in man-computer conversational transactions", AFIPS 33; J. Nielsen (1993), "Usability
Engineering", chapter 5."""


def perceived(wall_ms: float) -> str:
    """Name what a person makes of a wait."""
    return next(name for limit_ms, name in PERCEPTION_MS if wall_ms <= limit_ms)


def perception(wall_ms: npt.NDArray[np.float64]) -> dict[str, float]:
    """Share of the requests per name of ``PERCEPTION_MS``; empty without requests."""
    limits = np.array([limit_ms for limit_ms, _ in PERCEPTION_MS])
    counts = np.bincount(np.searchsorted(limits, wall_ms), minlength=len(limits))
    return {name: float(counts[place] / len(wall_ms)) for place, (_, name) in enumerate(PERCEPTION_MS) if len(wall_ms)}
