from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.trace_kit import MS, SLOW_MS, WALL_NS, Clock, Ended, check_nesting, ended, parent, timings

from tailcut.common.timings import STAGE_NAMES, Stage, Timings
from tailcut.observe.sinks import VariantSwitch
from tailcut.observe.traces.trace_context import RequestTrace, Tracer


def reasons(requests: list[Ended], **options: Any) -> dict[str, int]:
    sink = Clock().sink(**options)
    sink.on_requests("m", requests)
    return dict(sink.kept)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (ended(SLOW_MS + 1), "slow"),
        (ended(SLOW_MS), ""),
        (ended(code="inference_failed"), "failed"),
        (ended(code="queue_timeout"), "failed"),
        (ended(code="shed"), "shed"),
        (ended(code="bad_request"), ""),
        (ended(code="client_gone"), ""),
        (ended(cache="stale"), "stale"),
        (ended(cache="hit"), ""),
        (ended(parent=parent(flags=1)), "parent"),
        (ended(parent=parent(flags=3)), "parent"),
        (ended(parent=parent(flags=0)), ""),
        (ended(parent=parent(flags=2)), ""),
        (ended(SLOW_MS + 1, parent=parent(flags=0)), "slow"),
        (ended(parent=parent(flags=1)[:-1]), ""),
    ],
)
def test_why_a_request_is_kept(request_: Ended, reason: str) -> None:
    assert reasons([request_]) == ({reason: 1} if reason else {})


def test_the_sample_is_by_the_trace_id_and_spares_what_the_caller_left_out() -> None:
    clock = Clock()
    sink = clock.sink(share=0.1, size=5000)
    sink.on_requests("m", [ended() for _ in range(20_000)])
    assert 1700 < sink.kept["sample"] < 2300
    for found in sink.recent("slowest", 1.0, most=5000):
        assert int(found.trace_id, 16) & (2**56 - 1) >= 0.9 * 2**56, "whoever samples by the trace id keeps it, too"
        assert found.spans[0].flags & 1
    assert reasons([ended(parent=parent(flags=0)) for _ in range(1000)], share=1.0) == {}
    assert reasons([ended(parent="no traceparent")], share=1.0) == {"sample": 1}


@given(st.integers(0, 2**64), st.floats(0.0, 1.0))
def test_a_new_trace_is_sampled_by_its_id(seed: int, share: float) -> None:
    tracer = Tracer(share, Random(seed))
    for _ in range(20):
        trace = tracer.begin(None)
        low = (trace.trace_id & (2**56 - 1)) / 2**56
        if abs(low - (1.0 - share)) > 1e-12:
            assert bool(trace.flags & 1) is (low > 1.0 - share)


def test_a_trace_continues_that_of_its_caller() -> None:
    sink = Clock().sink()
    request = ended(parent=parent(0xABC, 1))
    request.headers["tracestate"] = "rojo=1, congo=2"
    request.headers["x-request-id"] = "r-1"
    sink.on_switch("m", VariantSwitch("onnx", "7"))
    sink.on_requests("m", [request])
    found = sink.find(f"{0xABC:032x}")
    assert found is not None
    assert found == sink.find("r-1")
    own = found.spans[0]
    assert (own.parent_id, own.state, own.is_remote, own.kind) == (f"{0xDEF:016x}", "rojo=1,congo=2", True, "server")
    assert own.attributes["http.route"] == "/v2/models/m/infer"
    assert own.attributes["tailcut.version"] == "7"
    assert found.started_s == pytest.approx(WALL_NS / 1e9)
    assert sink.find("r-2") is None
    assert sink.find("f" * 32) is None
    assert sink.find("x" * 32) is None


stage_times = st.lists(st.integers(0, 50 * MS), min_size=len(STAGE_NAMES), max_size=len(STAGE_NAMES))


