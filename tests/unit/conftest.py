"""What several files of unit tests share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tailcut.profile.tracing import Trace


@pytest.fixture
def request_() -> Iterator[Trace]:
    """A request under profile that this code works for."""
    from tailcut.core.profiling.records import Stage
    from tailcut.profile.tracing import current, open_root, tracer

    tracer.clear()
    trace = tracer.enter(7, "POST", "/predict")
    assert trace is not None
    token = current.set(None)
    open_root(trace, Stage.FRAMEWORK, "fastapi", "")
    yield trace
    current.reset(token)
    tracer.clear()
