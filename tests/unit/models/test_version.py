"""The deployment version, and the user's code in it: what changes it, and what does not."""

from __future__ import annotations

import copy
import sys
import time
import zipfile
from dataclasses import replace
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.code_kit import GROUPS, HOOKS, TRAIN, Project, imported

from tailcut.code import loaded
from tailcut.code.files import code_on_disk
from tailcut.errors import ManifestError
from tailcut.manifest import Deployment, Duration, FeatureGroup, Features, Model, ServerSettings, Slo, TensorSpec
from tailcut.models.deployment_version import deployment_version, installed, version_of
from tailcut.pipeline.hook_loading import import_code
from tailcut.registry import Variant

pytestmark = pytest.mark.slow

BASE = Deployment(
    name="m",
    model=Model(source="m:m", inputs=(TensorSpec(name="x"),), outputs=(TensorSpec(name="y"),)),
    features=Features(
        entity=("id",),
        database="sqlite:///a.db",
        groups=(FeatureGroup(name="g", key=("id",), columns=("a",), ttl="5s", sql="SELECT id, a FROM t"),),
    ),
)
SHA = "0" * 64
TRUSTED = 'trusted = ["steps:Ratio"]\n[[model.inputs]]'


def replaced(path: str, value: Any) -> Deployment:
    """BASE with the value at a dotted path replaced."""
    head, _, rest = path.partition(".")
    inner = getattr(BASE, head)
    return msgspec.structs.replace(BASE, **{head: msgspec.structs.replace(inner, **{rest: value}) if rest else value})


def test_the_same_deployment_has_the_same_version() -> None:
    assert deployment_version(BASE, SHA, b"") == deployment_version(copy.deepcopy(BASE), SHA, b"")
    assert len(deployment_version(BASE, SHA, b"")) == 16


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", "other"),
        ("model.preprocess", "m:pre"),
        ("model.postprocess", "m:post"),
        ("model.outputs", (TensorSpec(name="z"),)),
        ("features.entity", ("key",)),
        ("features.database", "sqlite:///b.db"),
        ("features.groups", (msgspec.structs.replace(BASE.features.groups[0], sql="SELECT id, b AS a FROM t"),)),
        ("features.groups", (msgspec.structs.replace(BASE.features.groups[0], defaults={"a": 1}),)),
    ],
)
def test_what_an_answer_depends_on_changes_it(path: str, value: Any) -> None:
    assert deployment_version(replaced(path, value), SHA, b"") != deployment_version(BASE, SHA, b"")


@pytest.mark.parametrize(
    ("path", "value"),
    [("server", ServerSettings(port=1)), ("slo", Slo(p95_s=Duration(1.0))), ("features.max_bytes", 1)],
)
def test_what_no_answer_depends_on_does_not(path: str, value: Any) -> None:
    assert deployment_version(replaced(path, value), SHA, b"") == deployment_version(BASE, SHA, b"")


def test_another_artifact_and_other_code_change_it() -> None:
    versions = {deployment_version(BASE, sha, code) for sha in (SHA, "1" * 64) for code in (b"", b"code")}
    assert len(versions) == 4


# -- Code ------------------------------------------------------------------------------------------------------------

