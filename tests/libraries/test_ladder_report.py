from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest
from tests.unit.ladder.ladder_sample import sample

from tailcut.errors import LoadTestError
from tailcut.report.document import Chart, markdown, terminal
from tailcut.report.files import write_json
from tailcut.report.html import NO_CHARTS, html
from tailcut.report.ladder.document import headline, ladder_document, ladder_figures, write_reports
from tailcut.report.ladder.file import Capacity, LadderRecord, load_ladder


def render_terminal(ladder: LadderRecord) -> str:
    return terminal(ladder_document(ladder))


def render_markdown(ladder: LadderRecord) -> str:
    return markdown(ladder_document(ladder), "ladder.png")


def render_html(ladder: LadderRecord) -> str:
    return html(ladder_document(ladder))


def test_a_ladder_survives_its_file(tmp_path: Path) -> None:
    write_json(tmp_path / "ladder.json", sample())
    assert load_ladder(tmp_path / "ladder.json") == sample()


@pytest.mark.parametrize("text", ["", "{}", '{"schema": 1}'])
def test_a_file_that_is_no_ladder_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "ladder.json").write_text(text)
    with pytest.raises(LoadTestError, match=r"cannot read a result of `tailcut ladder` from .*ladder\.json"):
        load_ladder(tmp_path / "ladder.json")


def test_another_schema_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "ladder.json", msgspec.structs.replace(sample(), schema=2))
    with pytest.raises(LoadTestError, match="schema 2, but this tailcut reads 1"):
        load_ladder(tmp_path / "ladder.json")


def test_each_rung_is_compared_with_the_rung_below_that_ran() -> None:
    rows = {row.record.name: row for row in ladder_figures(sample())}
    assert rows["pilot"].change == {}
    batching = rows["+ micro-batching, warm executors"].change["comfortable"]
    assert (batching.before_ms, batching.after_ms) == (4.1, 4.3)
    assert not batching.clear, "the rounds overlap"
    onnx = rows["+ ONNX fp32"].change["comfortable"]
    assert onnx.clear
    assert onnx.share == pytest.approx(4.1 / 13.5 - 1)


def test_figures_have_a_spread_over_rounds() -> None:
    p95 = ladder_figures(sample())[0].rates["comfortable"].latency_ms["p95"]
    assert (p95.low, p95.mid, p95.high) == pytest.approx((78 * 0.93, 78, 78 * 1.08))


def test_the_terminal_shows_setbacks_refusals_and_saturation() -> None:
    text = render_terminal(sample())
    assert re.search(r"\+ micro-batching, warm executors .* \+5 % ~ ", text)
    assert re.search(r"\+ INT8 dynamic +refused: not faster here", text)
    assert re.search(r"pilot .* ! 72% failed", text)
    assert re.search(r"pilot +0 \(missed at every rate\)", text)
    assert "1,480/s" in text
    assert max(len(line) for line in text.splitlines()) < 160


def test_markdown_tables_are_rectangular() -> None:
    text = render_markdown(sample())
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        assert len({line.count("|") - line.count("\\|") for line in block.splitlines()}) == 1
    assert "adds cache.entity.enabled=true" in text
    assert "commit 0123456789ab" in text


def test_the_page_is_whole_and_needs_nothing_from_elsewhere() -> None:
    page = render_html(sample())
    assert not re.search(r"""(?:src|href)="(?!#)|url\((?!#)|@import|<script""", page)
    charts = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(charts) == 5, "per rate latency beside changes, and stages; capacity"
    for chart in charts:
        root = ET.fromstring(chart)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
    for rung in sample().rungs:
        assert rung.name in page


def test_names_are_escaped() -> None:
    record = sample()
    evil = msgspec.structs.replace(record.rungs[1], name="<b>& $x$ 日本")
    page = render_html(msgspec.structs.replace(record, rungs=(record.rungs[0], evil)))
    assert "<b>&<" not in page
    for chart in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        assert ">&lt;b&gt;&amp; $x$ 日本</text>" in chart, "as it is, and no formula"
    assert page.count("&lt;b&gt;&amp; $x$ 日本") > 8, "in tables, too"
    assert page == render_html(msgspec.structs.replace(record, rungs=(record.rungs[0], evil))), "the same every time"


