"""Some weeks of the flight_risk example's data, for tests of its features, its stacks and its pilot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flight_risk import clock, serving
from flight_risk.sample import write_sample
from flight_risk.stacks import lacking_for_real

FIRST, LAST = 1378785600, 1380945600  # 10 September to 5 October 2013
AT = 1380830400  # Thursday 3 October, 16:00 in New York
needs_servers = pytest.mark.skipif(bool(lacking_for_real()), reason=lacking_for_real() or "PostgreSQL and Redis")


@contextmanager
def flight_sample(folder: Path, wall_s: float = 0.0) -> Iterator[Path]:
    """Fill ``folder`` and have the example use it meanwhile; its replay is at ``AT`` when the wall clock is there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLIGHT_RISK_HOME", str(folder))
        for name in ("FLIGHT_RISK_DATABASE", "FLIGHT_RISK_REDIS", "FLIGHT_RISK_STACK"):
            patch.delenv(name, raising=False)
        patch.setenv(clock.REPLAY, f"{AT}@{wall_s}")
        serving.vocabulary_path.cache_clear()
        clock.anchor.cache_clear()
        write_sample(folder, FIRST, LAST)
        yield folder
        serving.vocabulary_path.cache_clear()
        clock.anchor.cache_clear()
