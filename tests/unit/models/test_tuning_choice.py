"""tuning: what can be tried, and the choice from what was measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.models.tuning import NEAR, choose, choose_variation, grid, variations, without_tuned
from tailcut.registry.evidence import Setting, Timing


def timing(threads: int, executors: int, ms: float, *, cpu_ms: float = 1.0, rows_per_s: float = 1e6) -> Timing:
    return Timing(setting=Setting(threads=threads, executors=executors), ms=ms, cpu_ms=cpu_ms, rows_per_s=rows_per_s)


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        (1, [(1, 1)]),
        (2, [(1, 1), (1, 2), (2, 1)]),
        (6, [(1, 1), (1, 6), (2, 1), (2, 3), (4, 1), (6, 1)]),
    ],
)
def test_the_grid_has_every_power_of_two_alone_and_as_often_as_there_is_room(
    cores: int, expected: list[tuple[int, int]]
) -> None:
    assert [(each.threads, each.executors) for each in grid(cores)] == expected


@given(st.integers(1, 256))
def test_no_setting_of_the_grid_takes_more_cores_than_there_are(cores: int) -> None:
    found = grid(cores)
    assert all(1 <= each.cores <= cores for each in found)
    assert len({(each.threads, each.executors) for each in found}) == len(found)


def test_fewer_threads_are_preferred_where_more_gain_less_than_a_tenth() -> None:
    assert choose([timing(1, 1, 10.0), timing(2, 1, 9.3)], rate=1.0).setting.threads == 1


def test_more_threads_are_taken_where_they_gain_more_than_a_tenth() -> None:
    assert choose([timing(1, 1, 10.0), timing(2, 1, 6.0)], rate=1.0).setting.threads == 2


def test_a_rate_that_one_executor_cannot_carry_gets_more() -> None:
    timings = [timing(1, 1, 10.0, rows_per_s=100.0), timing(1, 2, 10.2, rows_per_s=190.0)]
    assert choose(timings, rate=60.0).setting.executors == 1
    assert choose(timings, rate=90.0).setting.executors == 2, "90/s is more than 70 % of 100/s"


def test_where_no_setting_carries_the_rate_the_one_that_carries_most_is_chosen() -> None:
    timings = [timing(2, 1, 6.0, rows_per_s=120.0), timing(1, 2, 10.0, rows_per_s=190.0)]
    assert choose(timings, rate=1000.0).setting.executors == 2


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.floats(0.1, 100.0), st.floats(1.0, 1e4)), min_size=1),
    st.floats(1.0, 1e4),
)
def test_the_choice_is_near_the_best_of_those_that_carry_the_rate(
    measured: list[tuple[int, int, float, float]], rate: float
) -> None:
    timings = [timing(t, e, ms, rows_per_s=rows) for t, e, ms, rows in measured]
    chosen = choose(timings, rate)
    able = [each for each in timings if each.rows_per_s * 0.7 >= rate]
    if able:
        assert chosen in able
        assert chosen.ms <= NEAR * min(each.ms for each in able)
    else:
        assert chosen.rows_per_s * NEAR >= max(each.rows_per_s for each in timings)


def test_a_variation_must_be_clearly_faster_or_as_fast_and_clearly_cheaper() -> None:
    plain = timing(2, 1, 1.0, cpu_ms=2.0)
    assert choose_variation(plain, [timing(2, 1, 0.95, cpu_ms=1.95)]) is plain, "noise"
    assert choose_variation(plain, [timing(2, 1, 1.5, cpu_ms=0.5)]) is plain, "cheaper, but slower"
    faster, cheaper = timing(2, 1, 0.8, cpu_ms=3.0), timing(2, 1, 1.01, cpu_ms=1.0)
    assert choose_variation(plain, [cheaper]) is cheaper
    assert choose_variation(plain, [cheaper, faster]) is faster, "latency first"


def test_only_runtimes_and_threads_that_a_variation_touches_get_it() -> None:
    def more(runtime: str, threads: int, executors: int = 1) -> list[dict[str, object]]:
        return [each.more for each in variations(runtime, Setting(threads=threads, executors=executors))]

    assert more("onnxruntime", 1) == [{"denormals": True}], "one thread has nobody to spin"
    assert more("onnxruntime", 2) == [{"spin_us": 0}, {"spin_us": 1000}, {"denormals": True}]
    assert more("openvino", 2) == [{"hint": "THROUGHPUT"}, {"pinning": True}]
    assert more("openvino", 1, executors=2) == [{"hint": "THROUGHPUT"}], "two would be pinned to the same core"
    assert more("lightgbm", 2) == []


def test_settings_that_were_tuned_elsewhere_are_forgotten_and_others_kept() -> None:
    assert without_tuned("onnxruntime", {"threads": 8, "spin_us": 0, "provider": "cuda"}) == {"provider": "cuda"}
