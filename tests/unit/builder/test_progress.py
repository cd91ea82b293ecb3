"""What a build writes while it works: events in, lines out."""

from __future__ import annotations

import msgspec
import pytest

from tailcut.builder.progress import Event, ProgressLog
from tailcut.cli.build import told
from tailcut.errors import BuildError

HANG = "recipe 'int8-static' did not end within 2 s and was killed\n  | its last line"


def started(step: str, variant: str = "") -> Event:
    return Event(state="started", step=step, variant=variant)


def done(step: str, variant: str = "", seconds: float = 1.0) -> Event:
    return Event(state="done", step=step, variant=variant, seconds=seconds)


def failed(step: str, variant: str = "", reason: str = HANG) -> Event:
    return Event(state="failed", step=step, variant=variant, seconds=2.0, reason=reason)


def refused(variant: str, reason: str = HANG) -> Event:
    return Event(state="refused", variant=variant, reason=reason)


def load(variant: str, number: int) -> Event:
    return Event(
        state="started", step="load", variant=variant, round=number, rounds=48, open=("onnx", "pair"), left_s=210.0
    )


def test_a_recipe_with_nothing_to_do_is_no_failure() -> None:
    none = Event(state="absent", step="make", variant="int8-fast-gelu", seconds=1.0, reason="no exact GELU")
    assert texts(ProgressLog(), started("make", "int8-fast-gelu"), none) == ["make int8-fast-gelu: does not apply"]


def texts(log: ProgressLog, *events: Event) -> list[str]:
    return [line for event in events for line in log.take(event)]


def test_a_line_per_finished_step() -> None:
    events = [started("holdout"), done("holdout", seconds=0.34), started("make", "onnx"), done("make", "onnx")]
    events += [Event(state="judged", variant="onnx"), load("onnx", 1), Event(state="passed", variant="onnx")]
    assert texts(ProgressLog(), *events)[:2] == ["holdout: done in 0.3 s", "make onnx: done in 1.0 s"]


def test_a_line_whenever_a_verdict_under_load_is_decided() -> None:
    decided = msgspec.structs.replace(load("onnx", 7), open=("pair",), left_s=150.0)
    written = texts(ProgressLog(), load("onnx", 1), load("pair", 1), decided, msgspec.structs.replace(decided, open=()))
    assert written == [
        "load: round 1 of at most 48, at most 210 s more; speed of onnx, pair open",
        "load: round 7 of at most 48, at most 150 s more; speed of pair open",
        "load: round 7 of at most 48, at most 150 s more; all verdicts decided, choosing the variant to promote",
    ]


def test_the_failure_that_ends_the_build_is_left_to_the_error() -> None:
    log = ProgressLog()
    assert texts(log, started("source"), failed("source", reason="no such file")) == []
    assert log.close("no such file") == []


def test_a_refusal_is_left_to_the_table() -> None:
    log = ProgressLog()
    written = texts(log, failed("make", "int8-static"), refused("int8-static"), done("race"))
    assert written == ["make int8-static: failed after 2.0 s", "race: done in 1.0 s"]
    assert log.close(None) == []


def test_a_failure_that_no_table_tells_is_written_with_its_reason() -> None:
    log = ProgressLog()
    written = texts(log, failed("tune", "onnx", "went wrong"), done("race"))
    assert written[0] == "tune onnx: failed after 2.0 s: went wrong"


def test_refusals_are_written_where_the_build_ends_before_its_table() -> None:
    log = ProgressLog()
    texts(log, failed("make", "int8-static"), refused("int8-static"), failed("judge", reason="single class"))
    assert log.close("single class") == [f"int8-static refused: {HANG.splitlines()[0]}"]


def test_a_refusal_that_the_error_tells_is_not_written_again() -> None:
    log = ProgressLog()
    texts(log, failed("make", "onnx", "no operator"), refused("onnx", "no operator"))
    assert log.close("nothing could be made of the source: no operator") == []


def test_what_is_stopped_says_where_it_was_and_what_is_left_of_it() -> None:
    log = ProgressLog()
    assert log.stopped()[0].startswith("stopped between two steps: nothing was promoted")
    texts(log, done("holdout"), started("score", "onnx"))
    assert log.stopped()[0].startswith("stopped while at score onnx: nothing was promoted")
    texts(log, done("score", "onnx"))
    assert log.stopped()[0].startswith("stopped between two steps")


def test_a_build_writes_its_lines_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BuildError), told() as tell:  # noqa: PT012
        tell(done("holdout"))
        tell(failed("source", reason="no such file, whatever the path may say"))
        raise BuildError("no such file, whatever the path may say")
    assert capsys.readouterr() == ("", "holdout: done in 1.0 s\n")


def test_a_build_that_is_stopped_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), told() as tell:  # noqa: PT012
        tell(started("make", "onnx"))
        raise KeyboardInterrupt
    assert capsys.readouterr().err.startswith("stopped while at make onnx: nothing was promoted")
