"""What a build shows while it works: events in, rows and lines out; drawn on a terminal that is none."""

from __future__ import annotations

import io
import threading

import msgspec
import pytest
from rich.console import Console

from tailcut.builder.progress import CALM_S, REDRAW_S, Board, Event, Log
from tailcut.cli._build_progress import LiveTable, rendered, shown
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


def states(board: Board, now_s: float = 0.0) -> dict[str, str]:
    return {row.name: row.state for row in board.rows(now_s)}


def taken(*events: Event) -> Board:
    board = Board()
    for second, event in enumerate(events):
        board.take(event, float(second))
    return board


def test_a_variant_goes_from_waiting_to_its_verdict() -> None:
    board = Board()
    steps = [
        (Event(state="waiting", variant="onnx"), "waiting"),
        (started("make", "onnx"), "making"),
        (done("make", "onnx"), "made"),
        (started("score", "onnx"), "scoring"),
        (done("score", "onnx"), "scored"),
        (started("tune", "onnx"), "tuning"),
        (failed("tune", "onnx"), "tuning failed"),
        (Event(state="judged", variant="onnx"), "judged"),
        (started("race"), "judged"),
        (load("onnx", 2), "under load round 2"),
        (done("load"), "under load round 2"),
        (Event(state="passed", variant="onnx"), "passed"),
    ]
    for event, state in steps:
        board.take(event, 0.0)
        assert states(board) == {"onnx": state}, event


def test_recipes_that_are_not_made_say_why_and_keep_the_order() -> None:
    board = taken(
        done("score", "torch"),
        Event(state="waiting", variant="onnx"),
        Event(state="absent", variant="fp16", reason="not here: no CUDA device"),
        Event(state="absent", variant="int8-static", reason="off by default: set build.quantize = true"),
    )
    assert states(board) == {"torch": "scored", "onnx": "waiting", "fp16": "not here", "int8-static": "not made"}
    assert [row.why for row in board.rows(0.0)][2:] == [
        "not here: no CUDA device",
        "off by default: set build.quantize = true",
    ]


def test_only_the_variant_under_way_counts_seconds_and_the_total_grows() -> None:
    board = taken(done("make", "onnx", 4.0), done("make", "openvino", 1.0), started("score", "onnx"))
    rows = {row.name: row for row in board.rows(now_s=5.0)}
    assert (rows["onnx"].step_s, rows["onnx"].took_s) == (3.0, 7.0)
    assert (rows["openvino"].step_s, rows["openvino"].took_s) == (None, 1.0)


def test_a_reason_is_one_line_and_stays_while_the_build_goes_on() -> None:
    board = taken(Event(state="judged", variant="int8", reason="auc fell\nby 0.1"), load("int8", 1))
    assert board.rows(9.0)[0].why == "auc fell"


def test_the_title_says_what_no_row_says() -> None:
    assert taken(started("holdout")).title(7.0) == "reading the holdout, 7 s"
    assert taken(started("make", "onnx")).title(7.0) == ""
    assert taken(started("load"), load("onnx", 3)).title(7.0) == (
        "under load: onnx, round 3 of at most 48, at most 210 s more; speed of onnx, pair open"
    )
    assert taken(started("load"), load("onnx", 3)).rows(7.0)[0].step_s is None
    assert taken(started("load"), load("onnx", 3), done("load")).title(7.0) == ""


def test_what_measures_is_left_alone() -> None:
    """At most four drawings a second, one beside a measuring step, and none while requests are sent."""
    assert taken(started("make", "onnx")).redraw_s == REDRAW_S == 0.25
    assert taken(started("tune", "onnx")).redraw_s == taken(started("race")).redraw_s == CALM_S == 1.0
    assert taken(started("load")).redraw_s == CALM_S
    assert taken(started("load"), load("onnx", 1)).redraw_s is None
    assert taken(started("load"), load("onnx", 1), done("load")).redraw_s == REDRAW_S


def test_a_recipe_with_nothing_to_do_is_no_failure() -> None:
    none = Event(state="absent", step="make", variant="int8-fast-gelu", seconds=1.0, reason="no exact GELU")
    board = taken(started("make", "int8-fast-gelu"), none)
    assert states(board) == {"int8-fast-gelu": "not made"}
    assert board.rows(9.0)[0].why == "no exact GELU"
    assert texts(Log(), started("make", "int8-fast-gelu"), none) == ["make int8-fast-gelu: does not apply"]


def texts(log: Log, *events: Event) -> list[str]:
    return [line.text for event in events for line in log.take(event)]


def test_a_line_per_finished_step() -> None:
    events = [started("holdout"), done("holdout", seconds=0.34), started("make", "onnx"), done("make", "onnx")]
    events += [Event(state="judged", variant="onnx"), load("onnx", 1), Event(state="passed", variant="onnx")]
    assert texts(Log(), *events)[:2] == ["holdout: done in 0.3 s", "make onnx: done in 1.0 s"]


