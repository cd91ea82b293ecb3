"""Real text that is installed anyway: docstrings of Python and of the scientific packages, cut into passages.

Sources are parsed, never imported. Passages of one file are all for training or all for the holdout, and a text that
occurs twice is used once, so the downstream head never saw what it is judged on.
"""

from __future__ import annotations

import ast
import hashlib
import random
import re
import sysconfig
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from minilm.settings import SEED
from minilm.topics import NAMES, STANDARD_LIBRARY, TOPICS

LENGTHS_WORDS = (7, 14, 28, 60, 110)
"""A passage is as many paragraphs as it takes to reach one of these, drawn with a seed: from a query to an abstract."""
LEAST_WORDS = 5
HOLDOUT_SHARE = 0.5
"""At least this share of each topic's passages is held out."""

_NOT_ABOUT = {"tests", "test", "idle_test", "_vendor", "externals"}
_UNDERLINE = re.compile(r"^\s*[-=~^*]{3,}\s*$")
_DEFINED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Passage:
    """A piece of documentation: its text, the number of its topic, and whether it is held out."""

    text: str
    topic: int
    held_out: bool


def passages() -> list[Passage]:
    """Read all passages of all topics, in an order that depends on nothing but the installed sources."""
    found: list[Passage] = []
    seen: set[str] = set()
    for topic, name in enumerate(NAMES):
        by_file: dict[str, list[str]] = defaultdict(list)
        for source in TOPICS[name]:
            for key, path in _files(source):
                by_file[key] += _fresh(_passages_of(key, path), seen)
        held_out = _held_out({key: len(texts) for key, texts in by_file.items()})
        found += [Passage(text, topic, key in held_out) for key, texts in by_file.items() for text in texts]
    return found


def _files(source: str) -> Iterator[tuple[str, Path]]:
    """Yield the .py files of 'package/module', each with a name that is the same on every machine."""
    package, _, module = source.partition("/")
    root = _root(package)
    single = root / f"{module or package}.py"
    paths = [single] if single.is_file() else sorted((root / module).rglob("*.py"))
    for path in paths:
        relative = path.relative_to(root)
        if not _NOT_ABOUT & set(relative.parts):
            yield f"{package}/{relative.as_posix()}", path


def _root(package: str) -> Path:
    if package == STANDARD_LIBRARY:
        return Path(sysconfig.get_path("stdlib"))
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            f"{package} is not installed, and its docstrings are part of the text\n\nhint: pip install {package}"
        )
    return Path(spec.submodule_search_locations[0])


def _held_out(sizes: dict[str, int]) -> set[str]:
    """Choose whole files, in the order of their hashes, until HOLDOUT_SHARE of the passages is held out.

    A file that holds more than half of a topic stays in training.
    """
    total, taken, chosen = sum(sizes.values()), 0, set()
    for key in sorted(sizes, key=lambda key: hashlib.sha256(key.encode()).digest()):
        if taken < HOLDOUT_SHARE * total and sizes[key] <= total / 2:
            chosen.add(key)
            taken += sizes[key]
    return chosen


def _fresh(texts: Iterator[str], seen: set[str]) -> Iterator[str]:
    for text in texts:
        normal = " ".join(re.findall(r"[a-z]+", text.lower()))
        if normal not in seen:
            seen.add(normal)
            yield text


def _passages_of(key: str, path: Path) -> Iterator[str]:
    draw = random.Random(f"{SEED} {key}")
    for name, docstring in _docstrings(path):
        words: list[str] = []
        wanted = draw.choice(LENGTHS_WORDS)
        for paragraph in paragraphs(docstring):
            words += paragraph.split()
            if len(words) >= wanted:
                yield f"{name}: {' '.join(words)}"
                words, wanted = [], draw.choice(LENGTHS_WORDS)
        if len(words) >= LEAST_WORDS:
            yield f"{name}: {' '.join(words)}"


def _docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each docstring with the name of what it describes: the title that a search index gives a passage."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError):
        return  # a file of another encoding, or a template
    for node in ast.walk(tree):
        if isinstance(node, _DEFINED) and (found := ast.get_docstring(node)):
            yield (path.stem if isinstance(node, ast.Module) else node.name), found


def paragraphs(docstring: str) -> Iterator[str]:
    """Yield the prose of a docstring, a paragraph each: no examples, no headings, at least LEAST_WORDS words."""
    for block in re.split(r"\n\s*\n", docstring):
        lines = block.splitlines()
        if any(line.lstrip().startswith((">>>", "...", ".. ")) for line in lines):
            continue
        if len(lines) > 1 and _UNDERLINE.match(lines[1]):
            lines = lines[2:]
        text = " ".join(" ".join(lines).split())
        if len(re.findall(r"[A-Za-z]{2,}", text)) >= LEAST_WORDS:
            yield text
