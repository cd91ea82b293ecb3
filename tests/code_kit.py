"""A deployment's folder with the user's code, imported as a start does, and forgotten afterwards."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailcut.code.loaded import LoadedCode
from tailcut.engine.user_code import import_code
from tailcut.manifest import Manifest, load

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
            return import_code(self.manifest, source).files

    def version(self, *, live: bool = False) -> bytes:
        """The part of the deployment version that the code is."""
        return self.code(source=live).digest(live=live)

    def group(self) -> bytes:
        """The part of the feature group's key that the code is."""
        return self.code().digest_of(["groups:g"])


@contextmanager
def imported() -> Iterator[None]:
    """Forget what was imported within, and the folders that were put on the path for it."""
    modules, path = dict(sys.modules), list(sys.path)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = path
        for name in sys.modules.keys() - modules.keys():
            del sys.modules[name]
