"""scripts/run_tests.py: what failed runs once more, and only what passes then is flaky."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "run_tests.py"
TESTS = """
from pathlib import Path
import os
import pytest

RAN = Path(__file__).with_name("ran")

def test_right():
    pass

@pytest.mark.parametrize("what", ["by [chance] now"])
def test_flaky(what):
    ran = RAN.exists()
    RAN.write_text("")
    assert ran

@pytest.mark.skipif(not os.environ.get("BROKEN"), reason="not asked for")
def test_wrong():
    assert False

@pytest.mark.quiet
def test_quiet():
    pass
"""


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("run_tests", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = quiet\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "test-results")
    monkeypatch.delenv("BROKEN", raising=False)
    return module


def test_a_test_that_passes_when_it_runs_alone_is_flaky_and_no_failure(
    runner: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert runner.main(["test_some.py"]) == 0
    name = "test_some.py::test_flaky[by [chance] now]"
    assert f"flaky: {name}" in capfd.readouterr().out
    assert (tmp_path / "test-results" / "flaky.txt").read_text() == f"{name}\n"


def test_a_test_that_fails_again_and_one_that_cannot_be_collected_are_failures(
    runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BROKEN", "1")
    assert runner.main(["test_some.py"]) == 1
    written = capfd.readouterr()
    assert "failed: test_some.py::test_wrong" in written.err
    assert "flaky: test_some.py::test_flaky" in written.out
    monkeypatch.delenv("BROKEN")
    (tmp_path / "test_other.py").write_text("import none_such")
    assert runner.main(["test_some.py", "test_other.py"]) == 1


def test_a_run_without_tests_is_a_failure(
    runner: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_none.py").touch()
    assert runner.main(["test_none.py"]) == 1
    assert "failed: no test was found in test_none.py" in capfd.readouterr().err
