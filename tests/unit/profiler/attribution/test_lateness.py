"""On one machine the way between client and server is as quick for each request: what took longer was somebody's."""

from __future__ import annotations

import pytest

from tailcut.profiler.attribution.budget import make_budget
from tailcut.profiler.attribution.gaps import READ_LATE, SENT_LATE
from tailcut.profiler.attribution.span_table import STAGES
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.records import Moment, ProfiledProcess, RecordedRequest, RecordedSpan, Recording, Stage
from tailcut.report.profile.document import bottleneck

_US = 1000
SENT_US, THERE_US, WORK_US, BACK_US = 20, 100, 2000, 80
COUNT = 44


def recording(
    *,
    sent_us: int = 0,
    there_us: int = 0,
    back_us: int = 0,
    pilot: ProfiledProcess | None = None,
    moments: bool = False,
) -> Recording:
    """Every other request is later by so much."""
    requests, held = [], []
    for number in range(COUNT):
        late = number % 2
        start = number * 100_000 * _US
        sent = start + (SENT_US + late * sent_us) * _US
        entered = sent + (THERE_US + late * there_us) * _US
        left = entered + WORK_US * _US
        done = left + (BACK_US + late * back_us) * _US
        span = RecordedSpan(stage=Stage.CODE, label="predict", place="app.py:9", start_ns=entered, end_ns=left)
        requests.append(
            RecordedRequest(
                number=number, intended_ns=start, sent_ns=sent, entered_ns=entered, left_ns=left, done_ns=done,
                status=200, spans=(span,),
            )
        )  # fmt: skip
        held.append(Moment(stage=Stage.LOOP, start_ns=sent, end_ns=sent + there_us // 2 * _US, label="flush"))
    return Recording(
        target="app:app", rate=10.0, duration_s=4.0, requests=tuple(requests),
        moments=tuple(held) if moments else (), pilot=ProfiledProcess(loop="uvloop") if pilot is None else pilot,
    )  # fmt: skip


def stages_us(one: Recording, number: int) -> dict[str, float]:
    found = attribute(one).stage_ns[number]
    return {str(stage): took / _US for stage, took in zip(STAGES, found.tolist(), strict=True) if took}


def culprits(one: Recording) -> dict[str, float]:
    return {each.label: round(each.near_ms, 3) for each in make_budget(one).culprits}


def test_what_the_server_did_not_begin_is_no_network() -> None:
    """Without a known callback too, as on uvloop, where none is known."""
    late = recording(there_us=5000)
    usual = {"network": SENT_US + THERE_US + BACK_US, "code": WORK_US}
    assert stages_us(late, 0) == usual
    assert stages_us(late, 1) == {**usual, "accept": 5000}
    assert culprits(late)["sent, but the server had not begun: its event loop was busy, or had no core"] == 5.0


def test_what_is_known_to_have_held_the_loop_counts_once() -> None:
    """Half of it; the rest of what is beyond the way is the same wait."""
    assert stages_us(recording(there_us=5000, moments=True), 1)["accept"] == 5000


def test_what_the_load_generator_was_late_has_its_name() -> None:
    """It stays where it was, on the client's side; the report says whose it is."""
    for changed, label in (({"sent_us": 9000}, SENT_LATE), ({"back_us": 9000}, READ_LATE)):
        late = recording(**changed)
        assert stages_us(late, 1)["network"] == 9000 + SENT_US + THERE_US + BACK_US
        assert culprits(late)[label] == pytest.approx(9.0, abs=0.03)
        assert culprits(late)["between client and server"] == pytest.approx(0.18, abs=0.03)
        said = bottleneck(make_budget(late))
        assert "81 % of the p95 request is the load generator's own lateness, not the application's" in said
        assert said.endswith("(9.02 of 11.2 ms).")


def test_over_a_real_network_nobody_knows_whose_it_is() -> None:
    """Only that it was sent late is known of a URL, too."""
    late = recording(there_us=5000, back_us=3000, sent_us=1000, pilot=ProfiledProcess())
    assert stages_us(late, 1) == {"network": 9000 + SENT_US + THERE_US + BACK_US, "code": WORK_US}
    found = culprits(late)
    assert found[SENT_LATE] == pytest.approx(1.02)
    assert READ_LATE not in found
    assert bottleneck(make_budget(late)).startswith("82 % of the p95 request is on the way between client and server")