@given(stage_times, st.lists(st.tuples(st.integers(-5, 105), st.integers(0, 105)), max_size=4), st.data())
def test_spans_nest_and_stages_sum_to_the_request_whatever_the_times(
    ns: list[int], batches: list[tuple[int, int]], data: st.DataObject
) -> None:
    sink = Clock().sink()
    request = Ended(Timings(10**12), code="internal")
    for stage, took_ns in enumerate(ns):
        request.timings.lap(stage, request.timings.last_ns + took_ns)
    request.batches = [
        (at, 2, 3, 10**12 + begin * MS, 10**12 + (begin + took) * MS) for at, (begin, took) in enumerate(batches, 1)
    ]
    request.groups = [
        (f"g{at}", *data.draw(st.tuples(st.integers(0, 2 * 10**12), st.integers(-1, 2 * 10**12))), 1, 0, 0)
        for at in range(data.draw(st.integers(0, 3)))
    ]
    sink.on_requests("m", [request])
    (found,) = sink.recent("failed", 1e9)
    check_nesting(found.spans)
    assert found.duration_ms == pytest.approx(sum(ns) / 1e6)


def test_queue_batch_and_model_are_told_apart_by_when_the_executor_began() -> None:
    sink = Clock().sink()
    start_ns = 10**12
    request = ended(0, start_ns=start_ns)
    request.timings = timings(start_ns, receive=10)
    request.timings.waited(30 * MS, start_ns + 90 * MS)  # 10 to 90 ms: 30 ms of the model, 50 of queueing
    request.batches = [(5, 3, 12, start_ns + 50 * MS, start_ns + 80 * MS)]
    neighbour = ended(SLOW_MS + 1, batches=request.batches)
    fast = ended(1, batches=request.batches)
    sink.on_requests("m", [request, neighbour, fast])
    (found, _) = sink.recent("slowest", 1.0)
    spans = {span.name: span for span in found.spans}
    at_ms = {name: ((span.start_ns - WALL_NS) / MS, (span.end_ns - WALL_NS) / MS) for name, span in spans.items()}
    assert at_ms["queue"] == (10, 50)
    assert at_ms["batch"] == (50, 90), "until the event loop took the answer back"
    assert at_ms["model"] == (50, 80)
    assert (found.batch_requests, found.batch_rows) == (3, 12)
    (mate,) = found.batch
    assert mate.duration_ms == pytest.approx(SLOW_MS + 1)
    to_batch, to_neighbour = spans["batch"].links
    assert (to_batch.what, to_neighbour.what) == ("batch", "neighbour")
    assert to_neighbour.trace_id == mate.trace_id
    other = sink.find(mate.trace_id)
    assert other is not None
    assert to_batch in next(span for span in other.spans if span.name == "batch").links, "the same for all members"


