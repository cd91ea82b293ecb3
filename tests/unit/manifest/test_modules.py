"""Deployments of one process never share modules of one name: refused when they load, or each finds its own."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailcut.errors import ManifestError
from tailcut.manifest import Manifest, load, resolve
from tailcut.manifest.modules import UserModules, deployments

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
    assert "deployment 'b' imports nm_help (in nm_b) from " in message
    assert f"{tmp_path}/b/nm_help.py" in message
    assert f"{tmp_path}/a/nm_help.py" in message


def test_a_helper_of_a_helper_is_found_through_relative_imports(tmp_path: Path) -> None:
    package = {"__init__.py": "", "model.py": "from . import between\ndef number():\n    return between.deep()\n"}
    package |= {"between.py": "def deep():\n    import nm_deep\n    return nm_deep.number()\n"}
    a, b = (
        write(
            tmp_path / name,
            {**{f"nm_{name}/{file}": text for file, text in package.items()}, "nm_deep.py": PLAIN.format(number=1)},
        )
        for name in ("a", "b")
    )
    assert number(a, "nm_a.model:number") == 1
    assert "imports nm_deep (in nm_b.between) from" in refused(b, "nm_b.model:number").message


def test_a_package_and_a_module_of_one_name_are_refused(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {"nm_model.py": PLAIN.format(number=1)})
    b = write(tmp_path / "b", {"nm_model/__init__.py": PLAIN.format(number=100)})
    number(a)
    assert f"{tmp_path}/b/nm_model/__init__.py" in refused(b).message


def test_a_module_and_a_folder_of_one_name_are_refused(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {"nm_model.py": PLAIN.format(number=1)})
    b = write(tmp_path / "b", {"nm_model/inner.py": PLAIN.format(number=100)})
    number(a)
    assert "a folder without __init__.py" in refused(b, "nm_model.inner:number").message


def test_a_module_that_the_application_has_imported_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "nm_model.py").write_text(PLAIN.format(number=5))
    monkeypatch.syspath_prepend(str(tmp_path / "app"))
    assert importlib.import_module("nm_model").number() == 5
    a = write(tmp_path / "a", {"nm_model.py": PLAIN.format(number=1)})
    assert f"this process has imported {tmp_path}/app/nm_model.py under that name" in refused(a).message


@pytest.mark.parametrize("taken", ["statistics", "pytest", "time"])
def test_a_module_named_like_one_of_python_or_of_a_package_is_refused(tmp_path: Path, taken: str) -> None:
    importlib.import_module(taken)
    a = write(tmp_path / "a", {f"{taken}.py": PLAIN.format(number=1)})
    assert f"imports {taken} from {tmp_path}/a/{taken}.py" in refused(a, f"{taken}:number").message
    b = write(tmp_path / "b", {"nm_b.py": PLAIN.format(number=2), f"{taken}.py": "raise SystemExit\n"})
    assert number(b, "nm_b:number") == 2, "a file that nothing imports is no clash"


def test_a_helper_named_like_a_module_of_python_is_refused(tmp_path: Path) -> None:
    importlib.import_module("statistics")
    a = write(
        tmp_path / "a",
        {"nm_model.py": "import statistics\n" + PLAIN.format(number="statistics.own"), "statistics.py": "own = 3\n"},
    )
    assert "imports statistics (in nm_model) from" in refused(a).message


def test_a_deployment_that_means_an_installed_package_does_not_get_the_others_module(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {"nm_a.py": "import nm_installed\n" + PLAIN.format(number=1), "nm_installed.py": ""})
    b = write(tmp_path / "b", {"nm_b.py": PLAIN.format(number=2) + "    import nm_installed\n"})
    number(a, "nm_a:number")
    assert f"and deployment 'a' in the same process imports {tmp_path}/a/nm_installed.py" in (
        refused(b, "nm_b:number").message
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
    b = write(tmp_path / "b", {"nm_space/three.py": PLAIN.format(number=3), "nm_space/unused.py": ""})
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


def test_files_that_nothing_imports_are_no_clash_and_never_imported(tmp_path: Path) -> None:
    """a imports its helper at request time, when b's folder stands in front of a's."""
    lazy = "def number():\n    import nm_help\n    return nm_help.one\n"
    a = write(tmp_path / "a", {"nm_a.py": lazy, "nm_help.py": "one = 1\n"})
    b = write(tmp_path / "b", {"nm_b.py": PLAIN.format(number=2), "nm_help.py": "one = 100\n"})
    first, second = resolve("nm_a:number", a), resolve("nm_b:number", b)
    assert sys.path.index(str(tmp_path / "b")) < sys.path.index(str(tmp_path / "a"))
    assert (second(), first()) == (2, 1)


def test_an_optional_module_of_another_deployment_is_not_imported(tmp_path: Path) -> None:
    lazy = "def number():\n    try:\n        import nm_fast\n    except ImportError:\n        return 2\n    return 0\n"
    a = write(tmp_path / "a", {"nm_a.py": PLAIN.format(number=1), "nm_fast.py": ""})
    b = write(tmp_path / "b", {"nm_b.py": lazy})
    resolve("nm_a:number", a)
    assert number(b, "nm_b:number") == 2


def test_an_import_for_type_checkers_is_no_clash(tmp_path: Path) -> None:
    checked = "import typing\nif typing.TYPE_CHECKING:\n    import nm_types\n"
    a = write(tmp_path / "a", {"nm_a.py": checked + PLAIN.format(number=1), "nm_types.py": ""})
    b = write(tmp_path / "b", {"nm_b.py": checked + PLAIN.format(number=2), "nm_types.py": ""})
    assert (number(a, "nm_a:number"), number(b, "nm_b:number")) == (1, 2)


COMPUTED = "import importlib\ndef number():\n    return importlib.import_module('_'.join(['nm', 'plug'])).one\n"


def test_a_computed_name_that_two_deployments_have_fails_when_it_is_imported(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {"nm_a.py": COMPUTED, "nm_plug.py": "one = 1\n"})
    b = write(tmp_path / "b", {"nm_b.py": COMPUTED, "nm_plug.py": "one = 100\n"})
    first, second = resolve("nm_a:number", a), resolve("nm_b:number", b)
    for call in (first, second):
        with pytest.raises(ImportError, match=r"nm_plug is .*nm_plug\.py for deployment '.' and .*rename one") as found:
            call()
        assert f"{tmp_path}/a/nm_plug.py" in str(found.value)
        assert f"{tmp_path}/b/nm_plug.py" in str(found.value)


def test_a_computed_name_that_one_deployment_has_imported_is_refused(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {"nm_a.py": COMPUTED, "nm_plug.py": "one = 1\n"})
    b = write(tmp_path / "b", {"nm_b.py": COMPUTED, "nm_plug.py": "one = 100\n"})
    assert number(a, "nm_a:number") == 1
    assert f"{tmp_path}/b/nm_plug.py" in refused(b, "nm_b:number").message


def test_a_pickle_may_import_what_the_source_does_not_show(tmp_path: Path) -> None:
    """A Pipeline with a transformer of one's own, from a file: its class is imported by its name in the file."""
    unpickled = "import pickle\nfrom pathlib import Path\ndef number():\n    here = Path(__file__).with_name('p.pkl')\n"
    unpickled += "    return pickle.loads(here.read_bytes()).one\n"
    both = [
        write(tmp_path / name, {f"nm_{name}.py": unpickled, "nm_step.py": f"class Step:\n    one = {one}\n"})
        for name, one in (("a", 1), ("b", 100))
    ]
    for manifest in both:
        (manifest.directory / "p.pkl").write_bytes(b"cnm_step\nStep\n.")
    assert number(both[0], "nm_a:number") == 1
    assert f"{tmp_path}/b/nm_step.py" in refused(both[1], "nm_b:number").message


