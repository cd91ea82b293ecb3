"""Where the user's code of a deployment begins: the functions that the manifest names, and what they wrap."""

from __future__ import annotations

import functools
import inspect
import marshal
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tailcut.code.locating import Locator
from tailcut.manifest import Manifest
from tailcut.manifest.references import source_path

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""In the text of an object: another one in every process."""


class Root(NamedTuple):
    """A function of the user's, as far as its own text does not say what it is.

    Attributes:
        modules: that define it and what it wraps.
        bound: the arguments that are bound to it, and the code of what has no module.
    """

    modules: tuple[str, ...]
    bound: bytes


def serving_references(manifest: Manifest) -> tuple[str, ...]:
    """Return the references to functions that every variant's answers depend on.

    Types of stored estimators are not among them: see ``serving_modules``.
    """
    deployment = manifest.deployment
    groups = deployment.features.groups
    named = [deployment.model.preprocess, deployment.model.postprocess]
    named += [group.function for group in groups]
    named += [group.ttl for group in groups if ":" in group.ttl]
    named.append(deployment.features.clock)
    return tuple(dict.fromkeys(filter(None, named)))


def serving_modules(manifest: Manifest) -> set[str]:
    """Return the modules of what answers depend on, types of stored estimators included.

    Only variants with such an estimator import the types. The types count for every variant all the same: that is
    simpler than tracking which variant needs which module, and at worst a cache starts empty.
    """
    return {module_of(name) for name in (*serving_references(manifest), *manifest.deployment.model.trusted)}


def source_reference(manifest: Manifest) -> str:
    """Return ``model.source`` where it is a callable, else an empty text."""
    return manifest.deployment.model.source if source_path(manifest) is None else ""


def module_of(reference: str) -> str:
    """Return the module of 'package.module:callable'."""
    return reference.partition(":")[0]


def root_of(function: Callable[..., Any], locator: Locator) -> Root:
    """Look through partials and wrappers for the modules that define a function."""
    modules: list[str] = []
    bound: list[bytes] = []
    while True:
        if isinstance(function, functools.partial):
            bound.append(_ADDRESS.sub("", repr((function.args, function.keywords))).encode())
            function = function.func
            continue
        target = function if inspect.isroutine(function) or inspect.isclass(function) else type(function)
        module = getattr(target, "__module__", None) or ""
        if locator.find(module).kind != "missing" and module != "__main__":
            modules.append(module)
        else:
            bound.append(_code_of(target))
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is None:
            return Root(tuple(modules), msgspec.msgpack.encode(bound) if bound else b"")
        function = wrapped


def _code_of(target: Any) -> bytes:
    """Return the file of what no import finds, or its byte code where it has none either."""
    try:
        path = inspect.getsourcefile(target)
        if path is not None:
            return Path(path).read_bytes()
    except (OSError, TypeError):
        pass
    code = getattr(target, "__code__", None)
    return marshal.dumps(code) if code is not None else _ADDRESS.sub("", repr(target)).encode()