HELPED = "from helper import scaled\ndef preprocess(rows): return scaled(rows)\n"
Files = dict[str, str | bytes]
EDITS: dict[str, tuple[Files, Files]] = {
    "a blank in the hook's file": ({}, {"hooks.py": HOOKS + "\n"}),
    "a helper": ({"hooks.py": HELPED, "helper.py": "scaled = 1"}, {"helper.py": "scaled = 2"}),
    "a constant of a helper's helper": (
        {"hooks.py": HELPED, "helper.py": "from limits import TOP\nscaled = TOP", "limits.py": "TOP = 1"},
        {"limits.py": "TOP = 2"},
    ),
    "a relative import of a package": (
        {
            "hooks.py": "import lib.steps\ndef preprocess(rows): ...",
            "lib/__init__.py": "",
            "lib/steps.py": "from .tables import T",
            "lib/tables.py": "T = 1",
        },
        {"lib/tables.py": "T = 2"},
    ),
    "the __init__ of a package above": (
        {
            "hooks.py": "from lib.sub import x\ndef preprocess(rows): ...",
            "lib/__init__.py": "",
            "lib/sub/__init__.py": "x = 1",
        },
        {"lib/__init__.py": "import os"},
    ),
    "a submodule that `from package import name` names": (
        {"hooks.py": "from lib import part\ndef preprocess(rows): ...", "lib/__init__.py": "", "lib/part.py": "x = 1"},
        {"lib/part.py": "x = 2"},
    ),
    "a submodule of a star import": (
        {
            "hooks.py": "from lib import *\ndef preprocess(rows): ...",
            "lib/__init__.py": "__all__ = ['part']",
            "lib/part.py": "",
        },
        {"lib/part.py": "x = 2"},
    ),
    "a module of a namespace package": (
        {"hooks.py": "import space.deep.part\ndef preprocess(rows): ...", "space/deep/part.py": "x = 1"},
        {"space/deep/part.py": "x = 2"},
    ),
    "an import inside a function, never run at start": (
        {"hooks.py": "def preprocess(rows):\n    from later import x\n    return x", "later.py": "x = 1"},
        {"later.py": "x = 2"},
    ),
    "an import under a condition": (
        {
            "hooks.py": "try:\n    import absent\nexcept ImportError:\n    import instead\n" + HOOKS,
            "instead.py": "x = 1",
        },
        {"instead.py": "x = 2"},
    ),
    "a cyclic import": (
        {"hooks.py": "import one\n" + HOOKS, "one.py": "import two", "two.py": "import one"},
        {"two.py": "import one  # edited"},
    ),
    "a plugin that import_module finds by a name in a file": (
        {
            "hooks.py": "import importlib, pathlib\n"
            "for name in pathlib.Path(__file__).with_name('names.txt').read_text().split():\n"
            "    importlib.import_module(name)\n" + HOOKS,
            "names.txt": "plugins.scale\n",
            "plugins/scale.py": "x = 1",
        },
        {"plugins/scale.py": "x = 2"},
    ),
    "a plugin that is named as text in a function": (
        {"hooks.py": "import importlib\ndef preprocess(rows): return importlib.import_module('plug')", "plug.py": ""},
        {"plug.py": "x = 2"},
    ),
    "a module that shadows one of Python's that nothing has loaded": (
        {"hooks.py": "import this\n" + HOOKS, "this.py": "x = 1"},
        {"this.py": "x = 2"},
    ),
    "a feature function": ({}, {"groups.py": GROUPS + "\n"}),
    "a constant of a feature function's helper": (
        {"groups.py": "from years import YEARS\n" + GROUPS, "years.py": "YEARS = 0"},
        {"years.py": "YEARS = 5"},
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_changes_the_version(tmp_path: Path, edit: str) -> None:
    files, edited = EDITS[edit]
    project = Project(tmp_path / "app", files)
    before = project.version()
    assert project.version() == before
    assert Project(tmp_path / "elsewhere" / "app", files).version() == before, "no folder is in it"
    for name, content in edited.items():
        project.write(name, content)
    assert project.version() != before


@pytest.mark.parametrize("name", ["train.py", "notes.py", "tests/test_hooks.py", "other.so", "lib/no-name/a.b.py"])
def test_every_python_file_of_the_folder_counts(tmp_path: Path, name: str) -> None:
    """What hooks import when a request comes need not be seen in their text."""
    project = Project(tmp_path, {})
    before = project.version()
    project.write(name, "def (:")
    assert project.version() != before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (".venv/other.py", "x = 2"),
        ("venv/lib/python3.11/site-packages/other.py", "x = 2"),
        ("hooks.pyc", "x"),
        ("README.md", "text"),
    ],
)
def test_other_files_of_the_folder_do_not(tmp_path: Path, name: str, content: str) -> None:
    project = Project(tmp_path, {})
    before = project.version()
    project.write(name, content)
    assert project.version() == before


