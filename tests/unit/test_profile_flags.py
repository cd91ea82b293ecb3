"""Flags of ``tailcut profile`` that cannot be, and files that cannot be written: refused, with the way out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.unit import profile_sample

from tailcut.cli.app import run
from tailcut.core.slo import Objectives
from tailcut.report.profile_json import make_report, save_report


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a profile that was kept."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    report = make_report(
        profile_sample.recording(20), kind="pilot", slo=Objectives(), created="", tailcut="0.1.0", command=""
    )
    save_report(report, tmp_path / "old.json")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("a:b", "--seed", "-1"), 2, "--seed is -1"),
        (("app:app", "--from", "old.json", "--json", "new.json"), 2, "target, --json with --from"),
        (("--from", "old.json", "--slo", "p95=1ms"), 2, "--slo with --from"),
        (("--from", "old.json", "--html", "/dev/full"), 3, "cannot write /dev/full: No space left on device"),
    ],
)
def test_what_cannot_be_is_refused(
    kept: Path, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, text: str
) -> None:
    assert run(["profile", *arguments]) == code
    said = capfd.readouterr()
    assert said.out == ""
    assert text.lower() in said.err.lower()
    assert not (kept / "new.json").exists()


def test_a_profile_that_was_kept_is_shown(kept: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With a manifest in the environment too: nobody gave that for this."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TAILCUT_MANIFEST", str(kept / "tailcut.toml"))
        assert run(["profile", "--from", "old.json", "--html", "new/page.html"]) == 0
    assert "Profile of pilot:app" in capfd.readouterr().out
    assert (kept / "new" / "page.html").read_text().startswith("<!doctype html>")
