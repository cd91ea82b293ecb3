"""build.children: a step that crashes, hangs or raises costs that step, and says how it ended."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.models import graphs

from tailcut.builder import Holdout
from tailcut.builder.children import run_step
from tailcut.builder.records import Made, spec
from tailcut.errors import BuildError, ManifestError
from tailcut.manifest import Deployment, Manifest, Model, Tensor
from tailcut.manifest import Holdout as HoldoutSection

pytestmark = [pytest.mark.integration, pytest.mark.parallel]

ROOT = Path(__file__).resolve().parents[2]


def manifest(holdout: str) -> Manifest:
    model = Model(
        source="tests.models.holdouts:holdout",  # never called; without torch a child starts at once
        inputs=(
            Tensor(name="numeric", shape=(-1, 6)),
            Tensor(name="categorical", datatype="INT64", shape=(-1, 2)),
        ),
        outputs=(Tensor(name="probability"),),
    )
    deployment = Deployment(name="demo", python_path=(".",), model=model, holdout=HoldoutSection(source=holdout))
    return Manifest(deployment, ROOT, {})


def run(holdout: str, folder: Path, timeout_s: float = 60.0) -> dict:
    return run_step(spec("holdout", manifest(holdout), folder, []), timeout_s=timeout_s)


def test_a_step_returns_its_findings_and_leaves_its_file(tmp_path: Path) -> None:
    found = run("tests.models.holdouts:holdout", tmp_path)
    assert found["rows"] == 300
    assert {part: found[part]["rows"] for part in ("selection", "confirmation")} == {
        part: Holdout.load(tmp_path / f"{part}.npz").rows for part in ("selection", "confirmation")
    }


def test_a_variant_that_will_be_served_alone_is_judged_alone(tmp_path: Path) -> None:
    """Seen before: log loss 0.11108 judged in batches of 256, 0.11122 as it was served."""
    x = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    rows = Holdout(inputs={"x": x}, labels=(x.sum(axis=1) > 0).astype(np.int64))
    rows.save(tmp_path / "confirmation.npz")
    made = Made(name="onnx", runtime="onnxruntime", path=str(graphs.of_company(tmp_path / "onnx.onnx")))
    model = Model(source="onnx.onnx", inputs=(Tensor(name="x", shape=(-1, 4)),), outputs=(Tensor(name="y"),))
    step = spec("score", Manifest(Deployment(name="demo", model=model), tmp_path, {}), tmp_path, [made], "onnx")
    found = run_step(step, timeout_s=60.0)
    assert not found["merge"]
    assert found["metrics"]["log_loss"] == pytest.approx(np.log(1 + np.exp(-1.0)), rel=1e-5)
    scores = np.load(tmp_path / "scores-onnx.npz", allow_pickle=False)["y"]
    assert np.unique(scores.round(5)).tolist() == pytest.approx([0.26894, 0.73106])


def test_a_crash_names_the_signal_and_shows_the_last_lines(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"step 'holdout' crashed \(signal SIGABRT\)\n(.*\n)*  \| .*about to crash"):
        run("tests.models.holdouts:crashing", tmp_path)


def test_a_hang_is_killed_at_its_limit(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"did not end within 0\.2 s and was killed"):
        run("tests.models.holdouts:hanging", tmp_path, timeout_s=0.2)


def test_a_step_that_takes_too_much_memory_is_killed_at_its_limit(tmp_path: Path) -> None:
    step = spec("holdout", manifest("tests.models.holdouts:greedy"), tmp_path, [])
    with pytest.raises(BuildError, match=r"held \d+ MiB of memory, the limit is 256 MiB and was killed\n.*taking all"):
        run_step(step, timeout_s=60.0, memory_bytes=256 << 20)


def test_an_exception_of_the_users_code_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"raised KeyError: 'arrival_delay' \(.*holdouts\.py:\d+\)"):
        run("tests.models.holdouts:raising", tmp_path)


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("tests.models.holdouts:wrong", "gave a dict, expected a tailcut.build.Holdout"),
        ("tests.models.holdouts:none_such", "has no none_such"),
        ("", "holdout.source is not set"),
    ],
)
def test_a_wrong_holdout_source_is_named(tmp_path: Path, reference: str, text: str) -> None:
    with pytest.raises((BuildError, ManifestError), match=text):
        run(reference, tmp_path)
