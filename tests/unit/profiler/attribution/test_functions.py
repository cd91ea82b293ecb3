"""Which functions the samples of code are told of."""

from __future__ import annotations

from tailcut.profiler.attribution.functions import functions_of
from tailcut.profiler.records import Recording, StackSample

_MS = 1_000_000


def sample(place: str, milliseconds: int) -> StackSample:
    return StackSample(stack=(place,), weight_ns=milliseconds * _MS, place=place, code=("read", "app.py:1"))


def test_functions_are_told_whole_but_not_those_of_one_name() -> None:
    seen = [("work (app.py:3)", 2), ("work (app.py:4)", 3), ("<lambda> (app.py:8)", 4), ("<lambda> (app.py:9)", 1)]
    found = functions_of(
        Recording(
            target="app:app", rate=1.0, duration_s=1.0, requests=(), sample_interval_ns=_MS,
            samples=tuple(sample(*one) for one in seen),
        )
    )[("read", "app.py:1")]  # fmt: skip
    assert [(one.function, one.samples) for one in found] == [
        ("work (app.py:4)", 5),
        ("<lambda> (app.py:8)", 4),
        ("<lambda> (app.py:9)", 1),
    ]
