"""The history adds up: over restarts, clock steps, buckets and histograms, whatever comes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.history_kit import START_S, Run

from tailcut.observe.fine_histogram import PLACES
from tailcut.observe.history import from_bytes, to_bytes

COUNTS = st.dictionaries(st.integers(0, PLACES - 1), st.integers(1, 2**32 - 1), max_size=12)


def histogram(counts: dict[int, int]) -> np.ndarray:
    found = np.zeros(PLACES, np.int64)
    for place, count in counts.items():
        found[place] = count
    return found


@given(st.lists(COUNTS, max_size=12))
def test_bytes_of_histograms_in_a_row_are_those_of_their_sum(each: list[dict[int, int]]) -> None:
    expected = np.sum([histogram({}), *(histogram(counts) for counts in each)], axis=0)
    assert (from_bytes(b"".join(to_bytes(histogram(counts)) for counts in each)) == expected).all()


@given(COUNTS.filter(bool), st.data())
def test_bytes_that_are_cut_off_are_refused_or_lose_places(counts: dict[int, int], data: st.DataObject) -> None:
    blob = to_bytes(histogram(counts))
    cut = blob[: data.draw(st.integers(1, len(blob) - 1))]
    try:
        found = from_bytes(cut)
    except ValueError:
        return
    assert found.sum() <= sum(counts.values())


@pytest.mark.parametrize("blob", [b"\xff", b"\x01\x00" * 2, b"\xff\xff\x01\x00\x00\x00"])
def test_other_bytes_are_refused(blob: bytes) -> None:
    with pytest.raises(ValueError, match="a histogram"):
        from_bytes(blob)


STEPS = st.one_of(
    st.tuples(st.just("ask"), st.integers(1, 5)),
    st.tuples(st.just("pass"), st.sampled_from([1, 30, 60, 61, 150])),
    st.tuples(st.just("set clock"), st.sampled_from([-3600, -60, -1, 1, 60, 7200])),
    st.tuples(st.just("restart"), st.just(0)),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(STEPS, max_size=20))
def test_rows_add_up_over_restarts_and_clock_steps(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.sqlite"
        run, asked = Run(path), 0
        for what, amount in [*steps, ("restart", 0)]:
            if what == "ask":
                run.ask(*[float(amount)] * amount)
                asked += amount
            elif what == "pass":
                run.pass_s(amount)
            elif what == "set clock":
                run.wall_s += amount
            else:
                run.writing.take()  # the running minute is written at the stop
                run.end()
                run = Run(path, run.wall_s)
        run.writing.take()
        run.end()
        since, until = START_S - 10 * 86_400, START_S + 10 * 86_400
        by_minute = run.history.latency(since, until, stage="request")
        by_hour = run.history.latency(since, until, stage="request", bucket_s=3600)
        assert sum(row.requests for row in by_minute) == sum(row.requests for row in by_hour) == asked
        assert sum(row.total_ns for row in by_minute) == sum(row.total_ns for row in by_hour)
        for row in by_hour:
            of_it = [each for each in by_minute if row.start_s <= each.start_s < row.start_s + 3600]
            assert (row.histogram == np.sum([each.histogram for each in of_it], axis=0)).all()
            assert row.histogram.sum() == row.requests
        counted = run.history.counts(since, until, model="risk", name="tailcut_requests_total", bucket_s=3600)
        assert sum(row.value for row in counted) == asked
        rows = run.history.counts(since, until, name="tailcut_batch_rows_sum")
        assert sum(row.value for row in rows) == asked
