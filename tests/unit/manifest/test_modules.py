"""Deployments of one process never have different modules of one name: the second one is refused when it loads."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest

from tailcut.errors import ManifestError
from tailcut.manifest import Manifest, load, modules, resolve

MANIFEST = """
name = {name!r}
python_path = {python_path}
[model]
source = "model.onnx"
inputs = [{{ name = "x" }}]
outputs = [{{ name = "y" }}]
"""
PLAIN = "def number():\n    return {number}\n"


def write(folder: Path, files: dict[str, str], python_path: str = '["."]') -> Manifest:
    """A deployment named like its folder, with these files."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "tailcut.toml").write_text(MANIFEST.format(name=folder.name, python_path=python_path))
    return load(folder, environment={})


def number(manifest: Manifest, reference: str = "nm_model:number") -> Any:
    """What the deployment's function answers."""
    return resolve(reference, manifest)()


def refused(manifest: Manifest, reference: str = "nm_model:number") -> ManifestError:
    with pytest.raises(ManifestError) as caught:
        resolve(reference, manifest)
    assert "rename one of the two files" in caught.value.hint
    assert "two processes" in caught.value.hint
    return caught.value


def test_two_modules_of_one_name_are_refused_with_both_files(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {"nm_model.py": PLAIN.format(number=1)})
    b = write(tmp_path / "b", {"nm_model.py": PLAIN.format(number=100)})
    assert number(a) == 1
    assert refused(b).message == (
        f"nm_model:number: deployment 'b' imports nm_model from {tmp_path}/b/nm_model.py, and this process has "
        f"imported {tmp_path}/a/nm_model.py under that name"
    )
    assert str(tmp_path / "b") not in sys.path
    assert number(a) == 1


def test_after_the_rename_both_are_served(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {"nm_model.py": PLAIN.format(number=1)})
    b = write(tmp_path / "b", {"nm_b/__init__.py": "", "nm_b/nm_model.py": PLAIN.format(number=100)})
    assert (number(a), number(b, "nm_b.nm_model:number")) == (1, 100)


@pytest.mark.parametrize("importing", ["import nm_help", "from nm_help import number as found"])
@pytest.mark.parametrize("indent", ["", "    "], ids=["at the top", "in a function"])
def test_helpers_of_one_name_are_refused(tmp_path: Path, importing: str, indent: str) -> None:
    used = f"{importing}\n    return 0\n" if indent else "return 0\n"
    text = f"{'' if indent else importing}\ndef number():\n    {used}"
    a = write(tmp_path / "a", {"nm_a.py": text, "nm_help.py": PLAIN.format(number=1)})
    b = write(tmp_path / "b", {"nm_b.py": text, "nm_help.py": PLAIN.format(number=100)})
    number(a, "nm_a:number")
    message = refused(b, "nm_b:number").message
    assert "imports nm_help from" in message
    assert f"{tmp_path}/a/nm_help.py" in message
    assert f"{tmp_path}/b/nm_help.py" in message


def test_a_package_and_a_module_of_one_name_are_refused(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {"nm_model.py": PLAIN.format(number=1)})
    b = write(tmp_path / "b", {"nm_model/__init__.py": PLAIN.format(number=100)})
    number(a)
    assert f"{tmp_path}/b/nm_model/__init__.py" in refused(b).message


def test_a_module_and_a_folder_of_one_name_are_refused(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {"nm_model.py": PLAIN.format(number=1)})
    b = write(tmp_path / "b", {"nm_model/inner.py": PLAIN.format(number=100)})
    number(a)
    assert f"imports nm_model.inner from {tmp_path}/b/nm_model/inner.py, and this process would import no file" in (
        refused(b, "nm_model.inner:number").message
    )


def test_a_module_that_the_application_has_imported_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "nm_model.py").write_text(PLAIN.format(number=5))
    monkeypatch.syspath_prepend(str(tmp_path / "app"))
    assert importlib.import_module("nm_model").number() == 5
    a = write(tmp_path / "a", {"nm_model.py": PLAIN.format(number=1)})
    assert f"this process has imported {tmp_path}/app/nm_model.py under that name" in refused(a).message


