"""What tailcut's own path takes here, measured with a server of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tailcut.profiler.deployments import own_path
from tailcut.profiler.deployments.own_path import with_path
from tailcut.profiler.records import Recording

RECORDING = Recording(target="app:app", rate=100.0, duration_s=1.0, requests=())


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_it_is_measured_whatever_is_set_for_another_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILCUT_MANIFEST", "/nowhere/tailcut.toml")
    monkeypatch.setenv("TAILCUT_MODEL__SOURCE", "gone.onnx")
    # Four loads of a second, not of three: what is asked here is no question of a few percent.
    monkeypatch.setattr(own_path, "_WARMUP_S", 0.5)
    monkeypatch.setattr(own_path, "_LEAST_S", 0.5)
    monkeypatch.setattr(own_path, "_ENOUGH", 50)
    before, steps = children(), list[str]()
    found = with_path(RECORDING, on_step=steps.append)
    assert not found.notes
    assert 10_000 < found.pilot.path_ns < 10_000_000, "a request takes microseconds, and far less than 10 ms"
    ways_ns = found.pilot.path_waits_ns
    assert list(ways_ns) == sorted(ways_ns)
    assert 0 <= ways_ns[0] < ways_ns[len(ways_ns) // 2] < 500_000_000, "milliseconds, on one machine"
    assert steps == ["measuring the cost of tailcut's own path here"]
    assert children() == before


def test_what_was_recorded_is_whole_where_it_cannot_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    steps = list[str]()
    found = with_path(RECORDING, on_step=steps.append)
    assert found.pilot == RECORDING.pilot
    assert found.notes == (steps[-1],)
    assert "could not be measured here (cannot run" in steps[-1]
    assert "it is estimated from other machines" in steps[-1]
