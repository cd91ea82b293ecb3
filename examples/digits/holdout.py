"""The judge of every variant: held-out digits, as they are or in copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from digits.data import Digits, copies, split
from digits.settings import SEED

if TYPE_CHECKING:
    from tailcut.build import Holdout

COPIES = 8


def holdout() -> Holdout:
    """Return COPIES copies of every held-out image, each shifted, turned and noisy in its own way; slices by digit.

    The copies of one image are alike, so 8 of them say less than 8 images would, and a verdict that takes every row as
    independent is more certain than it should be. That is the price of a data set of 1,797 images; ``originals`` is
    what can be said without it.
    """
    return _holdout(copies(split()[1], COPIES, SEED - 1))


def originals() -> Holdout:
    """Return the held-out images as they are; slices by digit."""
    return _holdout(split()[1])


def _holdout(digits: Digits) -> Holdout:
    from tailcut.build import Holdout

    return Holdout(inputs={"image": digits.images}, labels=digits.labels, slices={"digit": digits.labels})
