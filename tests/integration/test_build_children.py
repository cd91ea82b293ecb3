"""build.children: a step that crashes, hangs or raises costs that step, and says how it ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from tests.models import graphs

from tailcut.builder import Holdout
from tailcut.builder.children import StepRunner
from tailcut.builder.records import Made, spec
from tailcut.builder.steps import SCORE, HoldoutRead
from tailcut.errors import BuildError, ManifestError
from tailcut.manifest import Deployment, Manifest, Model, TensorSpec
from tailcut.manifest import HoldoutSettings as HoldoutSection
from tailcut.registry.evidence import HoldoutEvidence

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]


def manifest(holdout: str) -> Manifest:
    model = Model(
        source="tests.models.holdouts:holdout",  # never called; without torch a child starts at once
        inputs=(
            TensorSpec(name="numeric", shape=(-1, 6)),
            TensorSpec(name="categorical", datatype="INT64", shape=(-1, 2)),
        ),
        outputs=(TensorSpec(name="probability"),),
    )
    deployment = Deployment(name="demo", python_path=(".",), model=model, holdout=HoldoutSection(source=holdout))
    return Manifest(deployment, ROOT, {})


def run(runner: StepRunner, holdout: str, folder: Path, timeout_s: float = 60.0) -> HoldoutEvidence:
    return runner.run(spec("holdout", manifest(holdout), folder, []), HoldoutRead, timeout_s=timeout_s).holdout


def test_a_step_returns_its_findings_and_leaves_its_file(step_runner: StepRunner, tmp_path: Path) -> None:
    found = run(step_runner, "tests.models.holdouts:holdout", tmp_path)
    assert found.rows == 300
    for name, part in (("selection", found.selection), ("confirmation", found.confirmation)):
        assert part.rows == Holdout.load(tmp_path / f"{name}.npz").rows


def test_a_variant_that_will_be_served_alone_is_judged_alone(step_runner: StepRunner, tmp_path: Path) -> None:
    """Seen before: log loss 0.11108 judged in batches of 256, 0.11122 as it was served."""
    x = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    rows = Holdout(inputs={"x": x}, labels=(x.sum(axis=1) > 0).astype(np.int64))
    rows.save(tmp_path / "confirmation.npz")
    made = Made(name="onnx", runtime="onnxruntime", path=str(graphs.of_company(tmp_path / "onnx.onnx")))
    model = Model(source="onnx.onnx", inputs=(TensorSpec(name="x", shape=(-1, 4)),), outputs=(TensorSpec(name="y"),))
    step = spec("score", Manifest(Deployment(name="demo", model=model), tmp_path, {}), tmp_path, [made], "onnx")
    found = step_runner.run(step, SCORE.found, timeout_s=60.0)
    assert found.rows_alone
    assert found.metrics["log_loss"] == pytest.approx(np.log(1 + np.exp(-1.0)), rel=1e-5)
    scores = np.load(tmp_path / "scores-onnx.npz", allow_pickle=False)["y"]
    assert np.unique(scores.round(5)).tolist() == pytest.approx([0.26894, 0.73106])


def test_a_crash_names_the_signal_and_shows_the_last_lines(step_runner: StepRunner, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"step 'holdout' crashed \(signal SIGABRT\)\n(.*\n)*  \| .*about to crash"):
        run(step_runner, "tests.models.holdouts:crashing", tmp_path)


def parent_of(folder: Path) -> int:
    """The process that the last step was a fork of, as that step wrote it into its log."""
    return int((folder / "holdout.log").read_text().rpartition("parent ")[2])


def test_steps_are_forks_of_one_process_until_it_dies(step_runner: StepRunner, tmp_path: Path) -> None:
    """A crash of a step costs that step; the death of the warm process costs the step that runs."""
    run(step_runner, "tests.models.holdouts:naming_its_parent", tmp_path)
    warm = parent_of(tmp_path)
    with pytest.raises(BuildError, match="SIGABRT"):
        run(step_runner, "tests.models.holdouts:crashing", tmp_path)
    run(step_runner, "tests.models.holdouts:naming_its_parent", tmp_path)
    assert parent_of(tmp_path) == warm
    with pytest.raises(BuildError, match=r"crashed \(signal SIGKILL\)"):
        run(step_runner, "tests.models.holdouts:killing_its_parent", tmp_path)
    run(step_runner, "tests.models.holdouts:naming_its_parent", tmp_path)
    assert parent_of(tmp_path) != warm


def test_a_library_that_a_step_imported_is_there_when_the_next_one_begins(tmp_path: Path) -> None:
    with StepRunner() as runner:
        seen = [run(runner, "tests.models.holdouts:of_lightgbm", tmp_path).rows for _ in range(2)]
    assert seen == [20, 21]


SETS = "import os, sys\nos.environ['OMP_NUM_THREADS'] = '1'\n"
COPY = "import sys\n"
HOLDOUT = """seen = "lightgbm" in sys.modules
import lightgbm
import numpy as np
from tailcut.build import Holdout
def holdout():
    rows = 20 + seen
    inputs = {"numeric": np.zeros((rows, 6)), "categorical": np.zeros((rows, 2), int)}
    return Holdout(inputs=inputs, labels=np.arange(rows) % 2)