@pytest.mark.parametrize("taken", ["statistics", "pytest"])
def test_a_module_named_like_one_of_python_or_of_a_package_is_refused(tmp_path: Path, taken: str) -> None:
    importlib.import_module(taken)
    a = write(tmp_path / "a", {f"{taken}.py": PLAIN.format(number=1)})
    assert f"imports {taken} from {tmp_path}/a/{taken}.py" in refused(a, f"{taken}:number").message


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_module_of_one_and_an_installed_package_of_the_other_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    (tmp_path / "lib" / "nm_installed").mkdir(parents=True)
    (tmp_path / "lib" / "nm_installed" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    text = "def number():\n    import nm_installed\n    return 1\n"
    written = {
        "a": write(tmp_path / "a", {"nm_a.py": text, "nm_installed.py": "own = 1\n"}),
        "b": write(tmp_path / "b", {"nm_b.py": text}),
    }
    second = "ab".replace(first, "")
    number(written[first], f"nm_{first}:number")
    assert (
        (
            f"deployment 'b' imports nm_installed from {tmp_path}/lib/nm_installed/__init__.py, and this process has "
            f"imported {tmp_path}/a/nm_installed.py" in refused(written[second], f"nm_{second}:number").message
        )
        if first == "a"
        else (
            f"deployment 'a' imports nm_installed from {tmp_path}/a/nm_installed.py, and this process has imported "
            f"{tmp_path}/lib/nm_installed/__init__.py" in refused(written[second], f"nm_{second}:number").message
        )
    )


def test_one_file_by_two_paths_is_no_clash(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {"nm_model.py": PLAIN.format(number=1)})
    (tmp_path / "link").symlink_to(tmp_path / "a")
    b = write(tmp_path / "b", {}, '["../link"]')
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "nm_model.py").symlink_to(tmp_path / "a" / "nm_model.py")
    c = write(tmp_path / "c", {})
    d = write(tmp_path / "d", {}, f'["{tmp_path}/d/../a", "."]')
    assert [number(one) for one in (a, b, c, d)] == [1, 1, 1, 1]


def test_a_deployment_that_is_loaded_twice_is_no_clash(tmp_path: Path) -> None:
    files = {"nm_model.py": "import nm_help\n" + PLAIN.format(number="nm_help.one"), "nm_help.py": "one = 1\n"}
    assert number(write(tmp_path / "a", files)) == 1
    assert number(load(tmp_path / "a", environment={})) == 1


def test_a_package_in_two_folders_is_shared_and_its_modules_are_not(tmp_path: Path) -> None:
    """Folders without __init__ make one package (PEP 420): only modules of one name in it clash."""
    a = write(
        tmp_path / "a",
        {"x/nm_space/one.py": PLAIN.format(number=1), "y/nm_space/two.py": PLAIN.format(number=2)},
        '["x", "y"]',
    )
    b = write(tmp_path / "b", {"nm_space/three.py": PLAIN.format(number=3), "nm_space/four.py": ""})
    c = write(tmp_path / "c", {"nm_space/two.py": PLAIN.format(number=4)})
    assert [number(a, f"nm_space.{module}:number") for module in ("one", "two")] == [1, 2]
    assert number(b, "nm_space.three:number") == 3
    assert "imports nm_space.two from" in refused(c, "nm_space.two:number").message


def test_folders_in_another_order_are_another_module(tmp_path: Path) -> None:
    a = write(
        tmp_path / "a", {"x/nm_model.py": PLAIN.format(number=1), "y/nm_model.py": PLAIN.format(number=2)}, '["x", "y"]'
    )
    b = write(tmp_path / "b", {}, '["../a/y", "../a/x"]')
    assert number(a) == 1
    assert f"{tmp_path}/a/y/nm_model.py" in refused(b).message


