"""Many tests at once, and the same test again and again: what each may still spend of the error.

Sources: Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure", Scand. J. Statist. 6:65-70; spending a
bounded error over an open row of looks after Foster and Stine 2008, "alpha-investing", here with fixed shares.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class HolmStep(msgspec.Struct, frozen=True, kw_only=True):
    """What Holm's procedure says of one of several tests."""

    p_adjusted: float
    """At or under alpha exactly where the procedure rejects: the family's error then stays within alpha."""
    factor: int
    """How many hypotheses were still standing when this one was looked at; its own limit stands at alpha / factor."""
    family: int
    """How many hypotheses there are."""
    floor: float
    """The adjusted p of the test before it: no test is rejected once one before it was not."""


def steps(ps: Sequence[float]) -> list[HolmStep]:
    """Adjust p-values of a family by Holm's step-down procedure, valid however the tests hang together."""
    order = sorted(range(len(ps)), key=lambda place: ps[place])
    found: dict[int, HolmStep] = {}
    floor = 0.0
    for done, place in enumerate(order):
        factor = len(ps) - done
        adjusted = min(1.0, max(floor, ps[place] * factor))
        found[place] = HolmStep(p_adjusted=adjusted, factor=factor, family=len(ps), floor=floor)
        floor = adjusted
    return [found[place] for place in range(len(ps))]


def adjust(ps: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given."""
    return [step.p_adjusted for step in steps(ps)]


def alpha_of_use(alpha: float, uses: int) -> float:
    """Error that a verdict may spend where the same confirmation rows already gave ``uses`` verdicts.

    The first verdict spends ``alpha``, the promised error; the k-th one after that alpha / (k (k + 1)) for k >= 2.
    These sum to alpha / 2, so that however often the rows are used again, the chance of ever passing a variant that
    drops by its budget or more stays within 1.5 alpha.

    Raises:
        ValueError: ``uses`` is negative.
    """
    if uses < 0:
        raise ValueError(f"uses is {uses}; it counts earlier verdicts and starts at 0")
    return alpha if uses == 0 else alpha / ((uses + 1) * (uses + 2))
