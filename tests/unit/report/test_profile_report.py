"""A profile as text, JSON and page, from a small made-up recording whose bottleneck is known."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from tests.unit.profiler import profile_sample

from tailcut.common.slo import Objectives, parse_objectives
from tailcut.errors import LoadTestError
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.payloads.diversity import read_diversity
from tailcut.profiler.records import RecordedRequest, Recording, Stage
from tailcut.report.document import Area, terminal
from tailcut.report.files import write_json
from tailcut.report.html import html
from tailcut.report.profile.document import bottleneck, felt, flame_graph, ms, percent, profile_document, rate
from tailcut.report.profile.json import ProfileReport, load_report, make_report
from tailcut.report.profile.shapes import Frame, LatencyColumn, columns_of, spans_tree, stacks_tree, tree_of
from tailcut.report.style import STAGES

SLO = "p95=25ms,errors=0.1%"


def render_profile(report: ProfileReport) -> str:
    return terminal(profile_document(report, longest=60))


def render_profile_html(report: ProfileReport) -> str:
    return html(profile_document(report))


def report(recording: Recording, slo: str = SLO, kind: str = "pilot") -> ProfileReport:
    bodies = (b'{"entities": [%d], "kind": "x"}' % (number % 40) for number in range(400))
    return make_report(
        recording,
        kind=kind,  # type: ignore[arg-type]
        slo=parse_objectives(slo) if slo else Objectives(),
        created="2026-01-01 12:00 UTC",
        tailcut="0.1.0",
        command="tailcut profile pilot:app",
        advice=profile_sample.advice() if slo else None,
        diversity=read_diversity(((number / 50, body) for number, body in enumerate(bodies)), timed=False),
        layers=(profile_sample.layers(),),
        notes=("a note of ours",),
    )


@pytest.fixture(scope="module")
def made() -> ProfileReport:
    return report(profile_sample.recording())


def test_the_bottleneck_is_named_with_its_line_and_what_samples_saw_inside(made: ProfileReport) -> None:
    said = bottleneck(made.budget)
    assert re.match(r"\d\d % of the p95 request is your own code: recompute \(features\.py:60\)", said)
    assert "of the samples (1327) are in rolling_mean (features.py:71)" in said


def test_the_text_holds_what_a_reader_needs(made: ProfileReport) -> None:
    text = render_profile(made)
    for part in (
        "Profile of pilot:app",
        "396: requests answered, 4 failed",
        "SLO p95 MISSED",
        "SLO errors MISSED: 1 %",
        "SELECT * FROM flights WHERE id = ? at features.py:42",
        "whole request",
        "Tracing is part of these figures: it took about 0.25 ms of CPU a request",
        "Hooked: fastapi, sqlite3, torch.",
        "note: redis is imported before the hooks: its calls are not seen",
        "note: a note of ours",
        "always the same: kind",
        "INT8 addresses 50 % of its time",
        "not here: no CUDA device",
    ):
        assert part in text
    assert "\x1b" not in text
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_what_a_cache_of_some_entries_would_have_answered_stands_in_text_and_page(made: ProfileReport) -> None:
    """Forty entities in turn: one that holds sixteen has always dropped the next, and one of a hundred holds all."""
    lines = render_profile(made).splitlines()
    at = lines.index("The same by how many entries the cache holds")
    assert lines[at + 1].split() == ["asked", "for", "16", "entries", "all"], "no size that is more than there are"
    row = next(line for line in lines[at + 2 :] if line.startswith("entities[]"))
    assert row.split()[1:] == ["0", "%", "90", "%"]
    assert "<h3>The same by how many entries the cache holds</h3>" in render_profile_html(made)


def test_where_requests_are_felt_differently_the_shares_are_told(made: ProfileReport) -> None:
    shares = {"instant": 0.7, "noticed": 0.25, "slow": 0.05, "focus lost": 0.0}
    budget = msgspec.structs.replace(made.budget, perception=shares)
    assert felt(budget).endswith("; of all requests 70 % instant, 25 % noticed, 5.0 % slow")
    alike = msgspec.structs.replace(made.budget, perception={"instant": 1.0, "noticed": 0.0})
    assert "of all requests" not in felt(alike)


def test_levers_stand_in_their_order_with_what_they_rest_on(made: ProfileReport) -> None:
    text = render_profile(made)
    assert text.index("What to do\n") < text.index("Where the time goes")
    rows = [line.split() for line in text.splitlines()]
    wanted = ["1.", "feature", "cache", "9", "to", "12", "4.00", "9", "to", "12", "310", "yes:"]
    assert any(row[: len(wanted)] == wanted for row in rows)
    assert any(
        row[:6] == ["INT8", "28.1", "to", "28.4", "27.0", "-"] and "no: the model is 6 %" in " ".join(row)
        for row in rows
    )
    assert "feature cache rests on: 62 % hits, as the payloads repeat" in text
    assert "somewhere else" not in text  # what is left alone needs no ground
    assert "other processes used 3% of this machine's cores meanwhile" in text
    assert "two queries and the code around them go" in render_profile_html(made)


def test_a_doubt_stands_above_the_levers_that_it_is_about(made: ProfileReport) -> None:
    """And not only at the end."""
    assert made.advice is not None
    assert "doubtful" not in render_profile(made)
    doubted = msgspec.structs.replace(made.advice, doubts=("the <simulation> is off",))
    told = msgspec.structs.replace(made, advice=doubted)
    text = render_profile(told)
    title, doubt = text.index("What each lever can win"), text.index("doubtful: the <simulation> is off\n")
    assert title < doubt < text.index("as it is")
    page = render_profile_html(told)
    assert page.index("doubtful: the &lt;simulation&gt; is off") < page.index("as it is")


def test_without_advice_there_is_no_table_of_levers() -> None:
    made = msgspec.structs.replace(report(profile_sample.recording(40)), advice=None)
    assert "lever" not in render_profile(made)
    assert "lever" not in render_profile_html(made)


def test_shares_near_the_p95_add_up(made: ProfileReport) -> None:
    assert sum(line.near_share for line in made.budget.lines) == pytest.approx(1.0)
    assert made.spans.value == pytest.approx(made.budget.near_ms)


def test_without_an_slo_nothing_is_judged() -> None:
    made = report(profile_sample.recording(60), slo="")
    assert made.met
    assert "SLO" not in render_profile(made)
    assert "SLO" not in render_profile_html(made)


def test_what_failed_altogether_is_still_a_report() -> None:
    failed = tuple(
        RecordedRequest(number=number, intended_ns=number, sent_ns=number, done_ns=number + 5, status=500)
        for number in range(3)
    )
    made = report(Recording(target="pilot:app", rate=1.0, duration_s=3.0, requests=failed))
    assert "no request was answered" in render_profile(made)
    assert "requests answered, 3 failed" in render_profile_html(made)
    assert not made.met


def test_the_file_gives_the_same_report(made: ProfileReport, tmp_path: Path) -> None:
    write_json(tmp_path / "new" / "profile.json", made)
    again = load_report(tmp_path / "new" / "profile.json")
    assert again == made
    assert render_profile_html(again) == render_profile_html(made)


@pytest.mark.parametrize(("content", "text"), [(b"{}", "cannot read"), (b"[1]", "cannot read"), (b"{", "cannot read")])
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, content: bytes, text: str) -> None:
    (tmp_path / "other.json").write_bytes(content)
    with pytest.raises(LoadTestError, match=text):
        load_report(tmp_path / "other.json")
    with pytest.raises(LoadTestError, match="cannot write"):
        write_json(tmp_path, report(profile_sample.recording(20)))


def test_a_profile_of_another_version_is_to_be_made_again(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text('{"schema": 2}')
    with pytest.raises(LoadTestError, match="has schema 2, but this tailcut reads 3") as caught:
        load_report(tmp_path / "old.json")
    assert caught.value.hint == "run `tailcut profile --json` again"


def test_the_page_stands_alone_and_is_well_formed(made: ProfileReport) -> None:
    page = render_profile_html(made)
    assert "<script" not in page
    assert not re.findall(r'(?:src|href)="(?!#)|url\((?!#)|@import', page)
    assert "&lt;script&gt;" in page  # a function's name is text
    svgs = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(svgs) == 3
    for svg in svgs:
        ElementTree.fromstring(svg)


def test_every_stage_has_a_colour() -> None:
    assert set(STAGES) == set(map(str, Stage))


def plot_of(report: ProfileReport) -> tuple[str, Area]:
    section = next(one for one in profile_document(report).sections if one.title == "All requests")
    (chart,) = section.charts
    assert isinstance(chart, Area)
    return section.text, chart


def test_the_plot_has_a_band_per_stage_and_the_limits_that_are_near(made: ProfileReport) -> None:
    text, chart = plot_of(made)
    names = [name for name, _ in chart.bands]
    assert {"sql", "code", "accept"} <= set(names)
    assert "http" not in names
    assert list(chart.limits) == ["SLO p95 25 ms"]
    assert len(chart.edges) == len(made.columns) + 1
    assert "are higher, up to" in text
    means = [sum(values) for values in zip(*chart.bands.values(), strict=True)]
    assert means == pytest.approx([column.mean_ms for column in made.columns])
    assert "All requests" not in render_profile_html(msgspec.structs.replace(made, columns=()))


def test_a_few_requests_of_a_second_do_not_flatten_the_others(made: ProfileReport) -> None:
    columns = [
        LatencyColumn(from_share=n / 100, to_share=(n + 1) / 100, count=1, max_ms=10.0, stages_ms={"code": 10.0})
        for n in range(97)
    ]
    columns += [
        LatencyColumn(from_share=n / 100, to_share=(n + 1) / 100, count=1, max_ms=900.0, stages_ms={"gc": 900.0})
        for n in range(97, 100)
    ]
    text, chart = plot_of(msgspec.structs.replace(made, columns=tuple(columns), slo="p95=15ms"))
    assert text.endswith("The slowest 3 are higher, up to 900 ms.")
    assert list(chart.limits) == ["SLO p95 15 ms"]
    assert 15 < chart.top < 100


def test_columns_are_sorted_and_hold_every_request_once() -> None:
    found = attribute(profile_sample.recording())
    columns = columns_of(found, most=50)
    assert len(columns) == 50
    assert sum(column.count for column in columns) == 396
    assert [column.mean_ms for column in columns] == sorted(column.mean_ms for column in columns)
    whole_ms = sum(column.mean_ms * column.count for column in columns)
    assert whole_ms == pytest.approx(found.flat.wall_ns.sum() / 1e6, rel=1e-5)
    assert len(columns_of(found)) == 200


def test_spans_nest_as_they_ran() -> None:
    root = spans_tree(attribute(profile_sample.recording()))
    (framework,) = (frame for frame in root.children if frame.style == "framework")
    names = [frame.name for frame in framework.children]
    assert names[0] == "recompute (features.py:60)"
    assert "SELECT * FROM flights WHERE id = ? (features.py:42)" in names
    assert {"accept", "network"} <= {frame.style for frame in root.children}


def test_samples_nest() -> None:
    root = stacks_tree(profile_sample.recording(20).samples)
    (handler,) = root.children
    (recompute,) = handler.children
    assert recompute.name == "recompute (features.py:60)"
    assert root.value == pytest.approx(sum(frame.value for frame in recompute.children))
    assert [frame.name for frame in recompute.children] == [
        "rolling_mean (features.py:71)",
        "as_row <script> (features.py:88)",
    ]


def test_what_is_too_narrow_to_be_seen_is_left_out_and_still_counts() -> None:
    tree = tree_of({(("wide", ""),): 999.0, (("narrow", ""),): 1.0}, "all")
    assert ([frame.name for frame in tree.children], tree.value) == (["wide"], 1000.0)
    assert flame_graph(Frame(name="nothing", value=0.0)) == ""


def test_figures_are_written_as_people_read_them() -> None:
    assert [ms(value) for value in (0.0042, 0.5, 9.994, 12.34, 99.96, 1234.5)] == [
        "0.004", "0.50", "9.99", "12.3", "100", "1234",
    ]  # fmt: skip
    assert [rate(value) for value in (None, 3.25, 310.4, 1200.0)] == ["-", "3.2", "310", "1,200"]
    assert [percent(share) for share in (0.0, 0.004, 0.5, 1.0)] == ["0 %", "0.4 %", "50 %", "100 %"]


def test_the_file_is_plain_json(made: ProfileReport) -> None:
    """For programs: the names of the fields are the contract."""
    plain = msgspec.json.decode(msgspec.json.encode(made))
    assert plain["schema"] == 3
    assert {"stage", "p50_ms", "p95_ms", "p99_ms", "near_ms", "near_share"} <= set(plain["budget"]["lines"][0])
    assert plain["budget"]["findings"][0]["objective"] == "p95"