UNIMPORTED = [
    "nm_help.py",
    "__init__.py",
    "._nm_a.py",
    "setup.py",
    "conftest.py",
    "nm_tests/__init__.py",
    "nm_space/part.py",
]


@pytest.mark.parametrize("place", UNIMPORTED)
def test_files_that_nothing_imports_refuse_nothing(tmp_path: Path, place: str) -> None:
    a = write(tmp_path / "a", {"nm_a.py": PLAIN.format(number=1), place: "one = 1\n"})
    b = write(tmp_path / "b", {"nm_b.py": PLAIN.format(number=2), place: "one = 100\n"})
    assert (number(a, "nm_a:number"), number(b, "nm_b:number")) == (1, 2)


def test_modules_of_one_content_are_one(tmp_path: Path) -> None:
    files = {"nm_model.py": "import nm_pack.part\n" + PLAIN.format(number=1), "nm_pack/__init__.py": ""}
    a = write(tmp_path / "a", {**files, "nm_pack/part.py": "one = 1\n"})
    b = write(tmp_path / "b", {**files, "nm_pack/part.py": "one = 1\n"})
    c = write(tmp_path / "c", {**files, "nm_pack/part.py": "one = 2\n"})
    assert (number(a), number(b)) == (1, 1)
    assert "imports nm_pack.part from" in refused(c).message


def test_a_module_of_the_application_is_no_clash_with_a_file_that_nothing_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`uvicorn main:app`, and a main.py beside the model."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "nm_main.py").write_text("app = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "app"))
    importlib.import_module("nm_main")
    a = write(tmp_path / "a", {"nm_model.py": PLAIN.format(number=1), "nm_main.py": "app = 2\n"})
    assert number(a) == 1


IMPORTS = {
    "relative": ("pack/nm_model.py", "from . import nm_help", "pack.nm_help"),
    "of a package": ("pack/nm_model.py", "from pack import nm_help", "pack.nm_help"),
    "by a helper": ("nm_model.py", "import nm_between", "nm_help"),
    "by a string": ("nm_model.py", "from importlib import import_module as i\nimport importlib", "nm_help"),
}


@pytest.mark.parametrize("kind", IMPORTS)
def test_every_import_in_the_text_counts(tmp_path: Path, kind: str) -> None:
    file, statement, clash = IMPORTS[kind]
    lazy = "def number():\n    return 1\ndef later():\n    {}\n".format(statement.replace("\n", "\n    "))
    lazy += "    importlib.import_module('nm_help')\n" * (kind == "by a string")
    between = "def later():\n    import nm_help\n"
    made = []
    for name in "ab":
        files = {
            file: lazy,
            clash.replace(".", "/") + ".py": f"# {name}\n",
            f"nm_{name}.py": "",
            "nm_between.py": between,
        }
        made.append(write(tmp_path / name, files))
    reference = file.removesuffix(".py").replace("/", ".") + ":number"
    assert number(made[0], reference) == 1
    assert f"imports {clash} from" in refused(made[1], reference).message


@pytest.mark.parametrize(
    "place", ["data/table.csv", ".venv/nm_help.py", "lib/site-packages/nm_help.py", "env/lib/nm_help.py"]
)
def test_files_that_are_no_modules_of_the_deployment_are_no_clash(tmp_path: Path, place: str) -> None:
    a = write(tmp_path / "a", {"nm_a.py": PLAIN.format(number=1), place: "one = 1\n", "env/pyvenv.cfg": ""})
    b = write(tmp_path / "b", {"nm_b.py": PLAIN.format(number=2), place: "one = 100\n", "env/pyvenv.cfg": ""})
    assert (number(a, "nm_a:number"), number(b, "nm_b:number")) == (1, 2)


