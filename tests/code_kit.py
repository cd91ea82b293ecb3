"""A deployment's folder with the user's code, imported as a start does, and forgotten afterwards."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from tempfile import gettempdir

import numpy as np
from tests.promotion_kit import save_model

from tailcut.builder.code_snapshot import files_of, write_down
from tailcut.code.loaded import LoadedCode
from tailcut.manifest import Manifest, load
from tailcut.manifest.keys import to_plain
from tailcut.models.runtimes.sklearn import write_probes
from tailcut.pipeline.hook_loading import import_code
from tailcut.registry import NewVariant, Registry, Version, VersionEvidence

MANIFEST = """
name = "m"
[model]
source = "{source}"
preprocess = "hooks:preprocess"
files = [{files}]
[[model.inputs]]
name = "x"
[[model.outputs]]
name = "y"
[features]
entity = ["id"]
[[features.groups]]
name = "g"
key = ["id"]
columns = ["a"]
ttl = "1h"
function = "groups:g"
"""
HOOKS = "def preprocess(rows): return rows\n"
GROUPS = "def g(keys, context): return [{'a': 1} for key in keys]\n"
TRAIN = "def build(): return None\n"


class Project:
    """The folder of a deployment.

    Args:
        folder: where it lies; "hooks.py", "groups.py" and "train.py" are there unless they are given.
        files: text or bytes by path from the folder.
    """

    def __init__(
        self, folder: Path, files: dict[str, str | bytes], *, source: str = "train:build", data: tuple[str, ...] = ()
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        listed = ", ".join(f'"{name}"' for name in data)
        defaults: dict[str, str | bytes] = {"hooks.py": HOOKS, "groups.py": GROUPS, "train.py": TRAIN}
        manifest = MANIFEST.format(source=source, files=listed)
        for name, content in {**defaults, "tailcut.toml": manifest, **files}.items():
            self.write(name, content)

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file; its folders are made."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    @property
    def manifest(self) -> Manifest:
        return load(self.folder, environment={})

    def code(self, *, source: bool = False) -> LoadedCode:
        """Import the code as a new process would."""
        with imported():
            return import_code(self.manifest, [self.manifest.deployment.model.source] * source).files

    def version(self, *, live: bool = False) -> bytes:
        """The part of the deployment version that the code is."""
        return self.code(source=live).snapshot(live=live).digest

    def group(self) -> bytes:
        """The part of the feature group's key that the code is."""
        return self.code().digest_of(["groups:g"])


@contextmanager
def imported(folder: Path | None = None) -> Iterator[None]:
    """Forget what was imported of temporary folders within, and the folders that were put on the path for it.

    Args:
        folder: what was imported from there before is not there within, as in a new process.
    """
    modules, path, writes = dict(sys.modules), list(sys.path), sys.dont_write_bytecode
    # Byte code is valid for a second, and edits of one size follow each other faster.
    sys.dont_write_bytecode = True
    for name, module in modules.items() if folder is not None else ():
        if _lies_in(module, str(folder)):
            del sys.modules[name]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes
        sys.path[:] = path
        for name in [name for name in sys.modules if name not in modules and _lies_in(sys.modules[name], gettempdir())]:
            del sys.modules[name]
        sys.modules.update(modules)


def _lies_in(module: object, folder: str) -> bool:
    spec = getattr(module, "__spec__", None)  # torch has modules that give anything that one asks them for
    found = spec if isinstance(spec, ModuleSpec) else None
    paths = [found.origin or "", *(found.submodule_search_locations or [])] if found is not None else []
    return any(path.startswith(f"{folder}/") and not path.startswith(f"{sys.prefix}/") for path in map(str, paths))


SITE_MANIFEST = """
name = "m"
[model]
source = "train:build"
preprocess = "hooks:preprocess"
files = ["table.txt"]
inputs = [{ name = "x", shape = [-1, 2] }]
outputs = [{ name = "y", shape = [-1] }]
[serve]
follow = "1h"
[batching]
max_rows = 2
"""
SITE_FILES = {
    "tailcut.toml": SITE_MANIFEST,
    "hooks.py": "import numpy as np\nfrom scaling import F\n"
    "def preprocess(rows): return {'x': np.array([[row['a'] * F, 0] for row in rows], np.float32)}\n",
    "scaling.py": "F = 1\n",
    "train.py": "from layers import N\nclass M:\n    def predict(self, rows): return rows.sum(1) * N\n"
    "def build(): return M()\n",
    "layers.py": "N = 7\n",
    "table.txt": "1",
}


class Site:
    """A deployment's folder with its registry."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        for name, text in SITE_FILES.items():
            self.write(name, text)
        self.registry = Registry.of(self.manifest)

    @property
    def manifest(self) -> Manifest:
        return load(self.folder, environment={})

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def build(self, factor: float, *, code: bool = True) -> Version:
        """Add a version as a build does, in a process of its own: variants "onnx", and "own" with the live object.

        Args:
            code: whether it and the manifest are written down.
        """
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        artifacts = {"onnx": save_model(work / "model.onnx", factor), "own": work / "own.npz"}
        probe = np.ones((1, 2), np.float32)
        write_probes(artifacts["own"], {"x": probe}, probe.sum(1) * 7)
        with imported(self.folder):
            written = write_down(self.manifest, work, source=True)
        model = self.manifest.deployment.model
        return self.registry.add(
            "m",
            source="own",
            inputs=model.inputs,
            outputs=model.outputs,
            variants=[
                NewVariant("own", "sklearn", artifacts["own"], live_code=(model.source,)),
                NewVariant("onnx", "onnxruntime", artifacts["onnx"], base=True),
            ],
            files=files_of(written, work) if code else {},
            evidence=VersionEvidence(code=written.code if code else None),
            manifest=to_plain(self.manifest.deployment) if code else None,
        )

    def promote(self, version: Version, variant: str = "onnx") -> None:
        self.registry.promote("m", version.id, variant)
