"""Where a hook's calls run, for every line of costs and every sequence of calls."""

from __future__ import annotations

from itertools import cycle, islice
from math import inf

from hypothesis import assume, given
from hypothesis import strategies as st

from tailcut.scheduler.executor_placement import ALL_ROWS, INLINE_BATCH_NS, INLINE_LIMIT_NS, BatchTime, HookPlacement

ROWS = st.integers(1, 500)
DURATION_NS = st.integers(0, 10**11)
MS = 1_000_000


def play(placement: HookPlacement, rows: int, took_ns: float) -> bool:
    """One call as the engine makes it; return whether it ran on the loop."""
    inline = rows <= placement.inline_rows
    if not inline or took_ns > placement.look_ns:
        placement.observe(rows, took_ns)
    return inline


@given(calls=st.lists(st.tuples(ROWS, DURATION_NS), max_size=60))
def test_nothing_runs_inline_that_is_expected_above_the_limit(calls: list[tuple[int, int]]) -> None:
    placement = HookPlacement()
    for rows, took_ns in calls:
        placement.observe(rows, took_ns)
        inline_rows = placement.inline_rows
        assert 0 <= inline_rows <= ALL_ROWS
        assert inline_rows == 0 or placement.cost.batch_ns(inline_rows) <= INLINE_LIMIT_NS * 1.000001
        assert placement.cost.base_ns >= 0 <= placement.cost.row_ns


@given(calls=st.lists(st.tuples(ROWS, DURATION_NS), min_size=5, max_size=60))
def test_what_is_expected_below_half_the_limit_runs_inline(calls: list[tuple[int, int]]) -> None:
    placement = HookPlacement()
    for rows, took_ns in calls:
        placement.observe(rows, took_ns)
    for rows in (1, 10, 500):
        if placement.cost.batch_ns(rows) < 0.499 * INLINE_LIMIT_NS:
            assert rows <= placement.inline_rows


@given(
    base_ns=st.floats(0, 3 * MS),
    row_ns=st.floats(0, MS / 10),
    sizes=st.lists(ROWS, min_size=2, max_size=8, unique=True),
)
def test_a_steady_hook_is_placed_by_what_it_takes(base_ns: float, row_ns: float, sizes: list[int]) -> None:
    placement = HookPlacement()
    for rows in islice(cycle(sizes), 300):
        play(placement, rows, base_ns + row_ns * rows)
    for rows in sizes:
        took_ns = base_ns + row_ns * rows
        if took_ns > 1.05 * INLINE_LIMIT_NS:
            assert rows > placement.inline_rows
        elif took_ns < 0.45 * INLINE_LIMIT_NS and placement.cost.batch_ns(rows) < 0.5 * INLINE_LIMIT_NS:
            assert rows <= placement.inline_rows


@given(rows=ROWS, took_ns=st.integers(1, 450_000))
def test_a_quick_hook_is_inline_after_four_calls_and_then_left_alone(rows: int, took_ns: int) -> None:
    placement = HookPlacement()
    assert [play(placement, rows, took_ns) for _ in range(60)] == [False] * 4 + [True] * 56
    assert placement.look_ns == (INLINE_LIMIT_NS if took_ns <= 125_000 else 0)


@given(rows=ROWS, took_ns=st.integers(MS + 1, 10**11))
def test_a_slow_hook_never_runs_inline(rows: int, took_ns: int) -> None:
    placement = HookPlacement()
    assert not any([play(placement, rows, took_ns) for _ in range(50)])


@given(rows=ROWS, durations_ns=st.lists(st.integers(550_000, 990_000), max_size=50), starts_slow=st.booleans())
def test_between_half_the_limit_and_the_limit_nothing_changes(
    rows: int, durations_ns: list[int], starts_slow: bool
) -> None:
    placement = HookPlacement()
    for _ in range(10):
        play(placement, rows, 1_050_000 if starts_slow else 400_000)
    assert {play(placement, rows, took_ns) for took_ns in durations_ns} <= {not starts_slow}


@given(rows=ROWS, slow_ns=st.integers(20 * MS, 10**11))
def test_a_hook_that_becomes_slow_leaves_the_loop_after_one_call(rows: int, slow_ns: int) -> None:
    placement = HookPlacement()
    for _ in range(20):
        play(placement, rows, 50_000)
    assert play(placement, rows, slow_ns)
    assert not any([play(placement, rows, slow_ns) for _ in range(50)])


@given(slow_ns=st.integers(MS + 1, 1000 * MS))
def test_a_hook_that_becomes_quick_comes_back(slow_ns: int) -> None:
    placement = HookPlacement()
    for _ in range(20):
        play(placement, 1, slow_ns)
    assert any([play(placement, 1, 20_000) for _ in range(600)])