def test_the_headline_runs_from_the_pilot_to_the_last_rung() -> None:
    assert [figure for figure, _ in headline(sample())] == ["78 → 2.6 ms", "1,000 → 4.9 ms", "0 → 1,480 req/s"]
    assert "-99.5 %" in headline(sample())[1][1]
    assert "26.9 times what it takes at all (55 req/s)" in headline(sample())[2][1]


def test_a_ladder_without_capacity_or_answers_still_renders(tmp_path: Path) -> None:
    record = sample()
    silent = [
        msgspec.structs.replace(one, latency_ms=None, answered=0, throughput_rps=0.0, stages_ms={})
        for one in record.rungs[1].measurements
    ]
    rungs = (
        msgspec.structs.replace(record.rungs[0], capacity=None),
        msgspec.structs.replace(record.rungs[1], measurements=tuple(silent), capacity=None),
        msgspec.structs.replace(
            record.rungs[2], measurements=(), capacity=None, failed="the server exited with code 3"
        ),
    )
    record = msgspec.structs.replace(record, rungs=rungs, pilot=None)
    assert "failed: the server exited with code 3" in render_terminal(record)
    written, missing = write_reports(record, tmp_path)
    assert missing == ""
    assert all(path.stat().st_size > 500 for path in written)


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    written, missing = write_reports(sample(), tmp_path)
    assert [path.name for path in written] == ["ladder.md", "ladder.html", "ladder.png"]
    assert missing == ""
    png = (tmp_path / "ladder.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert int.from_bytes(png[16:20]) > 1000


def test_charts_follow_the_readers_colours_and_hold_what_was_measured() -> None:
    page = render_html(sample())
    latency = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)[0]
    for text in ("Latency at 38.5 req/s", "+ INT8 dynamic", "refused: not faster here", "SLO: p95 25 ms", "+5 % ~"):
        assert text in latency
    assert "var(--ink)" in latency
    assert "#1c2833" not in latency


def test_bars_of_changes_say_what_may_be_noise() -> None:
    latency, changes = ladder_document(sample()).sections[0].charts
    assert isinstance(latency, Chart)
    assert isinstance(changes, Chart)
    assert latency.limit == ("SLO: p95 25 ms", 25.0)
    assert [mark.series for mark in latency.rows[0].marks] == ["p50", "p95", "p99"]
    series = {row.name: row.marks[0].series for row in changes.rows if row.marks}
    assert series["+ ONNX fp32"] == "faster"
    assert series["+ micro-batching, warm executors"] == "rounds overlap: may be noise"


def test_stages_beyond_the_colours_are_drawn_too() -> None:
    stages = {f"stage_{number}": 1.0 for number in range(15)}
    measured = sample().rungs[1].measurements
    many = tuple(msgspec.structs.replace(one, stages_ms={**stages, "total": 15.0}) for one in measured)
    assert "stage_14" in render_html(changed(1, measurements=many))


def test_without_matplotlib_the_report_is_whole_and_says_how_to_get_charts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "tailcut.report.charts", raising=False)
    written, missing = write_reports(sample(), tmp_path)
    assert [path.name for path in written] == ["ladder.md", "ladder.html"]
    assert missing == "charts need matplotlib: pip install 'tailcut[report]'"
    page = (tmp_path / "ladder.html").read_text()
    assert page.count("charts need matplotlib") == 1
    assert "<svg" not in page
    assert "1,480/s" in page
    assert missing == NO_CHARTS


def test_the_ceiling_of_a_search_is_not_shown_as_a_capacity() -> None:
    """No rate missed: the search ended at the highest rate that it tries."""
    record = sample()
    rung = record.rungs[-1]
    assert rung.capacity is not None
    ceiling = msgspec.structs.replace(rung.capacity, rate=6000.0, limit="", complete=True)
    record = msgspec.structs.replace(
        record, rungs=(*record.rungs[:-1], msgspec.structs.replace(rung, capacity=ceiling))
    )
    assert ">= 6,000/s" in render_terminal(record)
    assert ">= 1,480/s" not in render_terminal(sample())


def test_how_many_times_a_pilot_of_unknown_capacity_bears_is_not_said() -> None:
    record = sample()
    pilot, last = record.rungs[0], record.rungs[-1].capacity
    assert last is not None
    found = msgspec.structs.replace(last, rate=148.0)

    def shown(capacity: Capacity) -> str:
        first = msgspec.structs.replace(pilot, capacity=capacity)
        return render_terminal(msgspec.structs.replace(record, rungs=(first, *record.rungs[1:])))

    assert "1,480/s (10.0x)" in shown(found)
    assert "x)" not in shown(msgspec.structs.replace(found, complete=False))


