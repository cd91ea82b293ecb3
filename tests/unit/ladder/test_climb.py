"""A rung whose server fails in the search for its capacity keeps the figures of its rounds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.ladder.ladder_sample import seen

from tailcut.common.slo import Objectives
from tailcut.errors import ManifestError, StartError
from tailcut.ladder import LadderOptions, climb, measuring
from tailcut.ladder.climb import pilot_rung
from tailcut.ladder.options import describe
from tailcut.load import LoadPlan
from tailcut.load.machine import Cores
from tailcut.manifest.subject import find_subject
from tailcut.parity.analysis.mapping import parse_pair
from tailcut.report.ladder.file import load_ladder

MANIFEST = """
name = "m"
[model]
source = "model.onnx"
inputs = [{ name = "x", shape = [-1, 2] }]
outputs = [{ name = "y", shape = [-1] }]
[ladder]
traffic = "ladder_climb_traffic:bodies"
rungs = [{ name = "first" }]
"""


SENT: list[tuple[str, int]] = []
"""Of the traffic, when each rate's measurement began."""


class Bench:
    """Measures every rate at once; every search finds its server dead."""

    def __init__(self, *_: Any) -> None:
        return

    @contextmanager
    def server(self, _: Any) -> Iterator[None]:
        yield

    def measure(self, server: None, rung: Any, name: str, rate: float, round_: int, *, sent: int) -> Any:
        SENT.append((name, sent))
        return seen(name, rate, 5.0, round_, {})

    def search(self, *_: Any) -> None:
        raise StartError("the server exited with code 137 before it was ready", hint="Killed")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A deployment whose rungs are put on the bench above."""
    (tmp_path / "tailcut.toml").write_text(MANIFEST)
    (tmp_path / "ladder_climb_traffic.py").write_text("def bodies(seed):\n    yield {}\n")
    monkeypatch.setattr(import_module("tailcut.ladder.climb"), "Bench", Bench)
    return tmp_path


def test_a_server_that_fails_in_the_search_costs_the_capacity_only(folder: Path) -> None:
    options = LadderOptions(out=folder / "out", rounds=1, comfortable_rate=10.0)
    told: list[str] = []
    (rung,) = climb(find_subject([folder], keep_unset=True), options, tell=told.append).rungs
    assert (rung.failed, rung.capacity) == ("", None)
    assert rung.capacity_failed == "the server exited with code 137 before it was ready"
    assert len(rung.measurements) == 2
    assert any("failed in the search for its capacity" in line for line in told)
    assert load_ladder(folder / "out" / "ladder.json").rungs[0].capacity_failed == rung.capacity_failed


@pytest.mark.parametrize(("pilot", "parity", "only"), [(False, 50, ()), (True, 0, ()), (True, 50, ("first",))])
def test_pairs_of_fields_that_no_rung_is_compared_by_are_refused(
    folder: Path, pilot: bool, parity: int, only: tuple[str, ...]
) -> None:
    """Given no pilot, no answers to compare, or a pilot that is not chosen; then --map would do nothing."""
    if pilot:
        (folder / "tailcut.toml").write_text(f'{MANIFEST}pilot = ["true"]\n')
    options = LadderOptions(
        out=folder / "out", comfortable_rate=10.0, parity=parity, only=only, pairs=(parse_pair("p=risk"),)
    )
    with pytest.raises(ManifestError, match="--map pairs fields of the pilot's answers"):
        climb(find_subject([folder], keep_unset=True), options, tell=lambda _: None)


def test_a_server_that_was_just_started_is_measured_after_it_settled(folder: Path) -> None:
    SENT.clear()
    options = LadderOptions(
        out=folder / "out", rounds=1, comfortable_rate=10.0, rates=(20.0, 30.0), capacity=False,
        duration_s=15.0, warmup_s=3.0, settle_s=8.0,
    )  # fmt: skip
    climb(find_subject([folder], keep_unset=True), options, tell=lambda _: None)
    # 8 + 3 + 15 s at 10/s, then 3 + 15 s at 20/s.
    assert SENT == [("comfortable", 0), ("20", 260), ("30", 620)]
    assert describe(options)["measured"] == (
        "15 s per rung, rate and round, after 3 s of it, and 8 s more where the server was just started"
    )


class Asked(Exception):
    """Stands for a measurement: the plan is what is looked at."""


@pytest.mark.parametrize(("sent", "warmup_s"), [(0, 11.0), (260, 3.0)])
def test_what_a_server_has_had_says_how_long_it_is_warmed_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch, sent: int, warmup_s: float
) -> None:
    def measured(plan: LoadPlan) -> None:
        raise Asked(plan)

    monkeypatch.setattr(import_module("tailcut.ladder.measuring"), "measure", measured)
    options = LadderOptions(out=folder, warmup_s=3.0, settle_s=8.0)
    bench = measuring.Bench(find_subject([folder]), options, {}, Cores(server=None, load=None), Objectives())
    with pytest.raises(Asked) as asked:
        bench.measure(SimpleNamespace(port=1, pid=1), pilot_rung(), "20", 20.0, 0, sent=sent)  # type: ignore[arg-type]
    plan = asked.value.args[0]
    assert (plan.warmup_s, plan.payload_offset) == (warmup_s, sent)
