"""Imports of a module's source, found without running it."""

from __future__ import annotations

import keyword
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.common.source_imports import imports_of

NAMES = st.text(string.ascii_lowercase, min_size=1, max_size=5).filter(lambda name: not keyword.iskeyword(name))
DOTTED = st.lists(NAMES, min_size=1, max_size=3).map(".".join)


@pytest.mark.parametrize(
    ("source", "package", "names"),
    [
        ("import a.b, c as d", "", {"a.b", "c"}),
        ("from a import b as x, c", "", {"a", "a.b", "a.c"}),
        ("from a import *", "", {"a"}),
        ("from . import b", "p", {"p", "p.b"}),
        ("from .b import c", "p.q", {"p.q.b", "p.q.b.c"}),
        ("from ..b import c", "p.q", {"p.b", "p.b.c"}),
        ("from ... import c", "p.q", set()),
        ("from . import c", "", set()),
        ("def f():\n    class C:\n        import a", "", {"a"}),
        ("try:\n    import a\nexcept ImportError:\n    import b", "", {"a", "b"}),
        ("if TYPE_CHECKING:\n    import a\nelse:\n    import b", "", {"b"}),
        ("importlib.import_module('a.b')", "", {"a.b"}),
        ("__import__('a')", "", {"a"}),
        ("from a import (\n    b,  # 1)\n    c,  # 2)\n)\nimport d", "", {"a", "a.b", "a.c", "d"}),
        ("import a\nx = 'y \\\nfrom b import c'", "", {"a"}),
        ("import a\nx = 'y \\\nfrom b import c  # '", "", {"a"}),
        ("def f(:", "", set()),
        ("x = '\0'", "", set()),
    ],
)
def test_names(source: str, package: str, names: set[str]) -> None:
    inside = imports_of(source.encode(), f"{package}.m" if package else "m", is_package=False)
    assert (set(inside.names), inside.dynamic) == (names, False)
    if package:
        assert imports_of(source.encode(), package, is_package=True) == inside


@pytest.mark.parametrize(
    "source",
    ["import_module(name)", "importlib.import_module('.sub', package)", "__import__()"],
)
def test_names_that_the_source_does_not_show(source: str) -> None:
    assert imports_of(source.encode(), "m", is_package=False).dynamic


@given(names=st.lists(DOTTED, min_size=1, max_size=5), depth=st.integers(0, 3))
def test_every_import_statement_is_found(names: list[str], depth: int) -> None:
    lines = [f"{'    ' * level}def f():" for level in range(depth)]
    lines += [f"{'    ' * depth}import {name}" for name in names]
    assert set(names) <= set(imports_of("\n".join(lines).encode(), "m", is_package=False).names)