@pytest.mark.parametrize(
    ("rounds", "says"),
    [("1", ": one round."), ("2", "the slower of 2 rounds"), ("3", "median round (lowest-highest of 3")],
)
def test_what_a_figure_over_rounds_is_stands_above_the_table(rounds: str, says: str) -> None:
    record = sample()
    record = msgspec.structs.replace(record, settings={**record.settings, "rounds": rounds})
    assert says in render_terminal(record)


def changed(place: int, **values: object) -> LadderRecord:
    """The sample with one rung changed."""
    rungs = list(sample().rungs)
    rungs[place] = msgspec.structs.replace(rungs[place], **values)
    return msgspec.structs.replace(sample(), rungs=tuple(rungs))


def test_a_reason_of_several_lines_shows_its_first_one_and_breaks_no_table() -> None:
    record = changed(4, refused="it was not built\n\n  | Traceback | line 1\n  | ValueError: no")
    text = render_markdown(record)
    assert "Traceback" not in text
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        assert len({line.count("|") - line.count("\\|") for line in block.splitlines()}) == 1
    assert re.search(r"\+ INT8 dynamic +refused: it was not built$", render_terminal(record), re.MULTILINE)
    failed = changed(4, refused="", failed="\nthe server exited with code 3\nhint: look")
    assert "failed: the server exited with code 3" in render_terminal(failed)
    assert "look" not in render_markdown(failed)
    named = render_markdown(changed(1, name="every lever\noff"))
    assert "| every lever off |" in named
    assert "every lever off" in render_terminal(changed(1, name="every lever\noff"))


def test_a_search_that_ran_out_of_time_before_a_rate_passed_found_nothing() -> None:
    rung = sample().rungs[0]
    assert rung.capacity is not None
    record = changed(0, capacity=msgspec.structs.replace(rung.capacity, rate=0.0, complete=False, limit=""))
    for text in (render_terminal(record), render_html(record)):
        assert "none found in time" in text
        assert "missed at every rate" not in text
    assert "no rate within p95=25ms,errors=0.1% was found in time" in render_markdown(record)
    assert [figure for figure, _ in headline(record)] == ["78 → 2.6 ms", "1,000 → 4.9 ms"]


def test_a_rung_that_failed_is_neither_quoted_nor_compared_with() -> None:
    record = changed(6, failed="the server exited with code 3")
    assert [figure for figure, _ in headline(record)] == ["78 → 4.3 ms", "1,000 → 9.1 ms", "0 → 655 req/s"]
    rows = {row.record.name: row for row in ladder_figures(changed(5, failed="the server exited with code 3"))}
    assert rows["+ prediction caches"].change["comfortable"].before_ms == 4.1, "that of the last rung that ran"


def test_a_rung_that_failed_in_the_search_keeps_what_was_measured_before(tmp_path: Path) -> None:
    record = changed(6, capacity=None, capacity_failed="the server exited with code 3\n  | Killed")
    text = render_terminal(record)
    assert re.search(r"\+ prediction caches +1\.43 .* 2\.60 ", text)
    assert re.search(r"\+ prediction caches +failed in the search ", text)
    assert "the search failed: the server exited with code 3\n" in render_markdown(record)
    assert "failed in the search" in render_html(record)
    assert [figure for figure, _ in headline(record)] == ["78 → 2.6 ms", "1,000 → 4.9 ms"]
    write_json(tmp_path / "ladder.json", record)
    assert load_ladder(tmp_path / "ladder.json") == record
    written, missing = write_reports(record, tmp_path)
    assert (len(written), missing) == (3, "")


def test_cpu_time_is_left_out_where_refusals_would_make_it_look_cheap() -> None:
    lines = {
        line.split("  ")[0]: line.split()[-1]
        for line in render_terminal(sample()).partition("At 200 req/s")[2].partition("\n\n")[0].splitlines()[1:]
    }
    assert lines["pilot"] == "-"
    assert lines["+ feature cache"] != "-"
    assert "per 1,000 replies" in render_terminal(sample())
