"""Versions of a model in a registry without a whole build: its steps up to the variants, and no load.

``python -m tests.stored_kit FOLDER=NUMBERS...`` trains a model for each number (``m=1,2``) and adds it to the registry
of FOLDER's manifest as a version with its source variant alone, which is promoted. Each folder has a process of its
own, forked from one that has imported the libraries.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from tests.warm import warm

from tailcut.manifest import Manifest

ROOT = Path(__file__).parents[1]
LIBRARIES = ("pandas", "sklearn.ensemble", "sklearn.pipeline", "skops.io")
"""Imported by the process of which commands are forks; see tests/warm.py."""

MANIFEST = """name = "stored"
[model]
source = "my_model:build"
{more}
{tensors}
[[model.outputs]]
name = "p"
datatype = "{datatype}"
[holdout]
source = "my_model:holdout"
{end}
"""

HOLDOUT = """
import os
import numpy as np
from tailcut.builder import Holdout
HERE = os.path.dirname(os.path.abspath(__file__))
SEED = int(open(os.path.join(HERE, "v")).read())
def data(seed, n=300):
    r = np.random.default_rng(seed)
    x = r.normal(size=(n, 4))
    k = r.choice(["red", "green", "blue"], n).astype(object)
    return x, k, (x[:, 0] + (k == "red") + 0.3 * r.normal(size=n) > 0.3).astype(int)
"""

MATRIX = """
def train():
    x, _, y = data(SEED)
    return x, y
def holdout():
    x, _, y = data(99, 200)
    return Holdout(inputs={"x": x}, labels=y)
"""

FRAME = """
import pandas as pd
def train():
    x, k, y = data(SEED)
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "k": k}), y
def holdout():
    x, k, y = data(99, 200)
    return Holdout(inputs={"a": x[:, 0], "b": x[:, 1], "k": k}, labels=y)
"""

MATRIX_TENSORS = '[[model.inputs]]\nname = "x"\ndatatype = "FP64"\nshape = [-1, 4]\n'
FRAME_TENSORS = "".join(
    f'[[model.inputs]]\nname = "{name}"\ndatatype = "{datatype}"\n'
    for name, datatype in (("a", "FP64"), ("b", "FP64"), ("k", "BYTES"))
)

ROWS = 5
IDS = "ids"
EXPECTED = "expected-{version}.npy"
"""File with the answers of the user's own object to the first rows of the holdout."""


def write_model(
    folder: Path, body: str, *, frame: bool = False, more: str = "", end: str = "", datatype: str = "FP32"
) -> Path:
    """Write a manifest and my_model.py, whose ``build`` trains another model for each number in the file "v".

    Args:
        body: imports, and ``def build()`` that fits on ``train()``.
        frame: train on a DataFrame of two numbers and a text, in place of a matrix.
        more: lines of the section "model".
        end: more sections.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = FRAME_TENSORS if frame else MATRIX_TENSORS
    manifest = MANIFEST.format(tensors=tensors, more=more, end=end, datatype=datatype)
    (folder / "tailcut.toml").write_text(manifest)
    (folder / "my_model.py").write_text(HOLDOUT + (FRAME if frame else MATRIX) + body)
    return folder


def environment(folder: Path, *without: str, crashing: str = "") -> dict[str, str]:
    """Return an environment in which packages cannot be imported, as if they were not installed.

    Args:
        crashing: a package whose import ends the process with SIGSEGV.
    """
    site = folder.parent / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Without:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {crashing!r}:\n"
        "            os.kill(os.getpid(), signal.SIGSEGV)\n"
        f"        if name.partition('.')[0] in {without!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Without())\n"
    )
    path = os.pathsep.join([str(site), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "NO_COLOR": "1", "COLUMNS": "300", "PYTHONPATH": path.rstrip(os.pathsep)}


def add_versions(folder: Path, *numbers: int) -> list[str]:
    """Train a model for each number and add it to the registry, in a process of its own; return the versions' ids."""
    add_all({folder: numbers})
    return ids(folder)