def test_a_stored_model_without_functions_runs_no_code(tmp_path: Path) -> None:
    manifest = (Project(tmp_path, {}).folder / "tailcut.toml").read_text()
    hookless = manifest[: manifest.index("[features]")].replace('preprocess = "hooks:preprocess"\n', "")
    project = Project(tmp_path, {"tailcut.toml": hookless})
    plain = Variant("m", "onnx", "onnxruntime", tmp_path / "x", SHA, (), (), "v")
    own = replace(plain, runtime="sklearn")

    def versions() -> tuple[bytes, bytes]:
        deployment = project.manifest.deployment
        return version_of(deployment, plain, project.version()), version_of(deployment, own, project.version(live=True))

    before = versions()
    project.write("train.py", TRAIN + "# edited")
    after = versions()
    assert (before[0] == after[0], before[1] == after[1]) == (True, False)


@pytest.mark.parametrize(
    ("runtime", "parts", "package"),
    [
        ("onnxruntime", (), "onnxruntime"),
        ("onnxruntime", (), "onnxruntime-gpu"),
        ("xgboost", (), "xgboost-cpu"),
        ("sklearn", (), "scikit-learn"),
        ("skops", (), "scikit-learn"),
        ("skops", (), "skops"),
        ("torch", (), "transformers"),
        ("torch-compile", (), "torch"),
        ("pair", ("onnxruntime", "openvino"), "openvino"),
        ("pair", ("onnxruntime", "openvino"), "onnxruntime"),
        ("of-later", (), "of-later"),
    ],
)
def test_another_version_of_what_runs_a_variant_changes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str, parts: tuple[str, ...], package: str
) -> None:
    variant = Variant("m", "v", runtime, tmp_path / "x", SHA, (), (), "v", part_runtimes=parts)

    def versions(**others: str) -> bytes:
        there = {"onnxruntime": "1", "scikit-learn": "1", "torch": "1", "pandas": "1", **others}

        def version(name: str) -> str:
            if name not in there:
                raise metadata.PackageNotFoundError(name)
            return there[name]

        monkeypatch.setattr(metadata, "version", version)
        installed.cache_clear()
        return version_of(BASE, variant, b"")

    try:
        assert len({versions(), versions(**{package: "2"}), versions(**{package: "3"})}) == 3
        assert versions() == versions(pandas="2"), "what does not run it"
    finally:
        installed.cache_clear()


def test_types_of_stored_estimators_count(tmp_path: Path) -> None:
    project = Project(tmp_path, {"steps.py": "import ratios\nclass Ratio: pass\n", "ratios.py": "BY = 1\n"})
    text = (tmp_path / "tailcut.toml").read_text()
    project.write("tailcut.toml", text[: text.index("[features]")].replace("[[model.inputs]]", TRUSTED, 1))
    before = project.version()
    project.write("ratios.py", "BY = 2\n")
    assert project.version() != before


def test_groups_of_functions_have_the_code_in_their_keys_and_others_do_not(tmp_path: Path) -> None:
    project = Project(tmp_path, {"groups.py": "import years\n" + GROUPS, "years.py": "YEARS = 0"})
    before = project.group()
    project.write("years.py", "YEARS = 5")
    assert project.group() != before
    assert project.code().digest_of([]) == b""


# -- Data files ------------------------------------------------------------------------------------------------------


def test_data_files_count_by_their_content_and_name(tmp_path: Path) -> None:
    files: Files = {"words.txt": "a", "tables/one.csv": "1", "tables/deep/two.csv": "2"}
    project = Project(tmp_path, files, data=("words.txt", "tables/**/*.csv"))
    seen = [(project.version(), project.group())]
    assert set(project.code().code.data) == {"words.txt", "tables/one.csv", "tables/deep/two.csv"}
    for name, content in (("words.txt", "b"), ("tables/deep/two.csv", "3"), ("tables/new.csv", "")):
        project.write(name, content)
        seen.append((project.version(), project.group()))
    assert len({version for version, _ in seen}) == len({group for _, group in seen}) == 4


