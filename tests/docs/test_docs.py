"""Every page in the repository: its links lead somewhere, its command lines and manifests are taken as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.pages import PAGES, ROOT, blocks, broken_links, command_error, commands, manifest_error, name_of

from tailcut.cli.app import COMMANDS

pages = pytest.mark.parametrize("path", PAGES, ids=name_of)


@pages
def test_links_lead_somewhere(path: Path) -> None:
    assert broken_links(path) == []


@pages
def test_command_lines_are_taken(path: Path) -> None:
    """Each with its sub-command, flags, targets, URLs and JSON; nothing is run."""
    errors = {" ".join(words): error for words in commands(path) if (error := command_error(words))}
    assert errors == {}


@pages
def test_manifests_are_taken(path: Path) -> None:
    """A part of a manifest is read on top of the least that a whole one has."""
    assert [error for language, text in blocks(path) if language == "toml" and (error := manifest_error(text))] == []


@pages
def test_commands_named_in_the_text_exist(path: Path) -> None:
    named = set(re.findall(r"`tailcut ([a-z][a-z-]*)", path.read_text(encoding="utf-8")))
    assert named <= set(COMMANDS)


@pages
def test_no_page_knows_where_it_was_written(path: Path) -> None:
    """No paths of somebody's machine: a reader has neither."""
    assert re.findall(r"(?<![\w.])/(?:work|home|root|Users)/\S*", path.read_text(encoding="utf-8")) == []


def test_every_page_can_be_reached_from_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    inside = [path for path in PAGES if path.is_relative_to(ROOT / "docs") and path.name != "index.md"]
    unreachable = [name_of(path) for path in inside if path.relative_to(ROOT / "docs").as_posix() not in index]
    assert unreachable == []


def test_the_table_of_results_names_every_file() -> None:
    """A result is in the table, and the table names no file that is gone."""
    folder = ROOT / "benchmarks" / "results"
    page = folder / "README.md"
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    named = re.findall(r"\]\(([^)]+)\)", "\n".join(rows))
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file() and path != page}
    assert len(named) == len(set(named)), "a file is named twice"
    assert set(named) == files
    assert broken_links(page) == []


def test_the_checks_see_what_is_wrong(tmp_path: Path) -> None:
    """The judge is judged: each kind of mistake is found."""
    assert command_error(["tailcut", "serve", "--port", "0"]) == ""
    assert "no-such-flag" in command_error(["tailcut", "serve", "--no-such-flag"])
    assert "there is no command" in command_error(["tailcut", "fly"])
    assert "no target" in command_error(["make", "coffee"])
    assert "no path" in command_error(["curl", "127.0.0.1:8700/v3/models"])
    assert "not JSON" in command_error(["curl", "-d", "{'rows'}", "http://localhost:8700/predict/m"])
    assert "not TOML" in manifest_error("[slo")
    assert "p96" in manifest_error('[slo]\np96 = "25ms"')
    assert "p95" in manifest_error('[slo]\np95 = "25 parsec"')
    assert manifest_error('[slo]\np95 = "25ms"') == ""
    page = tmp_path / "page.md"
    page.write_text("```console\n$ A=1 tailcut serve \\\n    --port 0 | tee log && make demo  # both\nready\n```\n")
    assert list(commands(page)) == [["tailcut", "serve", "--port", "0"], ["tee", "log"], ["make", "demo"]]
    page.write_text("# A page\n[a](nowhere.md) [b](#a-page) [c](#another)\n")
    assert broken_links(page) == ["nowhere.md", "#another"]
