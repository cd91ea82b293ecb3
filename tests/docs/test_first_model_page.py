"""docs/tutorial/first_model.md is done as it is printed, in an environment that has the extras it names and no torch.

Rounds of load are short. What the build left is compared with docs/reference/registry.md.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.docs.pages import ROOT, blocks, commands
from tests.install_kit import Environment
from tests.integration.serving import Served
from tests.scale import sized

from tailcut.manifest import load
from tailcut.registry import Registry

PAGE = ROOT / "docs" / "tutorial" / "first_model.md"
REGISTRY_PAGE = (ROOT / "docs" / "reference" / "registry.md").read_text(encoding="utf-8")
SHORT = {
    "TAILCUT_BUILD__ROUNDS": sized("0", "6"),
    "TAILCUT_BUILD__ROUND": "500ms",
    "TAILCUT_SLO__P95": "1s",
    "TAILCUT_SLO__TIMEOUT": "5s",
}
"""A short build, which a busy machine does as well: how fast the machine is is not what is tested."""

pytestmark = pytest.mark.integration


class Reader:
    """Types the commands of the page one after the other; see ``up_to``."""

    def __init__(self, folder: Path, environment: Environment) -> None:
        self.folder = folder
        self.environment = environment
        self._left = iter(list(commands(PAGE)))

    def up_to(self, last: list[str], **variables: str) -> Iterator[tuple[list[str], str]]:
        """Run commands until one begins with ``last``, which is not run; yield each with what it wrote to stdout."""
        for words in self._left:
            if words[: len(last)] == last:
                return
            done = self.environment.run(*words, folder=self.folder, **variables)
            assert (done.returncode, "Traceback" in done.stderr) == (0, False), (words, done.stdout, done.stderr)
            yield words, done.stdout

    def text(self, language: str, place: int = 0) -> str:
        return [text for each, text in blocks(PAGE) if each == language][place]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    return Environment(tmp_path_factory.mktemp("venv"), wheel, ["trees-build", "profile"], ["pandas"])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, environment: Environment) -> tuple[Reader, Any]:
    """The page up to "Serve", and what init had written."""
    reader = Reader(tmp_path_factory.mktemp("parcels"), environment)
    (reader.folder / "train.py").write_text(reader.text("python"))
    (reader.folder / "model.py").write_text(reader.text("python", 1))
    (reader.folder / "requests.jsonl").write_text(reader.text("json"))
    for _ in reader.up_to(["tailcut", "build"]):
        pass
    initial = load(reader.folder, environment={}, overrides=["name=parcels", "slo.p95=20ms", "slo.rate=50"])
    (reader.folder / "tailcut.toml").write_text(reader.text("toml"))
    done = environment.run("tailcut", "build", folder=reader.folder, **SHORT)
    assert done.returncode == 0, done.stderr
    said = {" ".join(words): told for words, told in reader.up_to(["tailcut", "serve"], **SHORT)}
    assert "promoted" in said["tailcut registry list"]
    return reader, initial


def test_the_environment_has_no_torch(environment: Environment) -> None:
    done = environment.run("python", "-c", "import torch", folder=ROOT)
    assert "No module named 'torch'" in done.stderr


def test_init_had_written_all_but_what_the_page_fills_in(built: tuple[Reader, Any]) -> None:
    reader, initial = built
    assert initial.deployment.holdout.labels == ""
    printed = load(reader.folder, environment={}).deployment
    labelled = load(reader.folder, environment={}, overrides=["holdout.labels="]).deployment
    assert labelled == initial.deployment
    assert printed.holdout.labels == "late"


def test_it_is_served_asked_and_profiled_as_printed(built: tuple[Reader, Any]) -> None:
    reader, _ = built
    curl, load_test = (words for words in commands(PAGE) if words[0] == "curl" or words[:2] == ["tailcut", "load"])
    with Served(
        reader.folder, settings=["serve.variant=onnx"], prepared=True, python=reader.environment.python
    ) as server:
        status, headers, body = server.request("POST", "/predict/parcels", json.loads(curl[curl.index("-d") + 1]))
        assert (status, set(json.loads(body)["predictions"][0])) == (200, {"probability"}), body
        assert headers["x-tailcut-variant"] == "onnx"
        assert not {"lightgbm", "sklearn", "torch"} & maps(server.worker_pid)
        words = shortened([word.replace(":8700", f":{server.port}") for word in load_test])
        done = reader.environment.run(*words, folder=reader.folder)
        assert done.returncode in {0, 1}, done.stdout + done.stderr  # 1: the SLO was missed
        assert "20 ms" in done.stdout
    (profile,) = (words for words in commands(PAGE) if words[:2] == ["tailcut", "profile"])
    done = reader.environment.run(*shortened(profile), folder=reader.folder, **SHORT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Where the time goes" in done.stdout


def shortened(words: list[str]) -> list[str]:
    """Return a command with a shorter duration; as it is printed in `make test-all`."""
    assert words.count("--duration") == 1
    place = words.index("--duration") + 1
    return sized([*words[:place], "2s", *words[place + 1 :]], words)


def maps(pid: int) -> set[str]:
    """The installed packages of which a process has mapped a compiled part."""
    return set(re.findall(r"site-packages/(\w+)/", Path(f"/proc/{pid}/maps").read_text()))


def test_every_file_of_the_registry_is_on_its_page(built: tuple[Reader, Any]) -> None:
    """And every kind of file on the page is there, but those that only a killed process leaves."""
    root = built[0].folder / ".tailcut" / "registry"
    table = REGISTRY_PAGE.partition("## A version")[0]
    named = [name for row in rows(table) for name in re.findall(r"`([^`]+)`", row.split("|")[1])]
    kinds = {name: re.compile(pattern(name)) for name in named}
    found = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]
    assert [path for path in found if not any(kind.fullmatch(path) for kind in kinds.values())] == []
    assert [name for name, kind in kinds.items() if not any(map(kind.fullmatch, found))] == ["*.tmp"]


def pattern(name: str) -> str:
    for word, form in {
        "ab/abcd...": "../.{64}",
        "MODEL": "parcels",
        "ID": "[0-9a-f]{12}",
        "HASH": "[0-9a-f]{12}",
    }.items():
        name = name.replace(word, form)
    return name.replace("*", ".*")


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| `")]


def test_every_key_of_a_version_is_on_the_page(built: tuple[Reader, Any]) -> None:
    folder = built[0].folder / ".tailcut" / "registry" / "models" / "parcels" / "versions"
    (version,) = folder.glob("*/version.json")
    content = json.loads(version.read_text())
    section = REGISTRY_PAGE.partition("## A version")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", section))
    keys = set(content) | {key for each in content["variants"].values() for key in each} | set(content["files"])
    assert keys - named - {"evidence", "manifest"} == set()
    assert set(content["files"]) == {"rows", "code", "drift"}
    (evidence,) = folder.glob("*/evidence-*.json")
    section = REGISTRY_PAGE.partition("## Evidence")[2].partition("\n## ")[0]
    assert set(json.loads(evidence.read_text())) - {"model", "version"} == set(re.findall(r"`(\w+)`", section))


def test_a_copy_of_the_registry_is_whole(built: tuple[Reader, Any], tmp_path: Path) -> None:
    """As the page has it: the folder is the backup."""
    copy = shutil.copytree(built[0].folder / ".tailcut" / "registry", tmp_path / "registry")
    done = built[0].environment.run(
        "tailcut", "registry", "verify", "--quick", folder=built[0].folder, TAILCUT_REGISTRY__PATH=str(copy)
    )
    assert done.returncode == 0, done.stderr
    assert Registry(copy).list("parcels")
