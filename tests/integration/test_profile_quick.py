"""Code that takes a fraction of a millisecond per request: stacks that change all the time still tell its functions."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.planting import record_briefly

from tailcut.profiler.attribution.budget import make_budget
from tailcut.profiler.plan import PilotPlan
from tailcut.profiler.records import Stage

pytestmark = pytest.mark.integration

APP = """
from fastapi import FastAPI

app = FastAPI()
NUMBERS = list(range(2_000))

def light(numbers):
    total = 0
    for number in numbers:
        total += number * number % 7
    return total

def heavy(numbers):
    total = 0
    for number in numbers:
        total += number * number % 7
    for number in numbers:
        total += number * number % 7
    for number in numbers:
        total += number * number % 7
    return total

@app.get("/")
async def read():
    return {"answer": light(NUMBERS) + heavy(NUMBERS)}
"""


def test_the_functions_of_quick_code_are_told(tmp_path: Path) -> None:
    """Each with all of its lines, and with about its share of the time."""
    (tmp_path / "app.py").write_text(APP)
    plan = PilotPlan(
        target="app:app", directory=str(tmp_path), rate=200.0, duration_s=3.0, warmup_s=0.5,
        layers=False,
    )  # fmt: skip
    budget = make_budget(record_briefly(plan))
    (found,) = (one.functions for one in budget.culprits_of(Stage.CODE) if one.label == "read")
    shares = {one.function.partition(" (")[0]: one for one in found}
    assert len(shares) == len(found)  # lines are not told apart
    assert found[0].function.startswith("heavy (app.py:")
    assert 0.5 < shares["heavy"].share < 0.95  # 0.75 of the work is there
    assert 0.05 < shares["light"].share < 0.5
    assert sum(one.samples for one in found) >= 40
