from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tailcut.common.slo import parse_objectives
from tailcut.errors import LoadTestError
from tailcut.load import LoadPlan, RunFacts, Samples, summarise_run
from tailcut.load.payloads import build_requests
from tailcut.load.plan import check_plan, intended_times, parse_url
from tailcut.load.text import render_result
from tailcut.system.cpu_time import cpu_seconds, other_seconds, threads_ns

URL = "http://127.0.0.1:8700/predict/risk?x=1"


def test_a_url_is_taken_apart() -> None:
    target = parse_url(URL)
    assert (target.host, target.port, target.path, target.tls) == ("127.0.0.1", 8700, "/predict/risk?x=1", False)
    assert target.authority == "127.0.0.1:8700"
    assert parse_url("https://[::1]").authority == "[::1]"


@pytest.mark.parametrize(
    "url",
    ["", "ftp://x/", "http://", "http://x:99999/", "localhost:80/x", "http://x/a b", "http://x/naïve", "http://x/→"],
)
def test_a_bad_url_is_refused(url: str) -> None:
    with pytest.raises(LoadTestError):
        parse_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://bob:s3cret@h/predict",
        "http://s3cret@h/predict",
        "https://:s3cret@h:1/predict?key=s3cret",
        "http://h/a b?key=s3cret",
        "http://bob:s3cret@h:port/predict",
        "ftp://bob:s3cret@h/",
    ],
)
def test_a_url_that_is_refused_is_shown_without_its_secrets(url: str) -> None:
    with pytest.raises(LoadTestError) as caught:
        parse_url(url)
    assert "s3cret" not in caught.value.message


def test_a_user_in_a_url_is_refused_with_the_header_to_give() -> None:
    with pytest.raises(LoadTestError, match="contains a user or a password, which would not be sent") as caught:
        parse_url("http://bob:s3cret@h/predict")
    assert "--header 'Authorization: ...'" in caught.value.hint


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rate": 1.0, "ramp": (1.0, 2.0)}, "--rate and --ramp exclude each other"),
        ({"rate": 0.0}, "rate is 0"),
        ({"connections": 0}, "connections is 0"),
        ({"timeout_s": 0.0}, "timeout is 0"),
        ({"method": "head"}, "HEAD"),
        ({"headers": (("X-A", "1\r\nX-B: 2"),)}, "cannot be sent"),
        ({"headers": (("Host", "x"),)}, "cannot be sent"),
    ],
)
def test_a_plan_that_cannot_run_is_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(LoadTestError, match=says):
        check_plan(msgspec.structs.replace(LoadPlan(url=URL), **changes))