def test_a_folder_that_stands_behind_another_on_the_path_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is on the import path already, and stays where it is: what is in front of it would be imported."""
    a = write(tmp_path / "a", {"nm_model.py": PLAIN.format(number=1)})
    write(tmp_path / "front", {"nm_model.py": PLAIN.format(number=100)})
    monkeypatch.syspath_prepend(str(tmp_path / "a"))
    monkeypatch.syspath_prepend(str(tmp_path / "front"))
    assert f"{tmp_path}/front/nm_model.py" in refused(a).message


def test_inside_its_own_package_a_computed_name_is_no_clash(tmp_path: Path) -> None:
    computed = "import importlib\ndef number():\n    return importlib.import_module('nm_pack.' + 'plug').one\n"
    a = write(tmp_path / "a", {"nm_pack/__init__.py": computed, "nm_pack/plug.py": "one = 1\n"})
    b = write(tmp_path / "b", {"nm_b.py": PLAIN.format(number=2), "nm_pack/__init__.py": "", "nm_pack/plug.py": ""})
    first, second = resolve("nm_pack:number", a), resolve("nm_b:number", b)
    assert (first(), second()) == (1, 2)


def test_built_in_modules_come_before_files_for_every_deployment(tmp_path: Path) -> None:
    files = {"time.py": "", "nm_a.py": "import time\n" + PLAIN.format(number="time.time() > 0")}
    files["nm_b.py"] = files["nm_a.py"]
    a, b = write(tmp_path / "a", files), write(tmp_path / "b", files)
    assert (number(a, "nm_a:number"), number(b, "nm_b:number")) == (True, True)


def test_a_module_from_a_folder_that_the_code_put_on_the_path_is_not_refused(tmp_path: Path) -> None:
    text = "import sys\nfrom pathlib import Path\nsys.path.insert(0, str(Path(__file__).parent / 'lib'))\n"
    text += "import nm_help\n" + PLAIN.format(number="nm_help.one")
    a = write(tmp_path / "a", {"nm_model.py": text, "nm_help.py": "one = 1\n", "lib/nm_help.py": "one = 2\n"})
    assert number(a) == 2
    assert number(a) == 2


def _slowly(put: Callable[[UserModules], None]) -> Callable[[UserModules], None]:
    """Let the other threads run between the check and what it allows."""

    def waits(one: UserModules) -> None:
        threading.Event().wait(0.05)
        put(one)

    return waits


def test_of_many_that_load_at_once_one_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployments, "put_on_path", _slowly(deployments.put_on_path))
    lazy = "def number():\n    import nm_help\n"
    manifests = [write(tmp_path / f"d{place}", {f"nm_{place}.py": lazy, "nm_help.py": ""}) for place in range(8)]
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
    assert all("imports nm_help (in nm_" in error for error in errors)
