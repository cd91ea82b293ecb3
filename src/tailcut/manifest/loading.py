"""Load ``tailcut.toml``: file, then environment, then flags; every value checked; one frozen record out."""

from __future__ import annotations

import copy
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tailcut.errors import ManifestError
from tailcut.manifest import overrides as over
from tailcut.manifest.checks import problems
from tailcut.manifest.keys import dotted, to_plain
from tailcut.manifest.reading import read
from tailcut.manifest.schema import Deployment

FILE_NAME = "tailcut.toml"

HOST_SECTIONS = ("server", "observe")
"""Sections that are of the server as a whole: where it has several models, its host.toml has them."""

_EXAMPLES = {"server": "server.port=8700", "observe": "observe.window=30s"}
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_FROM_ENVIRONMENT = ("cache", "database", "redis")


@dataclass(frozen=True)
class Manifest:
    """A deployment, where its file lies, and where each value came from.

    Attributes:
        deployment: what the manifest says, defaults included.
        directory: the manifest's folder, absolute, with the links by which it was named; relative paths in the
            manifest start there.
        origins: dotted path -> "flag", "environment" or "file"; a path that is absent has its default.
    """

    deployment: Deployment
    directory: Path
    origins: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Shared:
    """The sections of several models that are the host's, as plain values.

    Attributes:
        sections: by name, those of ``HOST_SECTIONS``.
        where: what sets them: the path of a host.toml, or empty where only flags and variables do.
        beside: what else is served.
    """

    sections: Mapping[str, Any]
    where: str = ""
    beside: str = "others"

    def give(self, tree: dict[str, Any], file: Path) -> None:
        """Put them into a model's tree.

        Raises:
            ManifestError: the model has such a section of its own.
        """
        for name in HOST_SECTIONS:
            if name in tree:
                keys = ", ".join(f"{name}.{key}" for key in tree[name]) if isinstance(tree[name], dict) else ""
                raise ManifestError(
                    f"{file}: [{name}] is set here ({keys or 'no keys'}), but this model is served together with "
                    + f"{self.beside}, "
                    + (f"and {self.where} sets the server" if self.where else "so it does not own the server"),
                    hint=f"move [{name}] to {self.where or 'a host.toml that names the models'}, or give its keys as "
                    f"flags (--set {_EXAMPLES[name]})",
                )
            tree[name] = copy.deepcopy(dict(self.sections.get(name, {})))


def load(
    path: Path,
    *,
    environment: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
    keep_unset: bool = False,
    server: Shared | None = None,
) -> Manifest:
    """Load a manifest; a flag wins over the environment, which wins over the file, which wins over the default.

    Args:
        path: the file, or the folder that holds ``tailcut.toml``.
        environment: variables to read instead of the process's own.
        overrides: "dotted.path=value" texts from flags; a later one wins. One that begins with the name of another
            model ("risk:dotted.path=value") does not count.
        keep_unset: leave ``${NAME}`` as it stands where the environment has no NAME, for commands that start the
            databases first and learn their addresses only then.
        server: the settings of the server where it has several models; the manifest itself then has none.

    Raises:
        ManifestError: unreadable file, unknown key, variable or path, wrong value, or an impossible combination.
    """
    environment = os.environ if environment is None else environment
    file = manifest_file(path)
    tree = parse(file)
    if server is not None:
        server.give(tree, file)
    origins = {dotted(one): "file" for one in _paths(tree)}
    for override in (*over.from_environment(environment), *over.from_flags(overrides)):
        if override.sets(tree.get("name")):
            origins[dotted(over.put(tree, override))] = override.origin
    deployment = _deployment(tree, origins, environment, keep_unset)
    _check_rungs(tree, deployment, environment)
    return Manifest(deployment, file.parent, origins)


def with_overrides(manifest: Manifest, overrides: Sequence[str]) -> Manifest:
    """Make the manifest that has some values set otherwise; the given one stays as it is.

    Args:
        manifest: the one to start from.
        overrides: "dotted.path=value" texts; ``${NAME}`` in them is taken from the process's environment.

    Raises:
        ManifestError: an unknown path, a wrong value, or an impossible combination.
    """
    tree = to_plain(manifest.deployment)
    origins = dict(manifest.origins)
    for override in over.from_flags(overrides):
        if override.sets(manifest.deployment.name):
            origins[dotted(over.put(tree, override))] = override.origin
    return replace(manifest, deployment=_deployment(tree, origins, os.environ, keep_unset=True), origins=origins)


