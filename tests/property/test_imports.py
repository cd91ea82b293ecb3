"""Import analysis: the same as a whole parse, and nothing that Python really imports is missing."""

from __future__ import annotations

import ast
import sys
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.code_kit import imported

from tailcut.code.graph import Graph
from tailcut.code.locating import Locator
from tailcut.common import source_imports
from tailcut.common.source_imports import imports_of

NAMES = ("alpha", "beta", "gamma", "pack", "pack.one", "pack.two", "pack.deep", "pack.deep.end", "pack.deep.odd")
FILES = {
    name: f"{name.replace('.', '/')}/__init__.py" if name in ("pack", "pack.deep") else f"{name.replace('.', '/')}.py"
    for name in NAMES
}


COMMENTS = st.text("()[]#\"'\\\\;, 1aé", max_size=6)


@st.composite
def statements(draw: st.DrawFn, module: str) -> str:
    """One import statement that may fail without harm, in one of the forms that people write."""
    name = draw(st.sampled_from(NAMES))
    parent, _, last = name.rpartition(".")
    forms = [
        f"import {name}",
        f"import {name} as x",
        f"import os, {name}",
        f"from {name} import missing_of_{last} as y",
    ]
    if parent:
        forms += [
            f"from {parent} import {last}",
            f"from {parent} import (\n    {last},  # import (\n    {last} as z,\n)",
            f"from {parent} import (\n    {last},  # {draw(COMMENTS)}\n    {last} as z,  # {draw(COMMENTS)}\n)",
        ]
    package = module if module in ("pack", "pack.deep") else module.rpartition(".")[0]
    if package and name.startswith(f"{package}.") and "." not in name[len(package) + 1 :]:
        forms += [f"from . import {last}", f"from .{last} import *"]
    if module.startswith("pack.deep") and parent == "pack":
        forms.append(f"from .. import {last}")
    if draw(st.booleans()):
        forms = [
            f"__import__('importlib').import_module({name!r})",
            f"import importlib; importlib.import_module('{name}')",
        ]
    statement = draw(st.sampled_from(forms))
    return "try:\n    " + statement.replace("\n", "\n    ") + "\nexcept ImportError:\n    pass\n"


NOISE = st.sampled_from(
    [
        "# import alpha\n",
        '"""\nimport beta\n"""\n',
        "text = 'import gamma'\n",
        "important = imports = 1\n",
        "def f():\n    '''Say.\n\n    from pack import two\n    '''\n    import pack.two\n",
        "if 1: import beta\n",
        "x = 1; import gamma\n",
        "from pack \\\n    import one\n",
        "class C:\n\timport alpha\n",
        "\r\n",
        "import alpha ; import beta\n",
        "from pack.deep import(end)\n",
        "import\talpha\n",
        "\x0cimport beta\n",
        "lines = '''\n'''\n",
        "from alpha import (\n    one,  # 1)\n    two,\n)\n",
        "text = 'a \\\nfrom beta import gamma'\n",
        "text = 'a \\\nfrom beta import gamma  # '\n",
        "text = 'a \\\r\n  import gamma  # '\n",
    ]
)


@given(st.data())
def test_reading_import_statements_alone_is_the_same_as_a_whole_parse(data: st.DataObject) -> None:
    parts = data.draw(st.lists(NOISE | statements("pack.deep.end"), max_size=6))
    source = "".join(parts).encode()
    quick = imports_of(source, "pack.deep.end", is_package=False)
    tree = ast.parse(source)
    named, dynamic = source_imports._named(tree, "pack.deep") if b"import_module" in source else (set(), False)
    assert set(quick.names) == set(source_imports._statements(tree.body, "pack.deep")) | named
    assert quick.dynamic == dynamic


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_text_is_read_without_an_error(source: bytes) -> None:
    imports_of(source, "pack.one", is_package=False)


@settings(max_examples=60)
@given(st.data())
def test_what_python_really_imports_is_found(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder, imported():
        for name, file in FILES.items():
            path = Path(folder) / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(data.draw(st.lists(statements(name), max_size=2))))
        start = data.draw(st.sampled_from(NAMES))
        graph = Graph(Locator([folder]))
        graph.add([start])
        sys.path.insert(0, folder)
        sys.path_importer_cache.pop(folder, None)
        __import__(start)
        loaded = {name for name in NAMES if name in sys.modules}
        assert loaded <= graph.reached([start])
