"""A ladder's file names no folder of the machine that it was measured on."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
from tests.unit.ladder.ladder_sample import sample

from tailcut.ladder.places import machine_places, renamed, without_places

PLACES = {
    "/home/me": "~",
    "/home/me/project": ".",
    "/home/me/other/risk": "../other/risk",
    "/opt/bin/python3": "python",
}


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("/home/me/project/.venv/bin/python3", ".venv/bin/python3"),
        ("/home/me/project", "."),
        ("/home/me/project/", "."),
        ("nothing in /home/me/other/risk.", "nothing in ../other/risk."),
        ("/home/me/project-2/x", "~/project-2/x"),
        ("/home/me/project.d/x", "~/project.d/x"),
        ("/home/me/other/risk/tailcut.toml", "../other/risk/tailcut.toml"),
        ("/home/me/.cache/x", "~/.cache/x"),
        ("/opt/bin/python3", "python"),
        ("/opt/bin/python3.11", "/opt/bin/python3.11"),
        ("A=/home/me/project/a, B=sqlite:////home/me/project/b.db", "A=a, B=sqlite:///b.db"),
        ("PYTHONPATH=/home/me/project/src:/home/me/project", "PYTHONPATH=src:."),
        ("see '/home/me/project/logs/1.log'", "see 'logs/1.log'"),
        ("/mnt/home/me/project/x", "/mnt/home/me/project/x"),
        ("http://127.0.0.1:80/home/me/project/x", "http://127.0.0.1:80/home/me/project/x"),
    ],
)
def test_paths_are_renamed_where_they_are_paths_of_the_machine(text: str, after: str) -> None:
    assert renamed(text, PLACES) == after


def test_every_text_of_a_record_is_renamed_and_nothing_else_changes() -> None:
    record = sample()
    rungs = [msgspec.structs.replace(one, command=("/home/me/project/run", "--port=1")) for one in record.rungs]
    rungs[1] = msgspec.structs.replace(rungs[1], failed="see /home/me/project/ladder/logs/002.log")
    settings = {**record.settings, "set-up": "HOME=/home/me/project/data"}
    named = msgspec.structs.replace(record, rungs=tuple(rungs), settings=settings, command="x -m /home/me/project")
    clean = without_places(named, PLACES)
    assert "/home/me" not in msgspec.json.encode(clean).decode()
    assert clean.rungs[0].command == ("run", "--port=1")
    assert clean.rungs[1].failed == "see ladder/logs/002.log"
    assert clean.settings["set-up"] == "HOME=data"
    assert without_places(record, PLACES) == record


def test_the_folders_of_this_machine_have_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "risk").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert machine_places(tmp_path / "risk") == {
        str(tmp_path): "~",
        str(tmp_path / "risk"): "../risk",
        str(tmp_path / "work"): ".",
        sys.executable: "python",
    }


def test_an_interpreter_below_the_working_directory_keeps_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python3"))
    assert renamed(sys.executable, machine_places(tmp_path)) == ".venv/bin/python3"