def manifest_file(path: Path) -> Path:
    """Return the file of a manifest, absolute; raises ManifestError where there is none."""
    file = absolute(path / FILE_NAME if path.is_dir() else path)
    if not file.is_file():
        raise ManifestError(
            f"{file}: no manifest found", hint="write one with `tailcut init`, or name it with --manifest PATH"
        )
    return file


def absolute(path: Path) -> Path:
    """Return an absolute path without "..", its symbolic links kept: it leads where they lead when it is used.

    Releases are switched by a link that is pointed elsewhere, and Kubernetes updates mounted files so.
    """
    parts = path.absolute().parts
    found = Path(parts[0])
    for part in parts[1:]:
        # What lies above a link's target is not what lies above the link.
        is_plain = part == ".." and found.name != ".." and not os.path.islink(found)
        found = found.parent if is_plain else found / part
    return found


def parse(file: Path) -> dict[str, Any]:
    """Return a TOML file as plain values; raises ManifestError where it cannot be read."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(
            f"{file}: not valid TOML: {error}", hint="correct it; https://toml.io describes the syntax"
        ) from None
    except UnicodeDecodeError as error:
        raise ManifestError(f"{file}: not UTF-8 text: {error}", hint="save the file as UTF-8") from None
    except OSError as error:
        raise ManifestError(f"{file}: cannot be read: {error.strerror}", hint="check its permissions") from None


def _deployment(
    tree: dict[str, Any], origins: Mapping[str, str], environment: Mapping[str, str], keep_unset: bool
) -> Deployment:
    tree = copy.deepcopy(tree)
    _fill_in(tree, environment, keep_unset)
    deployment = read(tree, origins)
    for problem in problems(deployment):
        raise problem
    return deployment


def _fill_in(tree: dict[str, Any], environment: Mapping[str, str], keep_unset: bool) -> None:
    """Replace ``${NAME}`` and ``${NAME:-default}`` in where features come from and are kept.

    Secrets need not stand in the file, and one file serves where Redis is there and where it is not.
    """
    features = tree.get("features")
    if not isinstance(features, dict):
        return
    for name in _FROM_ENVIRONMENT:
        if isinstance(text := features.get(name), str):
            features[name] = _filled(name, text, environment, keep_unset)


def _filled(name: str, text: str, environment: Mapping[str, str], keep_unset: bool) -> str:
    def value(found: re.Match[str]) -> str:
        variable, default = found.group(1, 2)
        if variable in environment:
            return environment[variable]
        if default is not None:
            return str(default)
        if keep_unset:
            return found.group()
        raise ManifestError(
            f"features.{name}: the environment variable {variable} is not set",
            hint=f"export {variable}=..., or give --set 'features.{name}=VALUE'",
        )

    return _REFERENCE.sub(value, text)


def _check_rungs(tree: dict[str, Any], deployment: Deployment, environment: Mapping[str, str]) -> None:
    """Apply the rungs one upon the other, so that a rung that cannot run is known before the first one runs."""
    rung_tree = copy.deepcopy({name: value for name, value in tree.items() if name != "ladder"})
    for rung in deployment.ladder.rungs:
        path = dotted(("ladder", "rungs", rung.name, "set"))
        for text in rung.set:
            try:
                override = over.from_flags([text])[0]
                if override.parts[0] == "ladder":
                    raise ManifestError("a rung cannot change the ladder itself", hint="set it in [ladder]")
                if override.sets(deployment.name):
                    over.put(rung_tree, override)
            except ManifestError as error:
                raise ManifestError(f'{path}: "{text}": {error.message}', hint=error.hint) from None
        try:
            _deployment(rung_tree, {}, environment, keep_unset=True)
        except ManifestError as error:
            raise ManifestError(f"{path}: {error.message}", hint=error.hint) from None


def _paths(tree: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterable[tuple[str, ...]]:
    """The paths of all values in a tree; elements of named lists under their names."""
    for name, value in tree.items():
        path = (*above, name)
        if isinstance(value, dict):
            yield from _paths(value, path)
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            for index, item in enumerate(value):
                yield from _paths(item, (*path, str(item.get("name", index))))
        else:
            yield path