def test_a_folder_stands_for_the_files_in_it(tmp_path: Path) -> None:
    project = Project(tmp_path, {"tables/a[1].csv": "1"}, data=("tables", "tables/a[1].csv"))
    assert set(project.code().code.data) == {"tables/a[1].csv"}


@pytest.mark.parametrize(
    ("pattern", "said"), [("*.vocabulary", "matches no file in"), ("/etc/hosts", "is absolute, but paths differ")]
)
def test_a_pattern_that_is_wrong_is_refused_with_the_way_out(tmp_path: Path, pattern: str, said: str) -> None:
    with pytest.raises(ManifestError, match=rf"model\.files: '{pattern.replace('*', '.*')}' {said}") as refused:
        Project(tmp_path, {}, data=(pattern,)).code()
    assert refused.value.hint


def test_settings_and_vocabulary_of_a_models_folder_count_and_its_weights_do_not(tmp_path: Path) -> None:
    files: Files = {"bert/config.json": "{}", "bert/1_Pooling/config.json": "{}", "bert/model.safetensors": "1"}
    project = Project(tmp_path, files, source="./bert")
    found = code_on_disk(project.manifest).data
    assert set(found) == {"model.source/config.json", "model.source/1_Pooling/config.json"}


# -- Where code lies -------------------------------------------------------------------------------------------------


def test_an_editable_install_counts_and_an_installed_distribution_by_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editable, site = tmp_path / "src", tmp_path / "lib" / "site-packages"
    project = Project(tmp_path / "app", {"hooks.py": "import ours_x\nimport theirs_x.part\n" + HOOKS})
    project.write("../src/ours_x/__init__.py", "x = 1")
    project.write("../lib/site-packages/theirs_x/__init__.py", "")
    project.write("../lib/site-packages/theirs_x/part.py", "x = 1")
    record = site / "Theirs_Dist-1.0.dist-info"
    record.mkdir()
    (record / "RECORD").write_text("other.py,,\ntheirs_x/__init__.py,,\n")
    for folder in (editable, site):
        monkeypatch.syspath_prepend(str(folder))
    before = project.code()
    listed = before.code
    assert listed.modules["ours_x"].file == "../src/ours_x/__init__.py"
    assert "theirs_x.part" not in listed.modules
    assert listed.distributions["theirs-dist"].version == "1.0"
    assert listed.distributions["python"].version == f"{sys.version_info[0]}.{sys.version_info[1]}"
    project.write("../src/ours_x/__init__.py", "x = 2")
    edited = project.version()
    assert edited != before.snapshot(live=False).digest
    project.write("../lib/site-packages/theirs_x/part.py", "x = 2")
    assert project.version() == edited, "what is installed counts by its version"
    record.rename(site / "Theirs_Dist-1.1.dist-info")
    assert project.version() != edited


def test_names_of_distributions_are_those_that_the_metadata_have(tmp_path: Path) -> None:
    found = Project(tmp_path, {}).code().code.distributions
    for name in ("numpy", "scikit-learn", "pyyaml", "pillow"):
        assert found[name].version == metadata.version(name)


def test_compiled_modules_and_zip_files_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def zipped(text: str) -> None:
        with zipfile.ZipFile(tmp_path / "lib.zip", "w") as file:
            file.writestr("from_zip.py", text)

    zipped("x = 1")
    suffix = ".cpython-311-x86_64-linux-gnu.so" if sys.version_info[:2] == (3, 11) else ".abi3.so"
    hooks = "import from_zip\ndef preprocess(rows):\n    import fast\n"
    project = Project(tmp_path / "app", {"hooks.py": hooks, f"fast{suffix}": b"\x7fELF one"})
    monkeypatch.syspath_prepend(str(tmp_path / "lib.zip"))
    versions = {project.version()}
    project.write(f"fast{suffix}", b"\x7fELF two")
    versions.add(project.version())
    zipped("x = 2")
    sys.path_importer_cache.clear()
    versions.add(project.version())
    assert len(versions) == 3