@given(calls=st.lists(st.tuples(st.sampled_from([50_000, 30 * MS, 1000 * MS]), st.integers(0, 10**10)), max_size=60))
def test_long_calls_take_at_most_a_thousandth_of_the_loops_time(calls: list[tuple[int, int]]) -> None:
    """After a long call on the loop, none runs there for a thousand times as long."""
    placement, now_ns, away_until_ns = HookPlacement(), 0, 0
    for took_ns, idle_ns in calls:
        for duration_ns in (*[50_000] * 40, took_ns):
            on_loop = placement.inline_rows >= 1
            assert not (on_loop and now_ns < away_until_ns)
            now_ns += duration_ns
            placement.observe(1, duration_ns, now_ns, on_loop=on_loop)
            if on_loop and duration_ns == took_ns and took_ns > 20 * MS:
                away_until_ns = now_ns + 1000 * took_ns
        now_ns += idle_ns


def test_a_hook_that_held_the_loop_comes_back_after_that_time() -> None:
    placement = HookPlacement()
    for _ in range(20):
        placement.observe(1, 50_000)
    placement.observe(1, 30 * MS, now_ns=0, on_loop=True)
    for _ in range(600):
        placement.observe(1, 50_000, now_ns=30_000 * MS - 1)
    assert placement.inline_rows == 0
    placement.observe(1, 50_000, now_ns=30_000 * MS)
    assert placement.inline_rows >= 1


@given(calls=st.lists(st.tuples(ROWS, st.integers(0, 10**7)), max_size=60))
def test_a_hook_that_belongs_in_threads_never_leaves_them(calls: list[tuple[int, int]]) -> None:
    placement = HookPlacement(back_ns=inf)
    for rows, took_ns in calls:
        placement.observe(rows, took_ns, now_ns=10**18)
        assert placement.inline_rows == 0


@given(every=st.integers(200, 1000))
def test_rare_hiccups_leave_a_quick_hook_inline(every: int) -> None:
    placement = HookPlacement()
    inline = [play(placement, 1, 4 * MS if n % every == 0 else 50_000) for n in range(1, 5 * every)]
    assert sum(inline[4:]) == len(inline) - 4


@given(st.permutations([True] + [False] * 19))
def test_of_a_hook_that_is_slow_once_in_twenty_hardly_a_slow_call_runs_inline(slow: list[bool]) -> None:
    placement = HookPlacement()
    inline = [play(placement, 1, 20 * MS if is_slow else 50_000) for is_slow in slow * 20]
    blocked = sum([is_slow and was_inline for is_slow, was_inline in zip(slow * 20, inline, strict=True)])
    assert blocked <= 1


@given(rows=st.integers(2, 500), row_ns=st.floats(100, 100_000))
def test_rows_that_were_never_seen_are_taken_in_proportion(rows: int, row_ns: float) -> None:
    placement = HookPlacement()
    for _ in range(5):
        placement.observe(1, row_ns)
    assume(abs(rows * row_ns - 0.5 * INLINE_LIMIT_NS) > 1)
    assert (rows <= placement.inline_rows) == (rows * row_ns < 0.5 * INLINE_LIMIT_NS)


def test_without_a_hook_everything_is_inline_and_nothing_is_learned() -> None:
    placement = HookPlacement(inline_rows=ALL_ROWS, look_ns=ALL_ROWS)
    assert play(placement, 10**9, 10**15)
    assert placement.inline_rows == ALL_ROWS


@given(built_ns=st.floats(0.2 * MS, 3 * MS), off=st.lists(st.floats(0.5, 2.0), min_size=2, max_size=10))
def test_starts_agree_whose_figures_are_within_a_factor_of_two_of_the_builds(built_ns: float, off: list[float]) -> None:
    found = {BatchTime(32, built_ns * one, built_ns).runs_inline for one in off}
    assert found == {built_ns <= INLINE_BATCH_NS}


@given(here_ns=st.floats(1, 100 * MS), built_ns=st.none() | st.floats(1, 100 * MS))
def test_no_batch_runs_inline_that_takes_twice_what_is_allowed_and_none_waits_for_a_thread_that_takes_half(
    here_ns: float, built_ns: float | None
) -> None:
    found = BatchTime(32, here_ns, built_ns)
    if here_ns > 2.001 * INLINE_BATCH_NS:
        assert not found.runs_inline
    if here_ns < 0.499 * INLINE_BATCH_NS:
        assert found.runs_inline
    slower = found._replace(here_ns=here_ns * 1.5)
    assert found.runs_inline or not slower.runs_inline, "a slower machine never brings it back"