def test_a_module_that_was_imported_from_a_folder_that_the_code_put_on_the_path_is_refused(tmp_path: Path) -> None:
    text = "import sys\nfrom pathlib import Path\nsys.path.insert(0, str(Path(__file__).parent / 'lib'))\n"
    text += "import nm_help\n" + PLAIN.format(number="nm_help.one")
    a = write(tmp_path / "a", {"nm_model.py": text, "nm_help.py": "one = 1\n", "lib/nm_help.py": "one = 2\n"})
    assert f"imported {tmp_path}/a/lib/nm_help.py under that name" in refused(a).message


def test_more_files_than_a_start_reads_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "MAX_FILES", 2)
    write(tmp_path / "a", {"nm_model.py": PLAIN.format(number=1), "b.py": "", "c.py": ""})
    with pytest.raises(ManifestError, match="a has more than 2 Python files") as caught:
        modules.python_files([str(tmp_path / "a")])
    assert "python_path" in caught.value.hint


def test_a_file_that_no_import_finds_is_named_by_its_path(tmp_path: Path) -> None:
    names = ["hooks.py", "hooks.old.py", "hooks.cpython-27-x86_64-linux-gnu.so", "lib/__init__.py", "lib/my-part.py"]
    for name in (*names, f"fast{EXTENSION_SUFFIXES[0]}"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    expected = {"hooks", "lib", "fast", "hooks.old.py", "hooks.cpython-27-x86_64-linux-gnu.so", "lib/my-part.py"}
    assert set(modules.python_files([str(tmp_path)])) == expected


def test_a_link_that_runs_in_a_circle_ends(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {"nm_model.py": PLAIN.format(number=1), "lib/part.py": ""})
    (tmp_path / "a" / "lib" / "again").symlink_to(tmp_path / "a")
    assert number(a) == 1
    assert set(modules.python_files([str(tmp_path / "a")])) == {"nm_model", "lib.part"}


def test_a_folder_that_stands_behind_another_on_the_path_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is on the import path already, and stays where it is: what is in front of it would be imported."""
    a = write(tmp_path / "a", {"nm_model.py": PLAIN.format(number=1)})
    write(tmp_path / "front", {"nm_model.py": PLAIN.format(number=100)})
    monkeypatch.syspath_prepend(str(tmp_path / "a"))
    monkeypatch.syspath_prepend(str(tmp_path / "front"))
    assert f"{tmp_path}/front/nm_model.py" in refused(a).message


def _slowly(find: Callable[..., Any]) -> Callable[..., Any]:
    """Let the other threads run between the check and what it allows."""

    def waits(*args: Any) -> Any:
        threading.Event().wait(0.02)
        return find(*args)

    return waits


def test_of_many_that_load_at_once_one_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "imports", _slowly(modules.imports))
    lazy = "def number():\n    import nm_help\n"
    manifests = [
        write(tmp_path / f"d{place}", {f"nm_{place}.py": lazy, "nm_help.py": f"# {place}"}) for place in range(8)
    ]
    begin = threading.Barrier(len(manifests))
    served: list[int] = []
    errors: list[str] = []

    def loading(place: int) -> None:
        begin.wait(20)
        try:
            resolve(f"nm_{place}:number", manifests[place])
            served.append(place)
        except ManifestError as error:
            errors.append(error.message)

    threads = [threading.Thread(target=loading, args=(place,)) for place in range(len(manifests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (len(served), len(errors)) == (1, len(manifests) - 1)
    assert all("imports nm_help from" in error for error in errors)


def test_import_caches_are_emptied_by_one_thread_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``importlib.invalidate_caches`` raises KeyError in one of two threads that call it at once."""
    (tmp_path / "caches_of_mine.py").write_text("x = 1\n")
    inside, most = [0], [0]

    def invalidate() -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.002)  # takes time: another thread may come in meanwhile
        inside[0] -= 1

    monkeypatch.setattr(importlib, "invalidate_caches", invalidate)
    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(modules.claim, "m", [str(tmp_path)], "caches_of_mine", "") for _ in range(12)]:
            done.result()
    assert most == [1]
