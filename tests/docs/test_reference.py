"""The reference is what the code says: current, complete, and each example a line the program takes."""

from __future__ import annotations

import shlex

import pytest
from rich.text import Text
from scripts.generate_docs import PAGES, REFERENCE
from tests.manifest_kit import leaves
from typer.main import get_command

from tailcut.cli.app import COMMANDS, build
from tailcut.cli.console import EXIT_REASONS, ExitCode
from tailcut.manifest.keys import variable


@pytest.mark.parametrize("name", sorted(PAGES))
def test_pages_are_current(name: str) -> None:
    text = (REFERENCE / name).read_text(encoding="utf-8")
    assert text == PAGES[name](), "run: python scripts/generate_docs.py"


def test_every_key_is_documented_with_its_meaning() -> None:
    text = (REFERENCE / "manifest.md").read_text(encoding="utf-8")
    for path, key in leaves():
        rows = [line for line in text.splitlines() if f"`{variable(path)}`" in line]
        assert len(rows) == 1, path
        assert rows[0].startswith(f"| `{key.name}` |")
        assert key.description.replace("|", "\\|") in rows[0]
        assert key.description, path


def test_every_exit_code_is_documented() -> None:
    text = (REFERENCE / "cli.md").read_text(encoding="utf-8")
    assert set(EXIT_REASONS) == set(ExitCode)
    for code in ExitCode:
        assert f"| {code.value} | {code.name} |" in text


def commands() -> list[tuple[str, object]]:
    """Every command that is there, groups opened."""
    found: list[tuple[str, object]] = []
    for name in COMMANDS:
        command = getattr(get_command(build(name)), "commands", {}).get(name)
        below = getattr(command, "commands", None)
        if below:
            found += [(f"{name} {other}", one) for other, one in below.items()]
        elif command is not None:
            found.append((name, command))
    return found


@pytest.mark.parametrize(("name", "command"), commands(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_command_has_help_and_ends_with_examples_of_itself(name: str, command: object) -> None:
    assert getattr(command, "help", ""), f"tailcut {name} needs a docstring"
    lines = [Text.from_markup(line).plain for line in (getattr(command, "epilog", "") or "").split("\n\n")]
    assert lines[0] == "Examples:", f"tailcut {name} needs epilog=examples(...)"
    assert len(lines) > 1
    for line in lines[1:]:
        assert shlex.split(line, comments=True)
        assert f"tailcut {name.split(' ', maxsplit=1)[0]}" in line


@pytest.mark.parametrize(("name", "command"), commands(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_option_says_what_it_does(name: str, command: object) -> None:
    for parameter in getattr(command, "params", ()):
        assert getattr(parameter, "help", ""), f"tailcut {name}: {parameter.name} has no help"
