"""``tailcut export`` and ``tailcut simulate --json``: a file that cannot be written is refused before the work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailcut.cli.app import run
from tailcut.cli.console import ExitCode

COMMANDS = [
    ["export", "prometheus-rules", "-o"],
    ["export", "grafana", "-o"],
    ["simulate", "--cost", "1=1ms", "--duration", "1s", "--json"],
]


@pytest.fixture(autouse=True)
def _manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tailcut.toml").write_text(
        'name = "risk"\n[model]\nsource = "m.onnx"\ninputs = [{ name = "x", shape = [-1, 2] }]\n'
        'outputs = [{ name = "y" }]\n'
    )
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("file", "said"), [("/proc/x/y", "No such file"), (".", "it is a folder")])
def test_what_cannot_be_written_is_refused(
    command: list[str], file: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, file]) == ExitCode.USAGE
    assert f"cannot write {file}: {said}" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_folders_are_made(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "new/file"]) == ExitCode.OK
    assert "wrote new/file" in capsys.readouterr().err
    assert (tmp_path / "new/file").read_bytes().endswith(b"\n")


def test_a_dashboard_in_a_file_is_the_one_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "grafana"]) == ExitCode.OK
    shown = json.loads(capsys.readouterr().out)
    assert run(["export", "grafana", "-o", "board.json"]) == ExitCode.OK
    assert json.loads((tmp_path / "board.json").read_text()) == shown
