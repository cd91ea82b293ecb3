"""Imports of Python source, found without running it: those inside functions too, which run at request time."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_BY_NAME = frozenset({"import_module", "__import__"})


@dataclass(frozen=True)
class Imports:
    """What a module's source can import.

    Attributes:
        names: dotted names. Of ``from a import b`` both a and a.b: b may be a module or not.
        dynamic: whether it imports modules whose names its source does not show.
    """

    names: frozenset[str]
    dynamic: bool = False


def imports_of(source: bytes, module: str, *, is_package: bool) -> Imports:
    """Return the imports of a module's source; none where it is no Python, which importing it then says.

    Args:
        source: of the module.
        module: its dotted name; relative imports start there.
        is_package: whether it is the ``__init__`` of a package.
    """
    package = module if is_package else module.rpartition(".")[0]
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return Imports(frozenset())
    names: set[str] = set()
    dynamic = False
    for node in _run(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update(_imported_from(node, package))
        elif isinstance(node, ast.Call) and _last(node.func) in _BY_NAME:
            given = node.args[0] if node.args else None
            if isinstance(given, ast.Constant) and isinstance(given.value, str) and not given.value.startswith("."):
                names.add(given.value)
            else:
                dynamic = True
    return Imports(frozenset(names), dynamic)


def _run(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that can run: what stands under ``if TYPE_CHECKING`` is for type checkers only."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and _last(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)


def _imported_from(node: ast.ImportFrom, package: str) -> Iterator[str]:
    parts = package.split(".") if package else []
    if node.level > len(parts):
        return  # beyond the top-level package: importing it says so
    above = parts[: len(parts) - node.level + 1] if node.level else []
    base = ".".join([*above, *([node.module] if node.module else [])])
    yield base
    yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")


def _last(node: ast.AST) -> str:
    """Return the last part of a name, such as import_module of importlib.import_module."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
