"""The generator against servers whose behaviour is known."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.integration.servers import load_stub
from tests.scale import sized

from tailcut.common.slo import parse_objectives
from tailcut.errors import LoadTestError
from tailcut.load import (
    LoadPlan,
    Progress,
    SearchLimits,
    find_capacity,
    load_samples,
    measure,
    run,
    save_samples,
    summarise_run,
)

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, int]]:
    """Base URL and process id of a stub server."""
    with load_stub() as running:
        yield running


def plan(server: tuple[str, int], path: str, **changes: object) -> LoadPlan:
    base = LoadPlan(url=server[0] + path, rate=200.0, arrivals="constant", duration_s=0.5, warmup_s=0.2, timeout_s=10.0)
    return msgspec.structs.replace(base, **changes)


@pytest.mark.quiet
def test_a_known_delay_is_measured(server: tuple[str, int]) -> None:
    result = run(plan(server, "/delay/20", duration_s=1.0))
    assert (result.requests, result.answered, result.errors) == (200, 200, {})
    assert result.latency_ms is not None
    assert 19.0 <= result.latency_ms.p50 <= 35.0
    assert result.throughput_rps == pytest.approx(200, rel=0.1)
    assert result.latency_ms.p50 <= result.latency_ms.p95 <= result.latency_ms.p999 <= result.latency_ms.max


def bodies_with_a_stall(seed: int) -> Iterator[tuple[str, bytes]]:
    for index in range(100):
        yield ("/stall/400" if index == 50 else "/delay/0"), b"{}"


@pytest.mark.quiet
def test_waiting_behind_a_stalled_server_counts(server: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed loop would see one slow request; from the intended times all those that met the stall are slow."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    stalled = plan(server, "/", rate=100.0, duration_s=1.0, warmup_s=0.0, payloads="test_load:bodies_with_a_stall")
    samples, facts = measure(stalled)
    result = summarise_run(stalled, samples, facts)
    took_ms = (samples.done_ns - samples.intended_ns) / 1e6
    assert result.answered == 100
    assert took_ms[50] >= 395
    assert (took_ms[50:90] > 5).sum() >= 35
    behind = np.arange(51, 85)
    expected_ms = 400 - (behind - 50) * 10.0
    assert (took_ms[behind] >= expected_ms - 15).all()
    assert result.lag_ms is not None
    assert result.lag_ms.p90 < 50, "sending must go on while the server stalls"


@pytest.mark.quiet
def test_no_request_waits_for_a_connection(server: tuple[str, int]) -> None:
    result = run(plan(server, "/delay/200", rate=100.0, duration_s=0.5, warmup_s=0.0))
    assert result.connections_opened >= 20
    assert result.delayed_by_cap == 0
    assert result.latency_ms is not None
    assert result.latency_ms.max < 350


def test_the_cap_on_connections_delays_and_is_counted(server: tuple[str, int]) -> None:
    result = run(plan(server, "/delay/50", rate=50.0, duration_s=0.5, warmup_s=0.0, connections=1, timeout_s=10.0))
    assert result.connections_opened == 1
    assert result.answered == 25
    assert result.delayed_by_cap >= 20
    assert result.latency_ms is not None
    assert result.latency_ms.max >= 700  # 25 requests of 50 ms, the last one due at 480 ms
    assert any("one of 1" in warning for warning in result.warnings)


def test_a_connection_closed_on_a_written_request_is_an_eof(server: tuple[str, int]) -> None:
    result = run(plan(server, "/eof", rate=100.0))
    assert result.errors == {"eof": 50}
    assert result.answered == 0
    assert result.latency_ms is None


def test_what_was_written_to_a_connection_that_had_been_closed_is_sent_again(server: tuple[str, int]) -> None:
    result = run(plan(server, "/second", rate=100.0, warmup_s=0.0, connections=1))
    assert (result.answered, result.errors, result.sent_again) == (50, {}, 49)
    assert result.connections_opened == 50
    assert any(warning.startswith("49 requests were sent twice because the server") for warning in result.warnings)


def test_what_no_connection_answers_is_sent_again_only_once() -> None:
    with load_stub() as fresh:
        result = run(plan(fresh, "/first", rate=100.0, warmup_s=0.0))
    assert (result.answered, result.errors, result.sent_again) == (1, {"eof": 49}, 1)


def test_what_the_server_had_in_hand_for_a_while_when_it_crashed_has_failed(server: tuple[str, int]) -> None:
    result = run(plan(server, "/crash/250", rate=20.0, warmup_s=0.0, timeout_s=5.0))
    assert result.sent_again == 0
    assert result.errors["eof"] + result.answered == 10
    assert result.errors["eof"] >= 4


def test_what_could_not_be_sent_again_was_not_and_ended_with_its_own_connection() -> None:
    with load_stub() as fresh:
        result = run(plan(fresh, "/gone", rate=100.0, warmup_s=0.0))
    assert (result.answered, result.sent_again) == (1, 0)
    assert result.errors["eof"] >= 1
    assert result.errors["eof"] + result.errors["connect"] == 49
    assert not any("sent twice" in warning for warning in result.warnings)


def test_connection_close_is_respected_and_loses_nothing(server: tuple[str, int]) -> None:
    result = run(plan(server, "/close"))
    assert (result.answered, result.errors) == (100, {})
    assert result.connections_opened >= 100


def test_a_reply_without_a_length_ends_with_the_connection(server: tuple[str, int]) -> None:
    result = run(plan(server, "/until-eof", rate=100.0))
    assert (result.answered, result.errors) == (50, {})


@pytest.mark.parametrize(
    ("path", "sheds", "errors"),
    [
        ("/status/429", 50, {}),
        ("/status/503", 50, {}),
        ("/status/500", 0, {"status_5xx": 50}),
        ("/garbage", 0, {"protocol": 50}),
        ("/hang", 0, {"timeout": 50}),
    ],
)
def test_failures_are_told_apart(server: tuple[str, int], path: str, sheds: int, errors: dict[str, int]) -> None:
    result = run(plan(server, path, rate=100.0, timeout_s=0.3 if path == "/hang" else 10.0))
    assert (result.requests, result.answered, result.sheds, result.errors) == (50, 0, sheds, errors)


def test_a_time_out_counts_as_a_latency_of_at_least_its_length(server: tuple[str, int]) -> None:
    result = run(plan(server, "/hang", rate=100.0, timeout_s=0.2))
    assert result.latency_ms is not None
    assert result.latency_ms.p50 >= 200


def test_server_timing_and_cache_outcomes_are_read(server: tuple[str, int]) -> None:
    result = run(plan(server, "/timing"))
    assert {name: shape.p50 for name, shape in result.stages_ms.items()} == {"queue": 1.5, "infer": 2.5, "total": 4.0}
    assert result.cache == {"hit": 100}
    assert result.cache_total_ms["hit"].p99 == 4.0


@pytest.mark.quiet
def test_cpu_time_of_the_server_is_measured(server: tuple[str, int]) -> None:
    result = run(plan(server, "/delay/0", rate=1000.0, duration_s=1.0, pid=server[1]))
    assert result.cpu_s is not None
    assert result.cpu_s_per_1000 is not None
    assert 0.01 <= result.cpu_s <= 1.5
    assert result.cpu_s_per_1000 == pytest.approx(result.cpu_s)


def test_a_server_process_that_ends_in_the_run_costs_the_cpu_figure_and_nothing_else(server: tuple[str, int]) -> None:
    """Seen before: a server that died under load took all figures of the run with it."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        ended: list[float] = []

        def end(progress: Progress) -> None:
            if progress.elapsed_s > 0.4 and not ended:
                process.stdin.close()
                ended.append(progress.elapsed_s)
                process.wait()

        result = run(plan(server, "/delay/0", duration_s=1.0, pid=process.pid), on_progress=end)
    assert ended
    assert result.answered == result.requests
    assert result.cpu_s is None


