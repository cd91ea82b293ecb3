"""Runs a hook right after a module was imported, so that only what the application imports is touched."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

Hook = Callable[[ModuleType], None]


class ImportHooks(importlib.abc.MetaPathFinder):
    """Finds modules like everybody else, and adds the hooks to their loaders.

    Args:
        hooks: by the module's full name.
        prefixes: for each module below a package, such as "sklearn.".
        on_done: called with the hook's module name, and with what it raised or None.
    """

    def __init__(
        self,
        hooks: Mapping[str, Hook],
        prefixes: Mapping[str, Hook],
        on_done: Callable[[str, Exception | None], None] = lambda name, error: None,
    ) -> None:
        self._hooks = dict(hooks)
        self._prefixes = dict(prefixes)
        self._on_done = on_done
        self._finding: set[str] = set()

    def install(self) -> None:
        """Look at every import from now on, and at what is imported already."""
        sys.meta_path.insert(0, self)
        for name, module in list(sys.modules.items()):
            if isinstance(module, ModuleType) and self._hooks_of(name):
                self.imported(name, module)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module that has a hook with the other finders."""
        if not self._hooks_of(fullname) or fullname in self._finding:
            return None
        self._finding.add(fullname)
        try:
            for finder in sys.meta_path:
                if finder is self or not hasattr(finder, "find_spec"):
                    continue
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec.loader, self)
                    return spec
            return None
        finally:
            self._finding.discard(fullname)

    def imported(self, name: str, module: ModuleType) -> None:
        """Run the module's hooks; one that fails leaves the module as it was made."""
        for hook in self._hooks_of(name):
            try:
                hook(module)
            except Exception as error:
                self._on_done(name, error)
            else:
                self._on_done(name, None)

    def _hooks_of(self, name: str) -> list[Hook]:
        found = [hook for prefix, hook in self._prefixes.items() if name.startswith(prefix)]
        return [*found, self._hooks[name]] if name in self._hooks else found


class _Loader(importlib.abc.Loader):
    """The module's own loader, and then the hooks."""

    def __init__(self, loader: importlib.abc.Loader, hooks: ImportHooks) -> None:
        self._loader = loader
        self._hooks = hooks

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # What looks at its own loader (resources, zip files) finds the real one.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._hooks.imported(module.__name__, module)

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)
