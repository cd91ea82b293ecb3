"""``tailcut top``: wrong flags are said before a server is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailcut.cli.app import run
from tailcut.cli.console import ExitCode


@pytest.mark.parametrize("url", ["http://[::1", "http://h:99999", "http://h:x", "ftp://h", "http://"])
def test_what_is_no_address_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", url, "--once"]) == ExitCode.USAGE
    assert f"URL '{url}' is no address of a server" in capsys.readouterr().err


def test_an_empty_file_is_no_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "token"
    file.write_text(" \n")
    assert run(["top", "127.0.0.1:1", "--once", "--token-file", str(file)]) == ExitCode.USAGE
    assert f"--token-file {file} is empty" in capsys.readouterr().err