def test_figures_come_from_the_raw_samples_alone(server: tuple[str, int], tmp_path: Path) -> None:
    what = plan(server, "/timing", slo=parse_objectives("p95=1s,errors=0%"))
    samples, facts = measure(what)
    save_samples(samples, tmp_path / "raw.npz")
    assert summarise_run(what, load_samples(tmp_path / "raw.npz"), facts) == summarise_run(what, samples, facts)


@pytest.mark.quiet
def test_capacity_of_a_server_with_a_known_service_rate(server: tuple[str, int]) -> None:
    """One request takes 10 ms, one at a time: an even pace passes up to 100/s and no further."""
    found = find_capacity(
        plan(server, "/serial/10", duration_s=sized(0.6, 1.0), timeout_s=2.0),
        parse_objectives("p90=60ms"),
        start_rate=40.0,
        limits=SearchLimits(tolerance=0.2, max_total_s=60.0),
    )
    assert 70 <= found.rate <= 110
    assert found.complete
    assert "p90" in found.limit
    assert any(step.stopped_early for step in found.steps), "a hopeless step must be ended early"


@pytest.mark.quiet
def test_shedding_is_no_capacity(server: tuple[str, int]) -> None:
    """A server that refuses fast what it cannot take meets a latency limit with what it answers, at any rate."""
    found = find_capacity(
        plan(server, "/admit/100", duration_s=sized(0.3, 0.5)),
        parse_objectives("p95=50ms"),
        limits=SearchLimits(tolerance=0.5, max_rate=800.0),
    )
    assert 0 < found.rate <= 150
    assert "were not answered" in found.limit or "failed" in found.limit


def test_nobody_listening_is_an_error_that_says_so() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(LoadTestError, match=f"cannot connect to http://127.0.0.1:{port}/") as caught:
        run(LoadPlan(url=f"http://127.0.0.1:{port}/"))
    assert "check that the server runs" in caught.value.hint


def test_tls_towards_a_plain_server_is_told_from_nobody_listening(server: tuple[str, int]) -> None:
    with pytest.raises(LoadTestError, match="cannot connect to https://") as caught:
        run(LoadPlan(url=server[0].replace("http://", "https://") + "/"))
    assert "for plain HTTP write http://" in caught.value.hint
