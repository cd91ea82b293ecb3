"""References import what they name, and say what is wrong where they cannot."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tailcut.errors import ManifestError
from tailcut.manifest import Manifest, load, resolve


@pytest.fixture
def manifest(tmp_path: Path) -> Iterator[Manifest]:
    """A manifest whose python_path holds modules; what importing them changes is put back."""
    (tmp_path / "tailcut.toml").write_text(
        'name = "m"\npython_path = [".", "code"]\n[model]\nsource = "ref_model:build"\n'
        'inputs = [{ name = "x" }]\noutputs = [{ name = "y" }]\n'
    )
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "ref_model.py").write_text(
        "NUMBER = 3\n\ndef build():\n    return 'built'\n\n"
        "class Hooks:\n    @staticmethod\n    def before():\n        return 1\n"
    )
    (tmp_path / "ref_broken.py").write_text("x = 1\nraise RuntimeError('no weights')\n")
    (tmp_path / "ref_syntax.py").write_text("def f(:\n")
    (tmp_path / "ref_needs.py").write_text("import package_that_is_not_there\n")
    paths, modules = list(sys.path), set(sys.modules)
    yield load(tmp_path, environment={})
    sys.path[:] = paths
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def refused(reference: str, manifest: Manifest) -> tuple[str, str]:
    with pytest.raises(ManifestError) as caught:
        resolve(reference, manifest)
    return caught.value.message, caught.value.hint


def test_imports_from_the_python_path(manifest: Manifest) -> None:
    assert resolve("ref_model:build", manifest)() == "built"
    assert resolve("ref_model:Hooks.before", manifest)() == 1
    assert resolve("os.path:join", manifest)("a", "b") == str(Path("a", "b"))


def test_folders_are_put_on_the_path_once_and_only_when_asked(manifest: Manifest) -> None:
    folders = [str(manifest.directory), str(manifest.directory / "code")]
    assert not set(folders) & set(sys.path)
    resolve("ref_model:build", manifest)
    resolve("ref_model:build", manifest)
    assert [sys.path.count(folder) for folder in folders] == [1, 1]
    assert sys.path[:2] == folders


@pytest.mark.parametrize("reference", ["ref_model", "ref_model:", ":build"])
def test_a_reference_needs_a_module_and_a_name(manifest: Manifest, reference: str) -> None:
    message, hint = refused(reference, manifest)
    assert message == f'"{reference}" is not a reference: it needs a module, a colon and a name'
    assert hint == "write 'package.module:callable'"


def test_missing_module_names_the_folders_that_were_searched(manifest: Manifest) -> None:
    message, hint = refused("ref_nowhere.sub:f", manifest)
    assert message == "ref_nowhere.sub:f: there is no module ref_nowhere"
    assert str(manifest.directory / "code") in hint


def test_missing_attribute_suggests_a_near_one(manifest: Manifest) -> None:
    assert refused("ref_model:biuld", manifest) == ("ref_model:biuld: ref_model has no biuld", "did you mean build?")
    assert refused("ref_model:Hooks.befor", manifest)[0] == "ref_model:Hooks.befor: ref_model.Hooks has no befor"
    assert "define qqq there" in refused("ref_model:qqq", manifest)[1]


def test_what_cannot_be_called_is_refused(manifest: Manifest) -> None:
    assert refused("ref_model:NUMBER", manifest) == (
        "ref_model:NUMBER: a int, which cannot be called",
        "name a function or a class",
    )


def test_an_exception_in_the_module_is_shown_with_its_line(manifest: Manifest) -> None:
    message, _ = refused("ref_broken:f", manifest)
    where = manifest.directory / "ref_broken.py"
    assert message == f"ref_broken:f: importing ref_broken raised RuntimeError: no weights ({where}:2)"
    assert "SyntaxError" in refused("ref_syntax:f", manifest)[0]


def test_a_package_that_the_module_needs_is_named(manifest: Manifest) -> None:
    message, hint = refused("ref_needs:f", manifest)
    assert "No module named 'package_that_is_not_there'" in message
    assert hint == "install the package of package_that_is_not_there"


def test_hooks_that_need_what_a_server_lacks_are_to_be_moved(manifest: Manifest) -> None:
    """Training code beside the hooks is the usual reason."""
    model = msgspec.structs.replace(manifest.deployment.model, preprocess="ref_needs:f")
    hooked = replace(manifest, deployment=msgspec.structs.replace(manifest.deployment, model=model))
    _, hint = refused("ref_needs:f", hooked)
    assert hint == (
        "install the package of package_that_is_not_there, or move the hooks to a module that does not import "
        "it; serving imports only that module"
    )
