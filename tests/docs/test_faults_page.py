"""The page on faults: each row of its tables names tests that exist, and keys, codes and metrics that are so."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tailcut import errors

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "faults.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("|") and not line.startswith(("| fault", "|--"))]
TEST = re.compile(r"`(tests/[\w/]+\.py)?::(test_\w+)`")
CODES = {
    error.code for error in vars(errors).values() if isinstance(error, type) and issubclass(error, errors.TailcutError)
}


def named_in(row: str) -> list[tuple[str, str]]:
    """(file, test) of each that a row names; a name without a file is in the file before it."""
    found, file = [], ""
    for match in TEST.finditer(row):
        file = match[1] or file
        found.append((file, match[2]))
    return found


def functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_row_names_tests_that_exist() -> None:
    assert len(ROWS) > 20
    assert [row for row in ROWS if not named_in(row) or row.count("|") != 6] == []
    named = {each for row in ROWS for each in named_in(row)}
    assert {(file, test) for file, test in named if test not in functions(file)} == set()


def test_every_test_of_a_fault_has_a_row() -> None:
    named = {test for row in ROWS for _, test in named_in(row)}
    written = {
        name
        for path in (ROOT / "tests" / "integration" / "faults").glob("test_*.py")
        for name in functions(path.relative_to(ROOT).as_posix())
        if name.startswith("test_")
    }
    assert written - named == {"test_an_error_at_the_start_that_cannot_be_said_is_an_exit_code_all_the_same"}


def test_codes_and_metrics_are_those_of_the_code() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src" / "tailcut").rglob("*.py"))
    for row in ROWS:
        words = re.findall(r"`([\w.{}=\"]+)`", row)
        metrics = [word.partition("{")[0].removesuffix("_total") for word in words if word.startswith("tailcut_")]
        assert [metric for metric in metrics if f'"{metric}"' not in sources] == []
        codes = [word for word in words if re.fullmatch(r"[a-z]+_[a-z]+", word) and not word.startswith("process_")]
        assert [code for code in codes if code not in CODES and code != "stale_for"] == []
