"""``tailcut compare``: what it says, and how it ends."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.history_kit import DAY_S, START_S, Run, drive

from tailcut.cli.app import run
from tailcut.cli.console import ExitCode
from tailcut.common.units import parse_duration

MINUTES = 60


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three days: on the second features are slower, the third is as the first."""
    path = tmp_path_factory.mktemp("history") / "history.sqlite"
    for day, factor in enumerate((1.0, 1.4, 1.0)):
        recording = Run(path, START_S + day * DAY_S, process=False)
        drive(recording, MINUTES, 40, day, {"features": factor})
        recording.end()
    return path


def span(day: int) -> list[str]:
    begin, end = (
        datetime.fromtimestamp(START_S + day * DAY_S + minutes * 60, UTC).isoformat()[:16] for minutes in (0, MINUTES)
    )
    return ["--from", begin, "--to", end]


def test_what_grew_is_named_and_ends_with_1(history: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    code = run(["compare", "--history", str(history), *span(1), "--against", "1d", "--json", str(out)])
    said = capsys.readouterr().out
    assert code == ExitCode.FAILED, said
    assert "UTC against 1d earlier" in said
    assert "features of risk (onnx) grew by" in said
    assert "within noise:" in said
    assert all(f"{stage} of risk" not in said for stage in ("queue", "infer", "encode", "receive"))
    stages = json.loads(out.read_text())["models"][0]["variants"][0]["stages"]
    assert {each["stage"]: each["verdict"] for each in stages}["features"] == "grew"


def test_where_nothing_grew_it_ends_with_0(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "--history", str(history), *span(2), "--against", "2d"]) == ExitCode.OK
    assert "no stage grew beyond noise" in capsys.readouterr().out
    assert run(["compare", "--history", str(history), *span(2), "--against", "1d"]) == ExitCode.OK
    assert "shrank" in capsys.readouterr().out


def test_the_manifest_names_the_history(
    history: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tailcut.toml").write_text(
        'name = "risk"\n[model]\nsource = "m.onnx"\ninputs = [{ name = "x", shape = [-1, 2] }]\n'
        f'outputs = [{{ name = "y" }}]\n[observe.history]\npath = "{history}"\n'
    )
    monkeypatch.chdir(tmp_path)
    assert run(["compare", *span(1), "--against", "1d"]) == ExitCode.FAILED
    assert f"history {history}" in capsys.readouterr().out
    assert run(["compare", "--set", "observe.history.path=other.sqlite"]) == ExitCode.NOT_STARTED
    assert f"there is no history at {tmp_path / 'other.sqlite'}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--since", "2d", "--against", "1d"], ExitCode.USAGE, "is shorter than the span of 2d: both would overlap"),
        (["--since", "2d", "--against", "1d"], ExitCode.USAGE, "give an --against of at least that length"),
        (["--since", "1500w"], ExitCode.USAGE, "or a shorter span, such as --since 1d"),
        (["--since", "99999999999w", "--against", "99999999999w"], ExitCode.USAGE, "has the span begin before 1970"),
        (["--since", "99999999999w"], ExitCode.USAGE, "--since 99999999999w has the span begin before 1970"),
        (
            ["--against", "99999999999w"],
            ExitCode.USAGE,
            "99999999999w has the earlier span begin before 1970",
        ),
        (["--from", "0001-01-01", "--to", "now"], ExitCode.USAGE, "--from 0001-01-01 has the span begin before 1970"),
        (["--since", "0s"], ExitCode.USAGE, "the span of --since 0s is shorter than a minute"),
        (["--since", "30s"], ExitCode.USAGE, "the span of --since 30s is shorter than a minute"),
        (["--from", "2026-13-01"], ExitCode.USAGE, "--from is '2026-13-01': month must be in 1..12"),
        (["--from", "2099-01-01", "--to", "now"], ExitCode.USAGE, "from 2099-01-01 to now is shorter than a minute"),
        (["--since", "1"], ExitCode.USAGE, "has no unit"),
        (["--to", "2026-01-01"], ExitCode.USAGE, "--to is given without --from"),
        (["--from", "yesterday"], ExitCode.USAGE, "--from is 'yesterday'"),
        (["--from", "2026-01-02", "--to", "2026-01-01"], ExitCode.USAGE, "is shorter than a minute"),
        (["--min-change", "200%"], ExitCode.USAGE, "more than 100%"),
        (["--from", "2020-01-02", "--to", "2020-01-03"], ExitCode.NOT_STARTED, "has nothing of any model in either"),
        ([*span(1), "--model", "other"], ExitCode.NOT_STARTED, "has nothing of model 'other' in either span; it has"),
        ([*span(0), "--against", "1d"], ExitCode.NOT_STARTED, ""),
    ],
)
def test_what_cannot_be_compared_is_said(
    history: Path, arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", "--history", str(history), *arguments]) == code
    assert said in capsys.readouterr().err


def test_a_span_without_its_other_half_is_not_compared(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "--history", str(history), *span(0), "--against", "1d"]) == ExitCode.NOT_STARTED
    said = capsys.readouterr().out
    assert "the earlier span has rows of 0 of its 60 minutes" in said
    assert "nothing could be compared" in said


def test_weeks_are_durations() -> None:
    assert parse_duration("5w") == 35 * DAY_S
