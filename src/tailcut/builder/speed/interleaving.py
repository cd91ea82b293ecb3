"""Measuring several things in turn, so that a slow spell of the machine meets all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


def turn(names: Sequence[Key], number: int) -> list[Key]:
    """Order a round: every second one is the one before it backwards, so that each of a pair comes first as often."""
    first = number // 2 % len(names) if names else 0
    turned = [*names[first:], *names[:first]]
    return turned if number % 2 == 0 else turned[::-1]


def take_turns(
    blocks: Mapping[Key, Callable[[], Value]],
    *,
    least: int,
    most: int,
    budget_s: float,
    settled: Callable[[Mapping[Key, Sequence[Value]]], bool] | None = None,
    clock_s: Callable[[], float] = time.monotonic,
) -> dict[Key, list[Value]]:
    """Run every block once a round, in the order of ``turn``.

    Args:
        blocks: what is measured.
        least: rounds that are run however long they take.
        most: rounds that are run at most.
        budget_s: no round after ``least`` begins once this long has passed,
        settled: or once this says of the values so far that more of them would change nothing.

    Returns:
        the value of each block, one per round.
    """
    names = list(blocks)
    found: dict[Key, list[Value]] = {name: [] for name in names}
    ends_s = clock_s() + budget_s
    for number in range(most):
        if number >= least and (clock_s() >= ends_s or (settled is not None and settled(found))):
            break
        for name in turn(names, number):
            found[name].append(blocks[name]())
    return found