def test_a_line_whenever_a_verdict_under_load_is_decided() -> None:
    decided = msgspec.structs.replace(load("onnx", 7), open=("pair",), left_s=150.0)
    written = texts(Log(), load("onnx", 1), load("pair", 1), decided, msgspec.structs.replace(decided, open=()))
    assert written == [
        "load: round 1 of at most 48, at most 210 s more; speed of onnx, pair open",
        "load: round 7 of at most 48, at most 150 s more; speed of pair open",
        "load: round 7 of at most 48, at most 150 s more; all verdicts decided, choosing the variant to promote",
    ]


def test_the_failure_that_ends_the_build_is_left_to_the_error() -> None:
    log = Log()
    assert texts(log, started("source"), failed("source", reason="no such file")) == []
    assert log.close("no such file") == []


def test_a_refusal_is_left_to_the_table() -> None:
    log = Log()
    written = texts(log, failed("make", "int8-static"), refused("int8-static"), done("race"))
    assert written == ["make int8-static: failed after 2.0 s", "race: done in 1.0 s"]
    assert log.close(None) == []


def test_a_failure_that_no_table_tells_is_written_with_its_reason() -> None:
    log = Log()
    written = texts(log, failed("tune", "onnx", "went wrong"), done("race"))
    assert written[0] == "tune onnx: failed after 2.0 s: went wrong"


def test_refusals_are_written_where_the_build_ends_before_its_table() -> None:
    log = Log()
    texts(log, failed("make", "int8-static"), refused("int8-static"), failed("judge", reason="single class"))
    assert [line.text for line in log.close("single class")] == [f"int8-static refused: {HANG.splitlines()[0]}"]


def test_a_refusal_that_the_error_tells_is_not_written_again() -> None:
    log = Log()
    texts(log, failed("make", "onnx", "no operator"), refused("onnx", "no operator"))
    assert log.close("nothing could be made of the source: no operator") == []


def test_what_is_stopped_says_where_it_was_and_what_is_left_of_it() -> None:
    log = Log()
    assert log.stopped()[0].text.startswith("stopped between two steps: nothing was promoted")
    texts(log, done("holdout"), started("score", "onnx"))
    assert log.stopped()[0].text.startswith("stopped while at score onnx: nothing was promoted")
    texts(log, done("score", "onnx"))
    assert log.stopped()[0].text.startswith("stopped between two steps")


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, force_interactive=True, width=80, color_system=None)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_rows_fit_the_terminal() -> None:
    console = Console(file=io.StringIO(), width=60)
    board = taken(started("make", "onnx"), refused("int8-static", "the first try " * 20), started("tune", "openvino"))
    console.print(rendered(board.title(5.0), board.rows(5.0)))
    lines = written(console).splitlines()
    assert max(map(len, lines)) <= 60
    assert any("openvino" in line and "tuning, 3 s" in line for line in lines)
    assert any("int8-static" in line and "refused" in line and "…" in line for line in lines)


def test_on_a_terminal_the_table_is_gone_afterwards_and_the_cursor_is_back() -> None:
    console = terminal()
    with pytest.raises(KeyboardInterrupt), shown(console) as tell:  # noqa: PT012
        tell(started("make", "onnx"))
        raise KeyboardInterrupt
    shown_text = written(console)
    assert shown_text.rindex("\x1b[?25h") > shown_text.rindex("\x1b[?25l")
    assert shown_text.rindex("\x1b[2K") > shown_text.rindex("making")
    assert shown_text.rindex("stopped while at make onnx") > shown_text.rindex("\x1b[2K")
    assert threading.active_count() == 1 or "build-table" not in {each.name for each in threading.enumerate()}


def test_on_a_terminal_only_failures_stay() -> None:
    console = terminal()
    with shown(console) as tell:
        for event in (done("holdout"), failed("tune", "onnx", "went wrong"), done("score", "onnx")):
            tell(event)
    assert "tune onnx: failed after 2.0 s: went wrong" in written(console)
    assert "done in" not in written(console)


def test_in_a_file_there_are_lines_only() -> None:
    console = Console(file=io.StringIO(), width=30)
    with pytest.raises(BuildError), shown(console) as tell:  # noqa: PT012
        tell(done("holdout"))
        tell(failed("source", reason="no such file, whatever the path may say"))
        raise BuildError("no such file, whatever the path may say")
    assert written(console) == "holdout: done in 1.0 s\n"


def test_nothing_is_drawn_while_requests_are_sent() -> None:
    console = terminal()
    with LiveTable(console) as table:
        table.take(started("load"))
        table.take(load("onnx", 1))
        before = written(console)
        table.take(load("torch", 1))  # within a second of the last drawing
        assert written(console) == before
