"""How much of long tests runs: a small form in ``make test``, the whole in ``make test-all`` (TEST_ALL=1).

A test or a parameter that runs in ``make test-all`` alone is marked ``whole``.
"""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

ALL = os.environ.get("TEST_ALL") == "1"


def sized(small: T, whole: T) -> T:
    """Choose a size, such as a number of trials."""
    return whole if ALL else small
