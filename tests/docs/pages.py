"""Takes a Markdown page apart: its links, its command lines, its manifests; and says what is wrong with them."""

from __future__ import annotations

import json
import re
import shlex
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from typer.main import get_command

from tailcut.cli.app import COMMANDS, build
from tailcut.errors import ManifestError
from tailcut.manifest import load
from tailcut.manifest.reading import read_as
from tailcut.manifest.schema.host import HostFile

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
)
MAKE_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
ROUTES = re.compile(
    r"/v2(/health/(live|ready)|/models/[\w.-]+(/versions/\w+)?(/ready|/infer|/generate|/generate_stream|/config|/stats)?"
    r"|/repository/index|/repository/models/[\w.-]+/(load|unload))?|/predict/[\w.-]+|/metrics|/openapi\.json|/docs|/debug/requests(/\w+)?"
)
# What stands before a manifest's fragment so that it can be read: the least that a whole one has.
_BASE = """
name = "model"
[model]
source = "model:build"
preprocess = "model:preprocess"
[[model.inputs]]
name = "features"
shape = [-1, 4]
[[model.outputs]]
name = "probability"
"""
_FEATURES = """
[features]
entity = ["id"]
[[features.groups]]
name = "values"
key = ["id"]
columns = ["value"]
ttl = "5m"
function = "model:values"
"""
_SHELLS = {"console", "bash", "sh", "shell"}
_FENCE = re.compile(
    r"^(?P<fence>```+)(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^(?P=fence)\s*$", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)[^)]*\)|!\[[^\]]*\]\(([^)\s]+)[^)]*\)")
_HEADING = re.compile(r"^#+\s+(.*)$", re.MULTILINE)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


def name_of(path: Path) -> str:
    """The path as messages have it."""
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path) -> Iterator[tuple[str, str]]:
    """(language, text) of every fenced block."""
    for match in _FENCE.finditer(path.read_text(encoding="utf-8")):
        yield match["language"], match["text"]


def broken_links(path: Path) -> list[str]:
    """Relative links that lead nowhere, or to a heading that is not there."""
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    broken = []
    for match in _LINK.finditer(text):
        link = match[1] or match[2]
        if urlsplit(link).scheme:
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        outside = bool(file) and not target.is_relative_to(ROOT)
        if outside or not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)
    return broken


def commands(path: Path) -> Iterator[list[str]]:
    """Every simple command of the shell blocks, as its words."""
    for language, text in blocks(path):
        if language in _SHELLS:
            for line in _lines(text, prompts=language == "console"):
                yield from _simple_commands(line)


def command_error(words: list[str]) -> str:
    """What is wrong with a command of ours; empty where nothing is, or where it is not ours."""
    name, *arguments = words
    if name == "make":
        unknown = [word for word in arguments if not _ASSIGNMENT.match(word) and word not in MAKE_TARGETS]
        return f"make has no target {', '.join(unknown)}" if unknown else ""
    if Path(name).name == "curl":
        return _curl_error(arguments)
    if name.startswith(("scripts/", "./scripts/")):
        return "" if (ROOT / name).exists() else f"there is no {name}"
    return _tailcut_error(arguments) if Path(name).name == "tailcut" else ""


def manifest_error(text: str) -> str:
    """What is wrong with a manifest or a part of one; empty where nothing is."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return f"not TOML: {error}"
    if "models" in tree:  # a host.toml
        try:
            read_as(HostFile, tree, {})
        except ManifestError as error:
            return str(error)
        return ""
    whole = "model" in tree and "name" in tree
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tailcut.toml"
        features = "" if "features" in tree else _FEATURES
        file.write_text(text if whole else f"{_BASE}\n{features}\n{text}", encoding="utf-8")
        environment = dict.fromkeys(re.findall(r"\$\{(\w+)\}", text), "sqlite:///features.db")
        environment |= {name: "redis://localhost:6379/0" for name in environment if "REDIS" in name}
        try:
            load(file, environment=environment)
        except ManifestError as error:
            return str(error)
    return ""


def _tailcut_error(arguments: list[str]) -> str:
    arguments = [argument for argument in arguments if argument != "--debug"]
    if arguments in (["--version"], ["--help"]) or not arguments:
        return ""
    if arguments[0] not in COMMANDS:
        return f"there is no command {arguments[0]}"
    command: Any = get_command(build(arguments[0]))
    names: list[str] = []
    try:
        while below := getattr(command, "commands", None):
            if not arguments or arguments[0] not in below:
                return f"there is no command {' '.join([*names, *arguments[:1]])}"
            command = below[arguments[0]]
            names.append(arguments.pop(0))
        if "--help" not in arguments:
            command.make_context(" ".join(names), arguments)
    except Exception as error:
        return f"{' '.join(names)}: {getattr(error, 'message', error)}"
    return ""


def _curl_error(arguments: list[str]) -> str:
    for index, word in enumerate(arguments):
        if re.match(r"(http://)?(127\.0\.0\.1|localhost)[:/]", word):
            path = urlsplit(word if "//" in word else f"http://{word}").path
            if not ROUTES.fullmatch(path):
                return f"the server has no path {path}"
        if word in {"-d", "--data", "--json", "--data-raw"} and not arguments[index + 1].startswith("@"):
            try:
                json.loads(arguments[index + 1])
            except ValueError as error:
                return f"not JSON: {arguments[index + 1]!r}: {error}"
    return ""


def _lines(text: str, *, prompts: bool) -> Iterator[str]:
    """Command lines, those that go on over several lines joined; what a console shows as output is left out."""
    pending = ""
    for shown in text.splitlines():
        if prompts and not pending and not shown.startswith("$ "):
            continue
        line = shown.removeprefix("> " if pending else "$ ") if prompts else shown
        pending = f"{pending}\n{line}" if pending else line
        if pending.endswith("\\"):
            pending = pending[:-1].rstrip()
            continue
        if _is_whole(pending):
            yield pending
            pending = ""
    assert not pending, f"unfinished command line: {pending!r}"


def _is_whole(line: str) -> bool:
    try:
        shlex.split(line, comments=True)
    except ValueError:
        return False
    return True


def _simple_commands(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word and set(word) <= set("();<>|&"):
            if words:
                yield words
            words = []
        elif words or not _ASSIGNMENT.match(word):
            words.append(word)


def _anchors(path: Path) -> set[str]:
    """GitHub's names of the headings."""
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in _HEADING.findall(text)}