def test_a_trace_file_gives_the_times(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("# seconds\n5.0,x\n\n5.5\n6.0\n")
    assert intended_times(LoadPlan(url=URL, trace=str(trace))).tolist() == [0, 500_000_000, 1_000_000_000]
    trace.write_text("5.0\nsoon\n")
    with pytest.raises(LoadTestError, match="line 2 of"):
        intended_times(LoadPlan(url=URL, trace=str(trace)))


@pytest.mark.parametrize("speed", [1e-9, 1e-320])
def test_a_speed_that_makes_the_run_too_long_to_count_is_refused(speed: float, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("0\n100\n")
    with pytest.raises(LoadTestError, match=r"--speed .* makes the arrivals of .* last .* the limit is 9e\+09 s"):
        intended_times(LoadPlan(url=URL, trace=str(trace), speed=speed))


def test_payload_lines_become_requests_and_repeat(tmp_path: Path) -> None:
    file = tmp_path / "bodies.jsonl"
    file.write_text('{"a": 1}\n\n{"b": 2}\n')
    plan = LoadPlan(url=URL, payloads=str(file), headers=(("X-Tenant", "t"),))
    requests = build_requests(plan, parse_url(URL), 3)
    assert requests[0] == requests[2] != requests[1]
    assert requests[0] == (
        b"POST /predict/risk?x=1 HTTP/1.1\r\nHost: 127.0.0.1:8700\r\nContent-Length: 8\r\nX-Tenant: t\r\n"
        b'Content-Type: application/json\r\n\r\n{"a": 1}'
    )


def test_payloads_may_hold_infinity_and_nan(tmp_path: Path) -> None:
    file = tmp_path / "bodies.jsonl"
    file.write_text("[1e999, NaN]\n")
    (request,) = build_requests(LoadPlan(url=URL, payloads=str(file)), parse_url(URL), 1)
    assert request.endswith(b"[1e999, NaN]")


@pytest.mark.parametrize(("text", "says"), [("", "are empty"), ('{"a": 1}\n{oops\n', "line 2 of .* is not JSON")])
def test_bad_payload_files_are_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "bodies.jsonl"
    file.write_text(text)
    with pytest.raises(LoadTestError, match=says):
        build_requests(LoadPlan(url=URL, payloads=str(file)), parse_url(URL), 3)


def test_payloads_from_a_pipe_are_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "bodies.jsonl"
    os.mkfifo(pipe)
    with pytest.raises(LoadTestError, match=r"cannot be read twice.*once to send them"):
        build_requests(LoadPlan(url=URL, payloads=str(pipe)), parse_url(URL), 3)


def seeded(seed: int) -> Iterator[object]:
    yield {"seed": seed}
    yield "/other", b"[]"
    yield "text"


def wrong(seed: int) -> Iterator[object]:
    yield seed


def test_a_callable_yields_bodies_or_paths_and_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    requests = build_requests(LoadPlan(url=URL, payloads="test_load_plan:seeded", seed=7), parse_url(URL), 3)
    assert requests[0].endswith(b'{"seed":7}')
    assert requests[1].startswith(b"POST /other HTTP/1.1")
    assert requests[2].endswith(b"text")
    for reference in ("test_load_plan:missing", "no_such_module_xyz:f", "test_load_plan:wrong"):
        with pytest.raises(LoadTestError, match=r"cannot import|yielded a int"):
            build_requests(LoadPlan(url=URL, payloads=reference), parse_url(URL), 1)


def test_an_offset_goes_on_in_the_stream_of_payloads(tmp_path: Path) -> None:
    file = tmp_path / "bodies.jsonl"
    file.write_text("1\n2\n3\n")
    plan = LoadPlan(url=URL, payloads=str(file))

    def bodies(offset: int, count: int) -> list[bytes]:
        moved = msgspec.structs.replace(plan, payload_offset=offset)
        return [request[-1:] for request in build_requests(moved, parse_url(URL), count)]

    assert bodies(0, 2) == [b"1", b"2"]
    assert bodies(2, 1) == [b"3"]
    assert bodies(2, 3) == [b"3", b"1", b"2"]
    assert bodies(7, 2) == [b"2", b"3"]


def test_cpu_time_covers_the_children(tmp_path: Path) -> None:
    for pid, parent, ticks in ((10, 1, 100), (11, 10, 50), (12, 11, 25), (13, 1, 999)):
        (tmp_path / str(pid)).mkdir()
        fields = ["S", str(parent), *["0"] * 9, str(ticks), "0", "0", "0", "20", *["0"] * 6]
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a (b) c) {' '.join(fields)}\n")
    assert cpu_seconds(10, tmp_path, lambda pid: None) == pytest.approx(1.75)
    assert cpu_seconds(10, tmp_path, lambda pid: 0.001 if pid == 11 else None) == pytest.approx(1.251)
    with pytest.raises(LoadTestError, match="process 99"):
        cpu_seconds(99, tmp_path)


def test_a_process_name_that_is_cut_inside_a_letter_is_no_error(tmp_path: Path) -> None:
    """The kernel cuts names after 15 bytes; seen before: any such process on the machine ended the run."""
    (tmp_path / "10").mkdir()
    fields = ["S", "1", *["0"] * 9, "100", "0", "0", "0", "20", *["0"] * 6]
    name = "прогресс-x".encode()[:15]
    (tmp_path / "10" / "stat").write_bytes(b"10 (" + name + b") " + " ".join(fields).encode() + b"\n")
    assert cpu_seconds(10, tmp_path, lambda pid: None) == pytest.approx(1.0)


def test_cpu_time_of_others_is_without_the_own_tree_and_the_kernels_threads(tmp_path: Path) -> None:
    tick = os.sysconf("SC_CLK_TCK")
    # pid -> parent, user, system, children's user and system, in seconds
    processes = {
        1: (0, 1, 0, 0.5, 0),
        2: (0, 50, 0, 0, 0),
        30: (2, 0, 70, 0, 0),  # a thread of the kernel, such as ksoftirqd
        10: (1, 100, 0, 30, 0),
        11: (10, 200, 0, 0, 0),
        12: (11, 400, 0, 0, 0),
        20: (1, 2, 0.25, 0, 0),
    }
    for pid, (parent, *seconds) in processes.items():
        (tmp_path / str(pid)).mkdir()
        ticks = " ".join(str(int(each * tick)) for each in seconds)
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (name) S {parent} 0 0 0 0 0 0 0 0 0 {ticks} 20 0 0 0 0 0 0\n")
    steal = int(0.25 * tick)
    (tmp_path / "stat").write_text(f"cpu  1 2 3 4 5 6 7 {steal} 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n")
    assert other_seconds(10, tmp_path) == pytest.approx(1.5 + 2.25 + 0.25)
    assert other_seconds(10, tmp_path / "none") == 0.0


def test_work_of_another_process_is_seen_and_own_work_is_not() -> None:
    """A child counts as another one when this process is no part of the question."""
    burn = "import time; ends = time.process_time() + 0.21\nwhile time.process_time() < ends: pass"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        beside, own = other_seconds(other.pid), other_seconds(os.getpid())
        subprocess.run([sys.executable, "-c", burn], check=True)
        beside, own = other_seconds(other.pid) - beside, other_seconds(os.getpid()) - own
        other.communicate(b"\n")
    assert beside >= 0.2
    assert beside - own >= 0.15


def test_cpu_time_is_finer_than_the_ticks_of_proc() -> None:
    """Seen before: three variants of a build cost the same to the digit, each as many ticks of 10 ms."""
    for _ in range(20):
        before_s = cpu_seconds(os.getpid())
        begun_s = time.process_time()
        while time.process_time() - begun_s < 0.001:
            pass
        assert cpu_seconds(os.getpid()) - before_s >= 0.001


def test_threads_are_told_apart_those_of_children_too() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        try:
            found = threads_ns(os.getpid())
            assert found[threading.get_native_id()] > 0
            assert child.pid in found
        finally:
            child.kill()
    assert threads_ns(child.pid) == {}


def test_a_server_that_ended_has_no_cpu_figure_and_says_so() -> None:
    plan = LoadPlan(url=URL, pid=4711)
    result = summarise_run(plan, made_samples([200] * 3, [10.0] * 3), RunFacts(window_s=1.0))
    assert any("process 4711" in warning and "CPU" in warning for warning in result.warnings)


def made_samples(status: list[int], took_ms: list[float]) -> Samples:
    intended = np.arange(len(status), dtype=np.int64) * 10_000_000
    done = intended + (np.asarray(took_ms) * 1e6).astype(np.int64)
    return Samples(
        intended_ns=intended,
        sent_ns=intended,
        done_ns=done,
        status=np.asarray(status, dtype=np.int16),
        cache=np.zeros(len(status), np.int8),
        cache_names=("",),
        stages_ms={},
        measured_from_ns=0,
    )


def test_quick_refusals_do_not_improve_the_latency_and_time_outs_make_it_worse() -> None:
    plan = LoadPlan(url=URL, slo=parse_objectives("p95=50ms,errors=10%"))
    samples = made_samples([200, 429, 503, 500, -3, 200], [10, 1, 1, 1, 1000, 20])
    result = summarise_run(plan, samples, RunFacts(window_s=0.06))
    assert result.latency_ms is not None
    assert (result.latency_ms.count, result.latency_ms.p50, result.latency_ms.max) == (3, 20, 1000)
    assert (result.answered, result.sheds, result.errors) == (2, 2, {"timeout": 1, "status_5xx": 1})
    assert result.answered + result.sheds + sum(result.errors.values()) == result.requests
    assert "answered 2   refused 429 1, 503 1   errors timeout 1, status_5xx 1" in render_result(result)
    assert [finding.met for finding in result.findings] == [False, False]
    assert result.first_miss.startswith("p95 MISSED: no answer, limit 50 ms (4 of 6 requests were not answered")


def test_goodput_leaves_late_answers_out() -> None:
    plan = LoadPlan(url=URL, slo=parse_objectives("p95=15ms"))
    result = summarise_run(plan, made_samples([200] * 4, [10, 10, 20, 10]), RunFacts(window_s=1.0))
    assert (result.throughput_rps, result.goodput_rps) == (4.0, 3.0)


def test_replies_are_counted_whatever_they_say() -> None:
    result = summarise_run(LoadPlan(url=URL), made_samples([200, 302, 500, -3], [1] * 4), RunFacts(window_s=1.0))
    assert (result.throughput_rps, result.replied_rps) == (1.0, 3.0)


def test_a_late_generator_is_told() -> None:
    samples = made_samples([200] * 3, [10.0] * 3)
    late = msgspec.structs.replace(samples, sent_ns=samples.intended_ns + 2_000_000)
    warnings = summarise_run(LoadPlan(url=URL), late, RunFacts(window_s=1.0)).warnings
    assert any("p99 send lag 2.00 ms is above 1 ms" in warning for warning in warnings)