def ids(folder: Path) -> list[str]:
    """Return the ids of the versions that were added last."""
    return (folder / IDS).read_text().split()


def add_all(numbers: Mapping[Path, tuple[int, ...]], *libraries: str) -> None:
    """Train models and add them to the registries of several folders that have one parent.

    Args:
        numbers: of the models, by folder.
        libraries: imported once for all folders.
    """
    tasks = [f"{folder}={','.join(map(str, each))}" for folder, each in numbers.items()]
    done = subprocess.run(
        [sys.executable, "-m", "tests.stored_kit", *tasks, *libraries],
        cwd=ROOT,
        env=environment(next(iter(numbers))),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def run_tailcut(folder: Path, *arguments: str, without: tuple[str, ...] = (), crashing: str = "") -> tuple[int, str]:
    """Run a command in the manifest's folder; return its exit code and what it wrote."""
    if not without and not crashing:
        variables = {**os.environ, "NO_COLOR": "1", "COLUMNS": "300"}
        done = warm(*LIBRARIES).run(arguments, cwd=folder, env=variables, timeout_s=300)
        return done.returncode, done.stdout + done.stderr
    done = subprocess.run(
        [sys.executable, "-m", "tailcut", *arguments],
        cwd=folder,
        env=environment(folder, *without, crashing=crashing),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def main(arguments: list[str]) -> int:
    """Add versions to each folder; the exit code is that of the first that failed."""
    tasks = [each.split("=") for each in arguments if "=" in each]
    for library in arguments[len(tasks) :]:
        importlib.import_module(library)
    for folder, numbers in tasks:
        child = os.fork()  # no library has started threads by then
        if child == 0:
            _add_each(Path(folder), numbers.split(","))
            return 0
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != 0:
            return code
    return 0


def _add_each(folder: Path, numbers: list[str]) -> None:
    added = []
    for number in numbers:
        (folder / "v").write_text(number)
        sys.modules.pop("my_model", None)
        added.append(_add(folder))
    (folder / IDS).write_text(" ".join(added))


def _add(folder: Path) -> str:
    from tailcut.builder import steps
    from tailcut.builder.records import Made, spec, to_add
    from tailcut.manifest import load
    from tailcut.models.runtimes.live import source_path
    from tailcut.registry import Registry, VariantEvidence, VersionEvidence

    manifest = load(folder / "tailcut.toml")
    model = manifest.deployment.model
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        steps.load_holdout(spec("holdout", manifest, work, []))
        found = steps.make_source(spec("source", manifest, work, []))
        made = Made(name=found.variant, runtime=found.runtime, path=found.path, settings=found.settings)
        version = Registry.of(manifest).add(
            manifest.deployment.name,
            source=made.name,
            inputs=model.inputs,
            outputs=model.outputs,
            variants=[replace(to_add(made), evidence=VariantEvidence(recipe=found.found), live_code=found.live_code)],
            evidence=VersionEvidence(bounds=tuple(found.limits.bounds)),
        )
    Registry.of(manifest).promote(version.model, version.id, made.name)
    if source_path(manifest) is None:
        _keep_expected(manifest, folder / EXPECTED.format(version=version.id))
    return version.id


def _keep_expected(manifest: Manifest, file: Path) -> None:
    """Keep what the user's own object answers to the first rows of the holdout."""
    from tailcut.builder.holdouts.datatypes import fitted
    from tailcut.builder.quality import reference
    from tailcut.manifest import resolve

    deployment = manifest.deployment
    holdout = fitted(resolve(deployment.holdout.source, manifest)(), deployment.model)
    own = reference.caller(resolve(deployment.model.source, manifest)(), None, deployment.model)
    rows = holdout.take(ROWS)
    np.save(file, own(rows)[deployment.model.outputs[0].name])
    plain = {name: array.astype("U") if array.dtype.hasobject else array for name, array in rows.items()}
    np.savez(file.with_name("rows.npz"), **plain)  # type: ignore[arg-type]  # the stub takes any keyword for allow_pickle


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
