"""The modules that a source text imports: anywhere in it, by a statement or by name. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_BY_NAME = frozenset({"import_module", "__import__"})
_MARKERS = _BY_NAME | {
    "entry_points",
    "exec_module",
    "iter_modules",
    "load_module",
    "resolve_name",
    "run_module",
    "run_path",
    "spec_from_file_location",
    "walk_packages",
}
_MARKED = re.compile(rb"\b(?:" + "|".join(sorted(_MARKERS)).encode() + rb")\b")
_UNUSUAL = re.compile(
    rb"\A[^\n]*\n?[^\n]*coding[:=]|\\\r?\n[ \t\f]*(?:import|from)\b|\b(?:"
    + "|".join(sorted(_MARKERS)).encode()
    + rb")\b"
)
_IMPORT = re.compile(rb"\bimport\b")
_STATEMENT = re.compile(
    rb"^[ \t]*(?:import[ \t]+[^\n;\\(#]+|from[ \t]+[.\w]+[ \t]+import[ \t]*(?:\([^()]*\)|[^\n;\\(#]+))"
    rb"[ \t\r]*(?:#[^\n]*)?$",
    re.MULTILINE,
)
"""An import statement on lines of its own."""

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


class Imports(NamedTuple):
    """What a module may import.

    Attributes:
        names: absolute dotted names, sorted. ``from a import b`` gives ``a`` and ``a.b``: b may be a module.
        dynamic: whether it also imports modules whose names its text does not say.
    """

    names: tuple[str, ...]
    dynamic: bool = False


def imports_of(source: bytes, module: str, *, is_package: bool) -> Imports:
    """Find the imports of a module, those inside functions and conditions included, but ``if TYPE_CHECKING``.

    Args:
        source: its text, as it lies in the file.
        module: its dotted name; relative imports start there.
        is_package: whether it is the ``__init__`` of a package.

    Returns:
        nothing for a text that is no Python: such a module cannot be imported either.
    """
    try:
        tree = _tree(source, is_package=is_package)
    except (SyntaxError, ValueError):
        return Imports(())
    except (RecursionError, MemoryError):  # nested too deeply for the parser: anything may be in it
        return Imports((), dynamic=True)
    package = module if is_package else module.rpartition(".")[0]
    names = set(_statements(tree.body, package))
    if is_package:
        names |= {f"{module}.{name}" for name in _exported(tree)}  # what ``from module import *`` imports
    dynamic = False
    if _MARKED.search(source):
        named, dynamic = _named(tree, package)
        names |= named
    return Imports(tuple(sorted(names)), dynamic)


def _tree(source: bytes, *, is_package: bool) -> ast.Module:
    """Parse a module, or its import statements alone where that is the same: most of a parser's time is expressions.

    It is the same where every ``import`` of the text stands in a statement on lines of its own, and outside of a text
    in triple quotes.
    """
    if _UNUSUAL.search(source) or b"TYPE_CHECKING" in source or (is_package and b"__all__" in source):
        return ast.parse(source)
    found: list[bytes] = []
    words = 0
    for statement in _STATEMENT.finditer(source):
        words += len(_IMPORT.findall(statement.group()))
        found.append(statement.group().strip())
        before = source[: statement.start()]
        if before.count(b'"""') % 2 or before.count(b"'''") % 2:
            return ast.parse(source)
    if words != len(_IMPORT.findall(source)):
        return ast.parse(source)
    try:
        return ast.parse(b"\n".join(found))
    except SyntaxError:  # a piece is no whole statement: a comment in brackets has a bracket
        return ast.parse(source)


def _statements(body: Sequence[ast.AST], package: str) -> Iterator[str]:
    """Names of import statements; expressions hold none, so that they are not looked at."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node.module or "", node.level, package)
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
        else:
            for field in _BLOCKS:
                if field == "body" and isinstance(node, ast.If) and _is_for_checkers(node.test):
                    continue
                below = getattr(node, field, None)
                if isinstance(below, list):
                    yield from _statements(below, package)


def _is_for_checkers(test: ast.expr) -> bool:
    """Whether a condition holds for type checkers alone."""
    return isinstance(test, ast.Name | ast.Attribute) and _called(test) == "TYPE_CHECKING"


def _absolute(name: str, level: int, package: str) -> str:
    """Resolve a relative name; empty where it leaves the top-level package."""
    if level == 0:
        return name
    parts = package.split(".") if package else []
    if level > len(parts):
        return ""
    return ".".join([*parts[: len(parts) - level + 1], *([name] if name else [])])


def _exported(tree: ast.Module) -> Iterator[str]:
    """Names of a literal ``__all__``."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            value = getattr(node, "value", None)
            elements = value.elts if isinstance(value, ast.List | ast.Tuple) else []
            yield from (each.value for each in elements if isinstance(each, ast.Constant) and type(each.value) is str)


def _named(tree: ast.Module, package: str) -> tuple[set[str], bool]:
    """Names that are given as text to ``import_module`` and ``__import__``, and whether there are other uses."""
    names: set[str] = set()
    uses = explained = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node.func) in _BY_NAME:
            name = _literal(node, package)
            if name:
                names.add(name)
                explained += 1
        elif isinstance(node, ast.ImportFrom):
            uses += sum(alias.name in _MARKERS and alias.asname is not None for alias in node.names)
        if isinstance(node, ast.Name | ast.Attribute):
            uses += _called(node) in _MARKERS
    return names, uses > explained


def _called(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _literal(call: ast.Call, package: str) -> str:
    first = call.args[0] if call.args else None
    if not isinstance(first, ast.Constant) or type(first.value) is not str:
        return ""
    name = first.value.lstrip(".")
    level = len(first.value) - len(name)
    return _absolute(name, level, package)
