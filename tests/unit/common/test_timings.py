from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tailcut.common.timings import STAGE_NAMES, Stage, Timings

LAPS = st.lists(st.tuples(st.sampled_from(list(Stage)), st.integers(0, 10**9)), max_size=30)


def test_every_stage_has_the_word_of_the_docs() -> None:
    assert STAGE_NAMES == (
        "receive",
        "validate",
        "admit",
        "entity_cache",
        "features",
        "preprocess",
        "tensor_cache",
        "queue",
        "infer",
        "postprocess",
        "encode",
    )


@given(st.integers(0, 10**12), LAPS)
def test_stages_sum_to_the_total(start_ns: int, laps: list[tuple[Stage, int]]) -> None:
    timings = Timings(start_ns)
    now_ns = start_ns
    for stage, ns in laps:
        now_ns += ns
        timings.lap(stage, now_ns)
    assert sum(timings.ns) == timings.total_ns == now_ns - start_ns


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_what_is_not_the_models_time_is_the_queues(queue_ns: int, infer_ns: int) -> None:
    timings = Timings(5)
    timings.waited(infer_ns, 5 + queue_ns + infer_ns)
    assert (timings.ns[Stage.QUEUE], timings.ns[Stage.INFER]) == (queue_ns, infer_ns)
    assert timings.total_ns == queue_ns + infer_ns


def test_a_stage_met_twice_is_added_up() -> None:
    timings = Timings(0)
    for now_ns in (10, 30):
        timings.lap(Stage.TENSOR_CACHE, now_ns)
    assert timings.ns[Stage.TENSOR_CACHE] == 30


def test_the_header_has_the_stages_that_took_time_and_the_total() -> None:
    timings = Timings(1_000)
    timings.lap(Stage.RECEIVE, 2_000)
    timings.lap(Stage.VALIDATE, 2_000)
    timings.waited(2_000_000, 5_002_000)
    assert timings.server_timing() == "receive;dur=0.001, queue;dur=3.000, infer;dur=2.000, total;dur=5.001"


@given(LAPS)
def test_the_header_can_be_read_as_the_standard_says(laps: list[tuple[Stage, int]]) -> None:
    timings = Timings(0)
    now_ns = 0
    for stage, ns in laps:
        now_ns += ns
        timings.lap(stage, now_ns)
    entries = timings.server_timing().split(", ")
    found = [re.fullmatch(r"([a-z_]+);dur=(\d+\.\d{3})", entry) for entry in entries]
    assert all(found)
    durations = {match[1]: float(match[2]) for match in found if match}
    total_ms = durations.pop("total")
    assert abs(sum(durations.values()) - total_ms) <= 0.0005 * (len(durations) + 1) + 1e-9


def test_few_stages_or_none_are_told_as_well() -> None:
    timings = Timings(0)
    assert timings.server_timing() == "total;dur=0.000"
    timings.lap(Stage.RECEIVE, 1_500_000)
    assert timings.server_timing() == "receive;dur=1.500, total;dur=1.500"
