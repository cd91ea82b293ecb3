"""A runtime's library comes in without full garbage collections, and what fails on the way is left to the runtime."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.serving.test_opening_following import Bench, serve

from tailcut.common.runtime_spec import BUILT_IN, RuntimeSpec
from tailcut.models.runtime_import import bring_in, load_shared
from tailcut.serving import deployment_loader


@pytest.fixture
def heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package "heavy" of a runtime of the same name; its module is written by the test."""
    (tmp_path / "heavy").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(BUILT_IN, "heavy", RuntimeSpec(name="heavy", imports="heavy"))
    yield tmp_path / "heavy" / "__init__.py"
    sys.modules.pop("heavy", None)
    gc.unfreeze()


def test_no_garbage_is_collected_while_a_library_comes_in_nor_its_modules_looked_at_later(heavy: Path) -> None:
    heavy.write_text("import gc\nCOLLECTED = gc.isenabled()\nTHINGS = [[] for _ in range(10_000)]\n")
    frozen = gc.get_freeze_count()
    bring_in("heavy")
    assert not sys.modules["heavy"].COLLECTED
    assert gc.isenabled()
    assert gc.get_freeze_count() >= frozen + 10_000


def test_what_is_there_is_not_brought_in_again(heavy: Path) -> None:
    heavy.write_text("")
    bring_in("heavy")
    frozen = gc.get_freeze_count()
    bring_in("heavy")
    assert gc.get_freeze_count() <= frozen


@pytest.mark.parametrize("text", ["import nothing_of_this_name", "raise RuntimeError('no device')", "1 +"])
def test_what_fails_is_for_the_runtime_to_tell(heavy: Path, text: str) -> None:
    heavy.write_text(text)
    bring_in("heavy")
    assert "heavy" not in sys.modules
    assert gc.isenabled()


def test_a_collection_that_was_off_stays_off(heavy: Path) -> None:
    heavy.write_text("")
    gc.disable()
    try:
        bring_in("heavy")
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_runtime_that_is_not_known_or_not_installed_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    bring_in("a runtime of tomorrow")
    absent = RuntimeSpec(name="absent", imports="a_package_that_is_not_installed")
    monkeypatch.setitem(BUILT_IN, "absent", absent)
    bring_in("absent")


def test_a_shared_library_is_loaded_by_its_path(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("the libraries of this process are in /proc on Linux")
    lines = Path("/proc/self/maps").read_text().splitlines()
    loaded = next(line.split()[-1] for line in lines if line.endswith(".so") or ".so." in line)
    assert load_shared(Path(loaded))
    (tmp_path / "broken.so").write_text("no ELF")
    assert not load_shared(tmp_path / "broken.so")
    assert not load_shared(tmp_path / "absent.so")


def test_a_promoted_variants_library_is_brought_in_before_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    async def test(bench: Bench) -> None:
        monkeypatch.setattr(deployment_loader, "bring_in", seen.append)
        await bench.promote(2.0)
        assert seen == ["onnxruntime"]
        assert (await bench.answer())[0] == 2.0

    serve(tmp_path, test)
