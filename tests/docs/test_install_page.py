"""docs/how-to/install.md: the wheel is built and installed; its extras are those that pages and errors name."""

from __future__ import annotations

import re
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tests.docs.pages import PAGES, ROOT, commands
from tests.install_kit import Environment, needed

from tailcut.common.extras import EXTRA_OF_MODULE, install

PAGE = ROOT / "docs" / "how-to" / "install.md"
NAMED = re.compile(r"(?:\btailcut|'\.|\.whl)\[([a-z][a-z,-]*)\]")
GPU = {"gpu", "tensorrt"}
"""Extras whose packages need a GPU; they are not installed for the tests."""

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def extras(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return set(re.findall(r"^Provides-Extra: (\S+)$", archive.read(metadata).decode(), re.MULTILINE))


def test_extras_named_on_pages_and_in_errors_exist(extras: set[str]) -> None:
    """Wherever an install line is: in a shell block, in a sentence, in a hint of the code."""
    files = [*PAGES, *(ROOT / "src").rglob("*.py"), *(ROOT / "scripts").glob("*.sh"), ROOT / "Makefile"]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    named = {name for found in NAMED.findall(text) for name in found.split(",")}
    assert len(named) > 10
    assert named - extras == set()
    assert set(EXTRA_OF_MODULE.values()) - extras == set()


def test_every_extra_stands_in_the_table(extras: set[str]) -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    told = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row.split("|")[2])}
    assert told == extras - {"dev", "examples"}


def test_the_pages_wheel_is_the_one_that_is_built(wheel: Path) -> None:
    named = {
        Path(words[-1].partition("[")[0]).name for page in PAGES for words in commands(page) if ".whl" in words[-1]
    }
    assert named == {wheel.name}


def test_every_extra_is_satisfied_by_what_the_tests_run_with(wheel: Path, extras: set[str]) -> None:
    for extra in sorted(extras - GPU):
        assert needed(wheel, [extra]), extra


def test_install_lines_with_a_wheel_work_as_printed(wheel: Path, tmp_path: Path) -> None:
    """pip itself reads them; what they need is at hand, so that it asks no index."""
    lines = [words for page in PAGES for words in commands(page) if words[:2] == ["pip", "install"]]
    extras = [words[-1].partition(".whl")[2] for words in lines if ".whl[" in words[-1]]
    assert len(extras) == 2
    environment = Environment(tmp_path / "venv", wheel, NAMED.findall(f"tailcut{extras[0]} tailcut{extras[1]}"))
    done = environment.pip("install", "--dry-run", *(f"{wheel}{each}" for each in extras))
    assert done.returncode == 0, done.stderr
    assert "Would install" not in done.stdout, "something that tailcut declares is not installed"


def test_the_extra_of_a_missing_module_installs_it(extras: set[str]) -> None:
    distributions = packages_distributions()
    for module, extra in EXTRA_OF_MODULE.items():
        if extra in GPU:
            continue
        told = {Requirement(text).name for text in _declared(extra)}
        assert told & {name.lower() for name in distributions[module]}, (module, extra)
    assert install("torch.nn") == "pip install 'tailcut[torch]'"
    assert install("pandas.core") == "pip install pandas"


def _declared(extra: str) -> set[str]:
    """What an extra installs by itself or through another extra of tailcut."""
    every = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    found: set[str] = set()
    for text in every[extra]:
        one = Requirement(text)
        found |= {text} if one.name != "tailcut" else {each for name in one.extras for each in _declared(name)}
    return found