def test_a_link_counts_by_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("scaled = 1")
    (tmp_path / "two.py").write_text("scaled = 2")
    project = Project(tmp_path / "app", {"hooks.py": HELPED})
    link = project.folder / "helper.py"
    link.symlink_to(tmp_path / "one.py")
    before = project.version()
    assert project.code().code.modules["helper"].file == "helper.py"
    link.unlink()
    link.symlink_to(tmp_path / "two.py")
    assert project.version() != before


# -- Processes -------------------------------------------------------------------------------------------------------


def test_an_application_that_has_imported_the_code_before_has_the_same_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: Files = {
        "hooks.py": "import lib.part\n" + HOOKS,
        "lib/part.py": "x = 1",
        "app.py": "import hooks, groups, lib",
    }
    project = Project(tmp_path, files)
    alone = project.version()
    monkeypatch.setattr(loaded, "_started_s", time.time)
    with imported():
        sys.path.insert(0, str(tmp_path))
        __import__("app")
        assert project.version() == alone


def test_a_file_that_changed_after_an_application_had_imported_it_makes_a_version_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    project = Project(tmp_path, {"hooks.py": "import helper_x\n" + HOOKS, "helper_x.py": "N = 1\n"})
    with imported():
        sys.path.insert(0, str(tmp_path))
        __import__("hooks")
        project.write("helper_x.py", "N = 2\n")
        code = import_code(project.manifest).files
    assert code.code.modules["helper_x"].sha256 != sha256(b"N = 2\n").hexdigest()
    assert "helper_x.py" in caplog.text
    assert project.version() != code.snapshot(live=False).digest


def test_an_executor_is_opened_later_whatever_becomes_of_files_that_it_does_not_import(tmp_path: Path) -> None:
    hooks = "import changed_x\ndef preprocess(rows):\n    import later_x\n"
    others = {"later_x.py": "", "changed_x.py": "N = 1\n", "test_x.py": "import later_x\n"}
    project = Project(tmp_path, {"hooks.py": hooks, **others})
    with imported():
        sys.path.insert(0, str(tmp_path))
        __import__("changed_x")
        project.write("changed_x.py", "N = 2\n")
        files = import_code(project.manifest, ["train:build"]).files
    assert set(files.snapshot(live=False).imports) == {"hooks.py", "groups.py", "train.py", "later_x.py"}


@pytest.mark.parametrize("name", ["__main__", "__mp_main__"])
def test_the_program_that_was_started_is_no_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    hooks = "import importlib\nimportlib.import_module('pl' + 'ug')\n" + HOOKS
    project = Project(tmp_path, {"hooks.py": hooks, "plug.py": "x = 1", "program.py": "import hooks"})
    with imported():
        sys.path.insert(0, str(tmp_path))
        monkeypatch.setitem(sys.modules, name, __import__("program"))
        modules = project.code().code.modules
    assert "plug" in modules
    assert name not in modules


def test_a_file_that_changes_while_it_is_imported_makes_a_version_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody knows which of both texts this process runs: its answers are cached for itself alone."""
    rewrites = (
        "import helper, pathlib, time\npath, began = pathlib.Path(helper.__file__), time.time()\n"
        "while path.stat().st_ctime <= began:\n    path.write_text(path.read_text() + '#')\n"
    )
    project = Project(tmp_path, {"hooks.py": rewrites + HOOKS, "helper.py": "x = 1\n"})
    one, other = project.code(), project.code()
    assert "helper.py changed during its import" in caplog.text
    project.write("hooks.py", "import helper\n" + HOOKS)
    assert (
        len({one.snapshot(live=False).digest, other.snapshot(live=False).digest, project.version(), project.version()})
        == 3
    )
