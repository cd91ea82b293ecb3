"""The rules of docs/design.md that a machine can check by reading the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "tailcut"
HOUSE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["tailcut"]["house"]
SOURCES = sorted(PACKAGE.rglob("*.py"))
PURE = (
    "common", "gate", "observe/drift", "parity/analysis", "profiler/attribution", "profiler/levers",
    "profiler/payloads", "scheduler",
)  # fmt: skip
"""Packages without clock, I/O, threads and randomness."""
IMPURE = {
    "asyncio",
    "concurrent",
    "datetime",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "secrets",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uuid",
}
HEAVY = ("torch", "onnx", "onnxscript", "matplotlib", "pandas", "sklearn", "scipy", "sympy", "transformers")
ENTRANCES = ("tailcut.transport.lifecycle", "tailcut.transport.asgi", "tailcut.cli.serve", "tailcut.load")
_TAKES_TIME = re.compile(r"# takes time: \w")
_UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")


def name_of(path: Path) -> str:
    """The path as pyproject and messages have it."""
    return path.relative_to(ROOT).as_posix()


def test_packages_keep_their_budgets() -> None:
    """Statements without docstrings and generated code: size is a budget of a package, not a shape of its files."""
    rows = re.findall(
        r"^\| `(\w+)` \| ([\d,]+) \|", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    budgets = {package: int(figure.replace(",", "")) for package, figure in rows}
    used: Counter[str] = Counter()
    for path in SOURCES:
        folder, *inside = path.relative_to(PACKAGE).parts
        if not path.name.endswith("_pb2.py"):
            used[folder if inside else "tailcut"] += _statements(path)
    assert used.keys() == budgets.keys()
    assert {package: count for package, count in used.items() if count > budgets[package]} == {}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports in functions count, too. Inside a package a neighbour may be imported for type checkers only."""
    modules = {_module(path): path for path in SOURCES}
    imports = {name: _imported(path, modules) for name, path in modules.items()}
    while leaves := {name for name, found in imports.items() if not found}:
        imports = {name: found - leaves for name, found in imports.items() if name not in leaves}
    # What is left is in a circle, or imports one that is.
    imported = {name for found in imports.values() for name in found}
    assert {name: sorted(found) for name, found in imports.items() if name in imported} == {}


def test_no_name_is_one_that_was_replaced_by_the_fields_term() -> None:
    assert {name_of(path) for path in SOURCES if path.stem.strip("_") in HOUSE["retired_modules"]} == set()
    classes = {node.name.strip("_") for path in SOURCES for node in _nodes(path) if isinstance(node, ast.ClassDef)}
    assert classes & set(HOUSE["retired_classes"]) == set()
    retired = re.compile(rf"\b({'|'.join(HOUSE['retired_metrics'])})(_total)?\b")
    pages = [*SOURCES, *(ROOT / "docs").rglob("*.md")]
    assert {name_of(path) for path in pages if retired.search(path.read_text(encoding="utf-8"))} == set()


@pytest.mark.parametrize("path", sorted(path for name in PURE for path in (PACKAGE / name).rglob("*.py")), ids=name_of)
def test_pure_packages_decide_and_do_nothing_else(path: Path) -> None:
    """No clock, I/O, threads or randomness of its own: time and draws come in as arguments."""
    assert {name for name in _imports(path) if name.partition(".")[0] in IMPURE} == set()
    calls = {node.func.id for node in _nodes(path) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert calls & {"open", "print", "input"} == set()


def test_public_modules_say_what_they_are() -> None:
    public = [path for path in SOURCES if not any(part.startswith("_") for part in _parts(path))]
    assert [name_of(path) for path in public if not ast.get_docstring(_tree(path))] == []


def test_public_classes_and_functions_of_tailcut_testing_say_what_they_are() -> None:
    """This is the package that users' own tests import."""
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    silent = [
        f"{name_of(path)}::{node.name}"
        for path in sorted((PACKAGE / "testing").glob("*.py"))
        for node in _tree(path).body
        if isinstance(node, kinds) and not node.name.startswith("_") and not ast.get_docstring(node)
    ]
    assert silent == []


def test_nothing_is_left_for_later() -> None:
    """An open point is an issue, not a comment."""
    folders = ("src", "tests", "examples", "benchmarks", "scripts", "docs")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if _is_text(path)]
    found = [name_of(path) for path in files if _UNFINISHED.search(path.read_text(encoding="utf-8"))]
    assert found == []


def test_no_test_sleeps_to_wait_for_something() -> None:
    """An event, a fake clock or ``tests.wait_kit`` waits. A fake that takes time says so behind the call."""
    folders = (ROOT / "tests" / name for name in ("unit", "concurrency"))
    found = [f"{name_of(path)}:{line}" for folder in folders for path in folder.rglob("*.py") for line in _sleeps(path)]
    assert found == []


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_serving_imports_nothing_heavy(entrance: str) -> None:
    """A serving install has none of these; importing them would cost seconds and hundreds of megabytes."""
    script = f"import sys, {entrance}; print(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_importing_has_no_side_effects() -> None:
    """No logging set-up, no environment, no threads, no event loop policy changed."""
    script = (
        "import asyncio, logging, os, threading\n"
        "before = dict(os.environ), asyncio.get_event_loop_policy()\n"
        f"import {', '.join(ENTRANCES)}\n"
        "assert (dict(os.environ), asyncio.get_event_loop_policy()) == before\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "assert logging.getLogger().handlers == []\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def _imports(path: Path) -> Iterator[str]:
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def _nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(_tree(path))


def _sleeps(path: Path) -> Iterator[int]:
    """Yield the lines of sleeps that are longer than 0 and give no reason."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for node in _nodes(path):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"time.sleep", "asyncio.sleep", "sleep"}:
            length = [*node.args, *(keyword.value for keyword in node.keywords)][0]
            assert node.end_lineno is not None
            call = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            if ast.unparse(length) != "0" and not _TAKES_TIME.search(call):
                yield node.lineno


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _parts(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] in {"__init__", "__main__"} else parts


def _module(path: Path) -> str:
    """Return a file's module, a package's without ``__init__``."""
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def _imported(path: Path, modules: Mapping[str, Path]) -> set[str]:
    """Return which of the modules a file imports; a package only where a name of its own is meant."""
    found = set()
    package = tuple(_module(path).split(".")[:2])
    for node, typed in _with_typing(path):
        if typed and isinstance(node, ast.ImportFrom) and tuple((node.module or "").split(".")[:2]) == package:
            continue
        if isinstance(node, ast.ImportFrom) and node.module in modules:
            submodules = {f"{node.module}.{name.name}" for name in node.names} & set(modules)
            found |= submodules or {node.module}
    return found - {_module(path)}


def _with_typing(path: Path) -> Iterator[tuple[ast.AST, bool]]:
    """Yield every node, and whether it is there for type checkers only."""
    typed = set()
    for node in _nodes(path):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            typed.update(ast.walk(node))
        yield node, node in typed


def _statements(path: Path) -> int:
    nodes = list(_nodes(path))
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    docstrings = sum(isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None for node in nodes)
    return sum(isinstance(node, ast.stmt) for node in nodes) - docstrings


def _is_text(path: Path) -> bool:
    hidden = any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(ROOT).parts)
    return path.is_file() and not hidden and path.suffix in {".py", ".md", ".toml", ".sh", ".sql"}
