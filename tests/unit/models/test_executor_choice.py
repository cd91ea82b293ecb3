"""Choice of the executor: every start of one deployment makes the same one, beside busy processes too."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import thread_time_ns

import pytest
from tests.models import graphs
from tests.scale import sized

from tailcut.common.fingerprint import Trust
from tailcut.common.tensors import Arrays
from tailcut.manifest import Manifest, load
from tailcut.models import variant_loader
from tailcut.models.variant_loader import open_variant
from tailcut.models.warm_up import BRIEF, THOROUGH, Warmth
from tailcut.registry import Variant
from tailcut.registry.evidence import BatchCost, Tuning, VariantEvidence
from tailcut.serving import deployment_loader
from tailcut.serving.deployment_loader import find_variant
from tailcut.testing.runtimes import StubRuntime

pytestmark = pytest.mark.slow

STARTS = sized(4, 10)
MANIFEST = """
name = "linear"
[model]
source = "model.onnx"
inputs = [{ name = "x", shape = [-1, 4] }]
outputs = [{ name = "y", shape = [-1] }]
[serve]
variant = "source"
[batching]
max_rows = 4
"""


def deployment(folder: Path) -> Manifest:
    graphs.linear(folder / "model.onnx")
    (folder / "tailcut.toml").write_text(MANIFEST)
    return load(folder, environment={})


def built(manifest: Manifest, p50_ms: float | None, *, trust: str = "trusted", **settings: int) -> Variant:
    """The variant as a build leaves it that saw this median of four rows."""
    costs = [] if p50_ms is None else [BatchCost(rows=4, mean_ms=9.0, p50_ms=p50_ms, p95_ms=9.0, calls=9)]
    return replace(
        find_variant(manifest),
        evidence=VariantEvidence(tuning=Tuning(costs=costs)),
        settings={"threads": 1, **settings},
        trust=Trust(level=trust),  # type: ignore[arg-type]
    )


def computing(milliseconds: float) -> StubRuntime:
    """A model that computes for so long, however often another process takes its core."""

    def answer(inputs: Arrays) -> Arrays:
        end_ns = thread_time_ns() + int(milliseconds * 1e6)
        while thread_time_ns() < end_ns:
            pass
        return {"y": inputs["x"][:, 0]}

    return StubRuntime(answer)


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.mark.parametrize("neighbours", [0, 3], ids=["quiet", "busy"])
@pytest.mark.parametrize(
    ("takes_ms", "p50_ms", "executor"),
    [
        (0.05, None, "inline"),
        (3.0, None, "thread"),
        (0.05, 0.06, "inline"),
        (0.7, 0.7, "inline"),
        (0.6, None, "inline"),
        (0.9, None, "thread"),
        (0.75, 0.8, "thread"),
        (0.9, 0.7, "inline"),
        (3.0, 3.1, "thread"),
    ],
)
def test_ten_starts_make_one_choice(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    takes_ms: float,
    p50_ms: float | None,
    executor: str,
    neighbours: int,
) -> None:
    manifest = deployment(tmp_path)
    variant = built(manifest, p50_ms)
    monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: computing(takes_ms))
    with busy_processes(neighbours):
        choices = [start(manifest, variant).choice for _ in range(STARTS)]
    assert [one.executor for one in choices] == [executor] * STARTS, "\n".join(map(str, choices))


def start(manifest: Manifest, variant: Variant, warmth: Warmth = THOROUGH) -> variant_loader.Warm:
    warm = open_variant(manifest, variant, warmth)
    warm.close()
    return warm


@pytest.mark.parametrize(
    ("takes_ms", "p50_ms", "executor"), [(4.0, 0.5, "thread"), (0.1, 1.2, "inline")], ids=["slower", "faster"]
)
def test_a_machine_that_is_another_than_at_the_build_overrules_its_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_ms: float, p50_ms: float, executor: str
) -> None:
    monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: computing(takes_ms))
    manifest = deployment(tmp_path)
    assert start(manifest, built(manifest, p50_ms)).choice.executor == executor


def test_figures_of_another_machine_or_number_of_threads_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: computing(0.5))
    manifest = deployment(tmp_path)
    assert start(manifest, built(manifest, 0.9)).choice.executor == "thread"
    assert start(manifest, built(manifest, 0.9, trust="remeasure")).choice.executor == "inline"
    manifest = load(tmp_path, environment={}, overrides=["pool.threads=2"])
    assert start(manifest, built(manifest, 0.9)).choice.executor == "inline"


def test_the_choice_is_shown_with_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: computing(0.05))
    manifest = deployment(tmp_path)
    reason = start(manifest, built(manifest, 0.06)).choice.reason
    assert reason.startswith("a batch of 4 rows takes 0.0")
    assert reason.endswith(" ms here, 0.06 ms in the build; inline up to 0.75 ms")
    assert start(manifest, built(manifest, 0.06, executors=2)).choice.reason == "2 executors"
    manifest = load(tmp_path, environment={}, overrides=["pool.executor=thread"])
    assert start(manifest, built(manifest, 0.06)).choice.reason == "as pool.executor says"


def test_a_background_start_makes_the_same_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment_loader, "open_variant", open_variant)
    monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: computing(0.9))
    manifest = deployment(tmp_path)
    variant = built(manifest, 0.7)
    assert {start(manifest, variant, warmth).choice.executor for warmth in (THOROUGH, BRIEF)} == {"inline"}


@pytest.mark.parametrize(
    ("takes_ms", "p50_ms", "more"),
    [
        (0.1, None, 0),
        (0.9, None, 24),
        (3.0, None, 14),
        (15.0, None, 8),
        (30.0, None, 1),
        (120.0, None, 0),
        (30.0, 0.7, 1),
        (3.0, 3.0, 0),
        (0.7, 0.7, 0),
        (0.9, 0.7, 0),
    ],
)
def test_the_choice_costs_a_start_few_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_ms: float, p50_ms: float | None, more: int
) -> None:
    """None where the warm-up, or warm-up and build, have decided it already."""
    now_ns = [0]

    def answer(inputs: Arrays) -> Arrays:
        now_ns[0] += int(takes_ms * 1e6)
        return {"y": inputs["x"][:, 0]}

    runtime = StubRuntime(answer)
    monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: runtime)
    monkeypatch.setattr(variant_loader, "undisturbed_ns", lambda: now_ns[0])
    monkeypatch.setattr(variant_loader, "perf_counter_ns", lambda: now_ns[0])
    manifest = deployment(tmp_path)
    start(manifest, built(manifest, p50_ms, executors=1))
    assert runtime.rows.count(4) == 5 + more
