"""Virtual environments that have a wheel of tailcut, and of the packages at hand what it declares and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping, Sequence
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


def build_wheel(folder: Path) -> Path:
    """Build the wheel as docs/how-to/install.md has it, without a network."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(ROOT)], check=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    return wheel


class Environment:
    """A virtual environment with a wheel and links to the packages that it needs with some extras.

    Args:
        folder: where it is made.
        wheel: of tailcut.
        extras: of tailcut.
        others: distributions that tailcut does not declare.
    """

    def __init__(self, folder: Path, wheel: Path, extras: Sequence[str] = (), others: Sequence[str] = ()) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = folder / "bin" / "python"
        (site,) = folder.glob("lib/python*/site-packages")
        for each in needed(wheel, extras, others):
            _link(each, site)
        self.pip("install", "--quiet", "--no-deps", str(wheel))

    def pip(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run pip for this environment, without an index."""
        command = [sys.executable, "-m", "pip", "--python", str(self.python), *arguments[:1], "--no-index"]
        return _run([*command, *arguments[1:]], Path.cwd())

    def run(self, *command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a script of this environment in a folder, with more environment variables."""
        return _run([str(self.python.with_name(command[0])), *command[1:]], folder, variables)


def _run(
    command: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    # PYTHONPATH would bring other packages along.
    clean = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"} | {"NO_COLOR": "1"}
    return subprocess.run(
        command, cwd=folder, env=clean | (variables or {}), capture_output=True, text=True, timeout=580, check=False
    )


def needed(wheel: Path, extras: Sequence[str] = (), others: Sequence[str] = ()) -> list[Distribution]:
    """Every distribution but tailcut that a wheel needs with some extras, each once, as their metadata declare it.

    Raises:
        AssertionError: an installed one has a version that another does not allow.
        PackageNotFoundError: one is not installed.
    """
    found = {"tailcut": _metadata(wheel)}
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(text) for text in (f"tailcut[{','.join(extras)}]", *others)]
    while waiting:
        wanted = waiting.pop()
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        each = found.get(name) or distribution(name)
        found[name] = each
        assert wanted.specifier.contains(each.version, prereleases=True), (str(wanted), each.version)
        for extra in {"", *wanted.extras} - {extra for known, extra in seen if known == name}:
            seen.add((name, extra))
            every = map(Requirement, each.requires or ())
            waiting += [one for one in every if one.marker is None or one.marker.evaluate({"extra": extra})]
    return [each for name, each in found.items() if name != "tailcut"]


def _metadata(wheel: Path) -> Distribution:
    archive = zipfile.Path(wheel)
    return PathDistribution(next(each for each in archive.iterdir() if each.name.endswith(".dist-info")))


def _link(found: Distribution, site: Path) -> None:
    """Link the top-level folders and files of a distribution; folders that several share are linked once."""
    for top in {file.parts[0] for file in found.files or () if file.parts[0] not in {"..", "__pycache__"}}:
        target = Path(str(found.locate_file(top)))
        if target.exists() and not (site / top).exists():
            (site / top).symlink_to(target)