"""


@pytest.mark.parametrize("begins", [SETS, COPY], ids=["sets a variable", "has a copy"])
def test_no_library_is_imported_before_the_users_code_where_that_would_be_another(tmp_path: Path, begins: str) -> None:
    (tmp_path / "own_holdout.py").write_text(begins + HOLDOUT)
    if begins == COPY:
        (tmp_path / "lightgbm.py").touch()
    deployment = replace(manifest("own_holdout:holdout").deployment, python_path=(".", str(ROOT)))
    own = Manifest(deployment, tmp_path, {})
    first = ["tests.models.holdouts:of_lightgbm"] * (begins == SETS)
    with StepRunner() as runner:
        seen = [run(runner, each, tmp_path).rows for each in first]
        steps = [spec("holdout", own, tmp_path, []) for _ in range(2)]
        seen += [runner.run(step, HoldoutRead, timeout_s=60.0).holdout.rows for step in steps]
        seen.append(run(runner, "tests.models.holdouts:of_lightgbm", tmp_path).rows)
    assert seen == ([20, 21, 20, 20] if begins == SETS else [20, 20, 20])


def test_no_step_sees_what_the_users_code_of_another_imported_or_drew(step_runner: StepRunner, tmp_path: Path) -> None:
    seen = [run(step_runner, "tests.models.holdouts:of_modules", tmp_path).rows for _ in range(3)]
    assert seen == [20, 20, 20]
    run(step_runner, "tests.models.holdouts:of_lightgbm", tmp_path)  # numpy.random is there from now on
    drawn = {run(step_runner, "tests.models.holdouts:of_chance", tmp_path).sha256 for _ in range(3)}
    assert len(drawn) == 3


def test_what_the_warm_process_imports_starts_no_threads() -> None:
    """OpenBLAS and jemalloc end theirs before a fork and start them anew after it; here they are turned off."""
    code = "\n".join(
        [
            "import importlib, os",
            "from tailcut.builder.worker import LIBRARIES",
            "from tailcut.models.runtimes.telemetry import keep_off",
            "keep_off()",
            "for name in LIBRARIES:",
            "    importlib.import_module(name)",
            "    assert len(os.listdir('/proc/self/task')) == 1, name",
        ]
    )
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    subprocess.run([sys.executable, "-c", code], env=environment, timeout=120, check=True)


def test_memory_that_the_warm_process_holds_is_no_steps(tmp_path: Path) -> None:
    """torch alone takes more than the limit; a step that finds it imported begins at nothing."""
    pytest.importorskip("torch")
    with StepRunner() as runner:
        step = spec("holdout", manifest("tests.models.holdouts:of_torch"), tmp_path, [])
        with pytest.raises(BuildError, match="the limit is 64 MiB"):
            runner.run(step, HoldoutRead, timeout_s=60.0, memory_bytes=64 << 20)
        runner.run(step, HoldoutRead, timeout_s=60.0)
        runner.run(step, HoldoutRead, timeout_s=60.0, memory_bytes=64 << 20)


def test_a_hang_is_killed_at_its_limit(step_runner: StepRunner, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"did not end within 0\.2 s and was killed"):
        run(step_runner, "tests.models.holdouts:hanging", tmp_path, timeout_s=0.2)


def test_a_step_that_takes_too_much_memory_is_killed_at_its_limit(step_runner: StepRunner, tmp_path: Path) -> None:
    step = spec("holdout", manifest("tests.models.holdouts:greedy"), tmp_path, [])
    with pytest.raises(BuildError, match=r"held \d+ MiB of memory, the limit is 256 MiB and was killed\n.*taking all"):
        step_runner.run(step, HoldoutRead, timeout_s=60.0, memory_bytes=256 << 20)


def test_an_exception_of_the_users_code_names_the_line(step_runner: StepRunner, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"raised KeyError: 'arrival_delay' \(.*holdouts\.py:\d+\)"):
        run(step_runner, "tests.models.holdouts:raising", tmp_path)


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("tests.models.holdouts:wrong", "gave a dict, expected a tailcut.build.Holdout"),
        ("tests.models.holdouts:none_such", "has no none_such"),
        ("", "holdout.source is not set"),
    ],
)
def test_a_wrong_holdout_source_is_named(step_runner: StepRunner, tmp_path: Path, reference: str, text: str) -> None:
    with pytest.raises((BuildError, ManifestError), match=text):
        run(step_runner, reference, tmp_path)
