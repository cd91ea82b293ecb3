"""Flags of ``tailcut profile`` that cannot be, and files that cannot be written: refused, with the way out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.unit.profiler import profile_sample

from tailcut.cli.app import run
from tailcut.common.slo import Objectives
from tailcut.report.files import write_json
from tailcut.report.profile.json import make_report


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a profile that was kept."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    report = make_report(
        profile_sample.recording(20), kind="pilot", slo=Objectives(), created="", tailcut="0.1.0", command=""
    )
    write_json(tmp_path / "old.json", report)
    (tmp_path / "broken.jsonl").write_text("{}\n{id: 2}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("a:b", "--seed", "-1"), 2, "--seed is -1"),
        (("app:app", "--from", "old.json", "--json", "new.json"), 2, "target, --json with --from"),
        (("--from", "old.json", "--slo", "p95=1ms"), 2, "--slo with --from"),
        (("app:app", "--slo", "p95=0ms"), 2, "the limit of p95 is 0ms; it must be above 0"),
        (("--from", "absent.json"), 2, "cannot read a result of `tailcut profile --json` from absent.json"),
        (("--layers", "model.onnx", "--rate", "3"), 2, "--rate with --layers alone"),
        (("app.py",), 2, "give module:attribute, as to uvicorn, such as app:app"),
        (("app:app", "--app-dir", "absent"), 2, "there is no folder absent"),
        (("app:app", "--payloads", "absent.jsonl"), 2, "cannot read the payloads absent.jsonl"),
        (("app:app", "--payloads", "broken.jsonl"), 2, "line 2 of broken.jsonl is not JSON"),
        (("app:app", "--payloads", "nowhere:bodies"), 2, "cannot import the payloads"),
        (("app:app", "--log", "absent.jsonl"), 2, "cannot read the payloads absent.jsonl"),
        (("http://127.0.0.1:9/", "--payloads", "absent.jsonl"), 2, "cannot read the payloads absent.jsonl"),
        (("app:app", "--ready", "soon"), 2, "--ready"),
        (("app:app", "--thorough"), 2, "no such option: --thorough"),
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


@pytest.mark.parametrize(
    "source", [("--payloads", "absent.jsonl"), ("--payloads", "broken.jsonl"), ("--trace", "absent.txt")]
)
def test_a_load_that_names_a_wrong_file_ends_with_the_same_code(
    kept: Path, capfd: pytest.CaptureFixture[str], source: tuple[str, ...]
) -> None:
    """Before anything is asked of the URL, where nobody listens."""
    assert run(["load", "http://127.0.0.1:9/", *source]) == 2
    assert source[1] in capfd.readouterr().err


def test_a_profile_that_was_kept_is_shown(kept: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With a manifest in the environment too: nobody gave that for this."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TAILCUT_MANIFEST", str(kept / "tailcut.toml"))
        assert run(["profile", "--from", "old.json", "--html", "new/page.html"]) == 0
    assert "Profile of pilot:app" in capfd.readouterr().out
    assert (kept / "new" / "page.html").read_text().startswith("<!doctype html>")