def test_a_group_says_how_it_was_had() -> None:
    sink = Clock().sink()
    start_ns = 10**12
    request = ended(0, code="feature_timeout")
    request.timings = timings(start_ns, receive=1, features=20)
    request.groups = [
        ("a", 0, 0, 2, 0, 0),
        ("b", start_ns + 2 * MS, start_ns + 9 * MS, 1, 1, 0),
        ("c", start_ns + 2 * MS, start_ns + 9 * MS, 0, 1, 1),
        ("d", start_ns + 2 * MS, -1, 0, 1, 0),
    ]
    sink.on_requests("m", [request])
    (found,) = sink.recent("failed", 1.0)
    groups = {str(span.attributes["tailcut.feature.group"]): span for span in found.spans if "feature " in span.name}
    results = [groups[name].attributes["tailcut.feature.result"] for name in "abcd"]
    assert results == ["hit", "miss", "stale", "error"]
    assert [groups[name].duration_ns // MS for name in "abcd"] == [20, 7, 7, 19]
    assert {span.parent_id for span in groups.values()} == {
        next(span.span_id for span in found.spans if span.name == "features")
    }


def test_a_request_to_another_model_is_part_of_its_callers_trace_and_has_it_kept() -> None:
    sink = Clock().sink()
    for slow_ms, kept in ((5.0, 0), (SLOW_MS + 1, 1)):
        trace = sink.tracer.begin(None)
        asking = ended(10.0, trace=trace)
        child = ended(slow_ms, route="features", trace=RequestTrace(trace.trace_id, 9, 8, 0, "", trace))
        trace.calls.append(("child", child))
        inmost = RequestTrace(trace.trace_id, 10, 9, 0, "", child.origin.trace)
        child.origin.trace.calls.append(("inmost", ended(1.0, route="features", trace=inmost)))
        sink.on_requests("child", [child])
        assert sum(sink.kept.values()) == 0, "it comes with its caller"
        sink.on_requests("m", [asking])
        assert sink.kept["slow"] == kept
        assert not trace.calls
        assert not child.origin.trace.calls
    (found,) = sink.recent("slowest", 1.0)
    inner = [span for span in found.spans if span.attributes.get("tailcut.model") == "child"]
    assert [(span.trace_id, span.parent_id) for span in inner] == [(found.trace_id, f"{8:016x}")]
    late = ended(SLOW_MS + 1, trace=RequestTrace(trace.trace_id, 11, 8, 0, "", trace))
    sink.on_requests("child", [late])
    assert sink.kept["slow"] == 2, "its caller ended before it"


def test_a_flood_of_one_reason_leaves_the_others_in_place_and_is_limited() -> None:
    clock = Clock()
    sink = clock.sink(size=64)
    sink.on_requests("m", [ended(SLOW_MS + 1) for _ in range(8)])
    for _ in range(60):
        clock.now_ns += 10**9
        sink.on_requests("m", [ended(code="shed", start_ns=clock.now_ns) for _ in range(1000)])
    assert len(sink.recent("slowest", 2.0, most=100)) == 8
    assert len(sink.recent("failed", 2.0, most=100)) == 56
    assert sink.kept["shed"] + sink.limited["shed"] == 60_000
    assert sink.kept["shed"] <= 500 + 60 * 100
    assert len(sink.ring._by_id) == 64


def test_what_was_forgotten_is_found_no_more_and_nothing_of_it_is_held() -> None:
    clock = Clock()
    sink = clock.sink(size=16)
    for number in range(200):
        request = ended(parent=parent(number + 1), batches=[(number // 4 + 1, 4, 4, 1, 2)])
        request.headers["x-request-id"] = f"r{number}"
        sink.on_requests("m", [request])
    assert [sink.find(f"r{number}") is not None for number in (0, 183, 184, 199)] == [False, False, True, True]
    assert len(sink.ring._by_id) == 32
    assert sum(map(len, sink.ring._by_batch.values())) == 16


def test_a_step_of_the_clock_moves_whole_traces() -> None:
    clock = Clock()
    sink = clock.sink()
    sink.on_requests("m", [ended(SLOW_MS + 1)])
    clock.wall_ns -= 3600 * 10**9
    clock.now_ns += 11 * 10**9
    sink.on_requests("m", [ended(SLOW_MS + 1)])
    for found in sink.recent("slowest", 1.0):
        check_nesting(found.spans)
    first, second = sorted(found.started_s for found in sink.recent("slowest", 1.0))
    assert second - first == pytest.approx(3611)


def test_stages_have_the_names_of_the_timings() -> None:
    sink = Clock().sink()
    sink.on_requests("m", [Ended(timings(**dict.fromkeys(STAGE_NAMES, 10.0)))])
    (found,) = sink.recent("slowest", 1.0)
    assert [span.name for span in found.spans[1:]] == [
        *STAGE_NAMES[: Stage.INFER],
        "model",
        *STAGE_NAMES[Stage.INFER + 1 :],
    ]
    assert set(found.stages_ms) == set(STAGE_NAMES)
