"""The README's first screen and what it says can be run."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT, blocks, commands

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")


def test_the_first_screen_says_what_it_is_what_it_measured_and_how_to_run_it() -> None:
    """A sentence, the ladder with the command that made it, and the lines to run: within the first 60 lines."""
    lines = TEXT.splitlines()
    assert lines[0].startswith("# tailcut")
    first = "\n".join(lines[:60])
    sentence = next(line for line in lines[1:] if line.strip())
    assert sentence[0].isalpha() or sentence[0] in "*_>`", sentence
    assert re.search(r"^\|.*p95.*\|$", first, re.MULTILINE), "a table of the ladder"
    assert "tailcut ladder" in first
    assert "make demo" in first


def test_it_shows_a_request_to_the_example() -> None:
    assert any(words[0] == "curl" and any("/predict/" in word for word in words) for words in commands(README))


def test_shell_blocks_are_marked_as_such() -> None:
    """A block that starts with a prompt or with tailcut is one that test_docs.py reads."""
    unmarked = [text for language, text in blocks(README) if not language and re.match(r"(\$ |tailcut |make )", text)]
    assert unmarked == []


def test_it_leads_to_the_documentation_the_licence_and_the_changes() -> None:
    for target in ("docs/index.md", "docs/design.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md"):
        assert f"]({target})" in TEXT, target
