"""What the benchmarks work out from what they measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from benchmarks.openloop import BURST_S, figures, ideals_within, write_bursts
from benchmarks.peers.bodies import Shape, body_of, first_number
from benchmarks.peers.report import render, shares
from benchmarks.reload_report import BAR
from benchmarks.reload_report import render as render_reload
from benchmarks.soak import growth

from tailcut.load import Samples

ROW = np.array([1.5, -2.0, 0.25], np.float32)


def samples(took_ms: list[float], status: list[int], every_s: float = 0.1) -> Samples:
    intended = (np.arange(len(took_ms)) * every_s * 1e9).astype(np.int64)
    done = intended + (np.array(took_ms) * 1e6).astype(np.int64)
    return Samples(
        intended_ns=intended,
        sent_ns=intended,
        done_ns=done,
        status=np.array(status, np.int16),
        cache=np.zeros(len(took_ms), np.int8),
        cache_names=("",),
        stages_ms={},
        measured_from_ns=int(every_s * 1e9),  # the first is warm-up
    )


def test_every_request_of_the_window_is_counted_once() -> None:
    seen = figures(
        samples([1, 10, 40, 600, 5, 2000], [200, 200, 200, 200, 429, -1]), seconds=0.5, limit_ms=20, deadline_ms=500
    )
    assert seen["requests"] == 5
    assert seen["within_limit"] == pytest.approx(1 / 5)
    assert seen["refused"] == pytest.approx(1 / 5)
    assert seen["failed"] == pytest.approx(1 / 5)
    assert seen["good_rps"] == pytest.approx(2 / 0.5)
    assert seen["missed"] == pytest.approx(2 / 4)  # 600 ms late, and the one that never came
    assert seen["refused_p99_ms"] == pytest.approx(5)


def test_an_ideal_server_is_late_only_where_it_must_be() -> None:
    calm = samples([0.0] * 10, [200] * 10, every_s=0.1)
    assert ideals_within(calm, capacity_rps=20, limit_ms=51) == (1.0, 1.0)
    rushed = samples([0.0] * 10, [200] * 10, every_s=0.05)
    first, best = ideals_within(rushed, capacity_rps=10, limit_ms=201)
    assert first == pytest.approx(2 / 9)  # 150, 200, then 250 ms and more
    assert best == pytest.approx(5 / 9)  # 150, 200, then every second is turned away


def test_bursts_are_silent_every_other_quarter_of_a_second(tmp_path: Path) -> None:
    times = np.loadtxt(write_bursts(tmp_path / "trace", 100.0, 20.0, seed=3))
    assert np.all(np.diff(times) >= 0)
    assert np.all(times % (2 * BURST_S) <= BURST_S)
    assert 1700 <= times.size <= 2300


@pytest.mark.parametrize(("form", "answer"), [
    ("row", b'{"y": [0.5, 1]}'),
    ("rows", b"[[0.5]]"),
    ("oip", b'{"outputs":[{"name":"y","shape":[1,1],"data":[0.5]}]}'),
    ("binary", b'{"outputs":[]}' + np.array([0.5], "<f4").tobytes()),
    ("binary", b'{"outputs":[]}' + np.array([0.5], "<f4").tobytes() + b"}}}}"),
])  # fmt: skip
def test_the_first_number_of_every_form_of_answer(form: str, answer: bytes) -> None:
    assert first_number(answer, form) == 0.5


def test_a_binary_body_is_its_json_and_then_the_rows() -> None:
    body, headers = body_of("binary", Shape([("x", "FP32"), ("mask", "FP32")], ROW))
    at = int(headers["inference-header-content-length"])
    assert [each["name"] for each in json.loads(body[:at])["inputs"]] == ["x", "mask"]
    assert np.frombuffer(body[at:], "<f4").tolist() == [*ROW.tolist(), 1.0, 1.0, 1.0]


def test_growth_is_of_the_time_after_the_warm_up() -> None:
    looks = [{"at_s": at, "rss_bytes": 100.0 + min(at, 60), "threads": 5.0} for at in np.arange(0.0, 1800.0, 10.0)]
    found = growth(looks)
    assert found["rss_bytes"]["growth"] == pytest.approx(0)
    assert found["slope_per_hour"] == pytest.approx(0, abs=1e-9)
    leaking = [{**look, "rss_bytes": 100.0 * (1 + look["at_s"] / 3600)} for look in looks]
    low, high = growth(leaking)["slope_interval"]
    assert 0.8 < low <= high < 1.1


def test_a_server_that_did_not_run_is_a_row_that_says_why() -> None:
    figure = {"rps": 100.0, "p50_us": 90.0, "p99_us": 200.0, "errors": 0}
    ran = {"package": "p", "version": "1", "setting": "s", "failure": "", "rounds": [{"32": figure, "1": figure}]}
    result = {
        "command": "c", "commit": "1", "date": "d", "cpu": "x", "python": "3", "onnxruntime": "1", "seconds": 1,
        "load_average": {"before": 0.0, "after": 0.0}, "bare": [{"decode_us": 1.0, "run_us": 2.0}],
        "servers": [
            {**ran, "name": "no-op"}, {**ran, "name": "tailcut"},
            {**ran, "name": "Other", "failure": "not installed: pip failed", "rounds": []},
        ],
    }  # fmt: skip
    text = render(result)
    assert "| Other | not measured: see the notes |" in text
    assert "Other is not in the tables: not installed: pip failed" in text
    assert shares(result["servers"][1], result["servers"][0], "32") == [1.0]


def test_a_reload_says_what_failed_requests_were_told_and_what_the_machine_took() -> None:
    kind = {
        "capacity_rps": 200.0, "rate_rps": 100.0, "requests": 9, "errors": 1, "said": {"429": '{"error":\n "late"}'},
        "taken_at_s": [[1.0, 20, 0], [2.0, 0, 10], [3.0, 30, 0]],
        "switches": [{"took_s": 0.5, "before_ms": [1.0, 2.0], "during_ms": [1.0, 2.0]}] * 2,
    }  # fmt: skip
    result = {
        "command": "c", "commit": "1", "date": "d", "cpu": "x", "python": "3", "label": "a model",
        "load_average": {"before": 0.0, "after": 0.0}, "kinds": {"scaling": kind},
    }  # fmt: skip
    text = render_reload({"mlp": result})
    assert '- scaling: status 429 said `{"error": "late"}`.' in text
    assert "the hypervisor took 50 ms of the server's core and 10 ms of the load's" in text


def reloads(during_ms: float, errors: int = 0, switches: int = 20) -> str:
    draw = np.random.default_rng(0)
    spread = [(draw.normal(10.0, 0.5, 60), draw.normal(during_ms, 0.5, 40)) for _ in range(switches)]
    kind = {
        "capacity_rps": 200.0, "rate_rps": 100.0, "requests": 8000, "errors": errors,
        "switches": [
            {"took_s": 0.5, "before_ms": before.tolist(), "during_ms": during.tolist()} for before, during in spread
        ],
    }  # fmt: skip
    result = {
        "command": "c", "commit": "1", "date": "d", "cpu": "x", "python": "3", "label": "a model",
        "load_average": {"before": 0.0, "after": 0.0}, "kinds": {"reload": kind},
    }  # fmt: skip
    return next(line for line in render_reload({"mlp": result}).splitlines() if line.startswith("| reload"))


def test_a_reload_meets_its_bar_by_the_interval_and_without_an_error() -> None:
    assert BAR == 1.3
    alike = reloads(10.0)
    assert alike.endswith("| met |")
    assert re.search(r"\| (1\.0|0\.9)\d \(0\.9\d to 1\.0\d\) \|", alike)
    assert reloads(10.0, errors=1).endswith("| **missed** |")
    assert reloads(15.0).endswith("| **missed** |")
