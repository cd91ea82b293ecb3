"""What is known of batch sizes: whose fault an error is, the machine's or the size's, and how sure that is."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.scheduler.cost import CostModel, LatencyTable

MS = 1e6
SIZES = (1, 2, 4, 8, 16, 32)
DEARER = {1: 3.9, 2: 3.6, 4: 3.5, 8: 3.7, 16: 4.1, 32: 4.5}
"""Milliseconds by the row: caches overflow from eight rows on."""
CHEAPER = {1: 5.0, 2: 2.6, 4: 1.4, 8: 0.8, 16: 0.5, 32: 0.4}
"""Milliseconds by the row of a device that computes many rows at once."""


def fed(model: CostModel, row_ms: dict[int, float], batches: int, *, speed: float = 1.0, seed: int = 1) -> list[int]:
    """Let a queue that always holds a full batch choose; return the sizes that ran. Noise: five percent."""
    draw, ran = random.Random(seed), []
    for _ in range(batches):
        ran.append(model.cost.worth_rows(32))
        model.observe(ran[-1], speed * row_ms[ran[-1]] * ran[-1] * draw.lognormvariate(0.0, 0.05) * MS)
    return ran


def guessed(row_ms: float) -> CostModel:
    """Return a model that knows lone rows, and of larger batches what shorter rows took: a third less by the row."""
    model = CostModel()
    model.seed({rows: (row_ms if rows == 1 else row_ms / 1.5) * rows * MS for rows in SIZES}, octaves=1.0)
    for _ in range(50):
        model.observe(1, row_ms * MS)
    return model


@pytest.mark.parametrize("seed", range(5))
def test_sizes_that_pay_far_more_than_was_guessed_are_found(seed: int) -> None:
    ran = fed(guessed(CHEAPER[1]), CHEAPER, 200, seed=seed)
    assert ran[-100:].count(32) > 90


@pytest.mark.parametrize("seed", range(5))
def test_sizes_that_cost_more_than_was_guessed_are_left(seed: int) -> None:
    ran = fed(guessed(DEARER[1]), DEARER, 200, seed=seed)
    assert sum(1 for rows in ran[-100:] if rows > 8) < 10


@pytest.mark.parametrize("seed", range(5))
def test_what_a_slow_minute_taught_is_unlearned_of_sizes_that_do_not_run(seed: int) -> None:
    """While the machine was slow small batches ran; a large one is the first that it computes at full speed again."""
    model = guessed(DEARER[1])
    fed(model, DEARER, 200, seed=seed)
    draw = random.Random(seed)
    for _ in range(60):
        model.observe(4, 1.8 * 4 * DEARER[4] * draw.lognormvariate(0.0, 0.1) * MS)
    for _ in range(3):
        model.observe(32, 32 * DEARER[32] * MS)
    ran = fed(model, DEARER, 100, seed=seed)
    assert sum(1 for rows in ran[-50:] if rows > 8) < 5


@pytest.mark.parametrize("seed", range(5))
def test_slow_spells_do_not_add_up_in_sizes_that_do_not_run(seed: int) -> None:
    """Lone rows and pairs run, in forty slow spells too; what eight rows take stays known."""
    rng, model = random.Random(seed), CostModel()
    true_ns = {1: 5e6, 2: 8.4e6, 4: 15.2e6, 8: 29.7e6}
    model.seed(true_ns)
    for _ in range(40):
        for slower, batches, noise in ((1.0, 200, 0.05), (rng.uniform(1.5, 3.0), rng.randrange(4, 30), 0.3)):
            for _ in range(batches):
                rows = rng.choice((1, 1, 2))
                model.observe(rows, true_ns[rows] * slower * rng.lognormvariate(0.0, noise))
    for _ in range(100):
        rows = rng.choice((1, 1, 2))
        model.observe(rows, true_ns[rows] * rng.lognormvariate(0.0, 0.05))
    known = {rows: model.cost.batch_ns(rows) / ns for rows, ns in true_ns.items()}
    assert all(0.75 < each < 1.33 for each in known.values()), known


def test_how_wrong_a_guess_was_is_not_how_late_batches_are() -> None:
    """Larger batches take up to six times what shorter rows let expect; none of them is ever late."""
    model = CostModel()
    model.seed({rows: 3.0 * rows * MS for rows in SIZES}, octaves=1.0)
    draw = random.Random(1)
    truth = {1: 3.0, 2: 3.0, 4: 5.0, 8: 8.0, 16: 12.0, 32: 18.0}
    for rows in (*SIZES, *SIZES, 8, 16, 32) * 2:
        model.observe(rows, truth[rows] * rows * draw.lognormvariate(0.0, 0.02) * MS)
    assert model.cost.late < 1.15


BATCHES = st.lists(st.tuples(st.integers(1, 64), st.floats(1e-6, 1e6)), min_size=1, max_size=80)


@given(BATCHES)
def test_what_is_known_stays_possible(batches: list[tuple[int, float]]) -> None:
    """Whatever comes: times are positive, no variance is negative, and doubts stay below one."""
    table = LatencyTable()
    for rows, ratio in batches:
        table.learn(rows, ratio * rows * 7.0 * MS)
        assert table.expected_ns(rows) > 0.0
        assert all(math.isfinite(point) and point > 0.0 for point in table.points)
        assert all(math.isfinite(doubt) and doubt < 1.0 for doubt in table.doubts)
        assert all(variance > -1e-9 for variance in table.variances)


def test_times_that_jump_by_factors_of_a_million_stay_times() -> None:
    """The line between a very long and a very short time keeps the short one."""
    for seed in range(120):
        draw, table = random.Random(seed), LatencyTable()
        for _ in range(80):
            rows, ratio = draw.choice((*SIZES, 64)), draw.choice((1e-6, 1e6))
            table.learn(rows, ratio * rows * 7.0 * MS)
            assert all(math.isfinite(point) and point > 0.0 for point in table.points)


@given(st.sampled_from(SIZES), st.floats(0.5, 2.0))
def test_a_machine_that_changes_its_speed_changes_it_for_all_sizes(runs: int, speed: float) -> None:
    table = LatencyTable()
    for _ in range(30):
        for rows in SIZES:
            table.learn(rows, 7.0 * MS * rows)
    for _ in range(40):
        table.learn(runs, speed * 7.0 * MS * runs)
    for rows in SIZES:
        assert table.expected_ns(rows) == pytest.approx(speed * 7.0 * MS * rows, rel=0.15)


def test_of_a_size_that_has_just_run_nothing_is_doubted_and_of_the_others_the_more_the_longer_ago() -> None:
    table = LatencyTable()
    for rows in SIZES:
        for _ in range(20):
            table.learn(rows, 7.0 * MS * rows)
    before = table.doubts
    assert before[-1] == 0.0 < before[0]
    for _ in range(5000):
        table.learn(32, 32 * 7.0 * MS)
    assert table.doubts[0] > before[0] + 0.05


class Machine:
    """A model of known sizes on a machine whose speed somebody sets; a batch varies by five percent."""

    def __init__(self, seed: int, *, seeded: float = 1.0) -> None:
        self.draw = random.Random(seed)
        self.model = CostModel()
        self.model.seed({rows: seeded * DEARER[rows] * rows * MS for rows in SIZES})

    def run(self, rows: int, slower: float = 1.0) -> None:
        took_ms = slower * DEARER[rows] * rows * self.draw.lognormvariate(0.0, 0.05)
        self.model.observe(rows, took_ms * MS)

    def run_all(self, batches: int, slower: float = 1.0) -> None:
        for _ in range(batches):
            self.run(self.draw.choice(SIZES), slower)

    def slower(self, rows: int) -> float:
        """What is expected of a size over what it takes on an idle machine."""
        return self.model.cost.batch_ns(rows) / (rows * DEARER[rows] * MS)


@pytest.mark.parametrize("first", [1, 2, 4])
@pytest.mark.parametrize("batches", [10, 100, 3000])
def test_when_others_leave_the_cores_the_first_batch_shows_it_of_all_sizes(batches: int, first: int) -> None:
    """While they were there all took twice as long, and batches of four ran."""
    for seed in range(3):
        machine = Machine(seed)
        machine.run_all(300)
        for _ in range(batches):
            machine.run(4, 2.0)
        assert machine.slower(1) > 1.5
        machine.run(first)
        assert [machine.slower(rows) for rows in SIZES] == pytest.approx([1.0] * len(SIZES), abs=0.35)


def test_nor_does_it_matter_that_the_machine_was_four_times_as_slow() -> None:
    for seed in range(6):
        machine = Machine(seed)
        machine.run_all(300)
        for _ in range(60):
            machine.run(4, 4.0)
        for _ in range(3):
            machine.run(1)
        assert machine.slower(4) < 1.7


def test_nor_that_the_first_guess_was_far_too_slow() -> None:
    for seed in range(6):
        machine = Machine(seed, seeded=2.0)
        machine.run_all(150)
        machine.run_all(60, 2.0)
        machine.run(1)
        assert machine.slower(4) == pytest.approx(1.0, abs=0.35)


def test_one_cheap_batch_while_the_machine_stays_slow_is_taken_back_by_the_next_ones() -> None:
    for seed in range(6):
        machine = Machine(seed)
        machine.run_all(100)
        machine.run_all(200, 1.3)
        machine.run(4, 0.65)
        assert machine.slower(2) > 0.8, "no faster than it ever was"
        machine.run(2, 1.3)
        machine.run(4, 1.3)
        assert machine.slower(4) == pytest.approx(1.3, abs=0.15)


def test_one_that_is_cheaper_than_the_machine_ever_was_says_nothing_of_it() -> None:
    machine = Machine(1)
    machine.run_all(100)
    machine.run_all(200, 1.3)
    machine.run(4, 0.1)
    assert machine.slower(2) == pytest.approx(1.3, abs=0.1)


def test_a_size_that_became_cheaper_by_itself_is_not_taken_for_the_machine() -> None:
    """The machine was never slower, so nobody can have left it."""
    machine = Machine(1)
    machine.run_all(300)
    for _ in range(200):
        machine.run(4)
    machine.run(32, 0.6)
    assert machine.slower(4) == pytest.approx(1.0, abs=0.15)


def test_a_machine_that_is_slow_in_three_of_four_batches_is_known_to_be_slow_in_the_mean() -> None:
    for seed in range(5):
        machine = Machine(seed)
        machine.run_all(100)
        machine.run_all(30, 2.0)
        seen = []
        for _ in range(60):
            machine.run(machine.draw.choice((2, 4)), 1.0 if machine.draw.random() < 0.25 else 2.0)
            seen.append(machine.slower(4))
        assert sum(seen) / len(seen) == pytest.approx(1.75, abs=0.22)


@pytest.mark.parametrize("longer", [2.0, 3.0, 6.0])
def test_a_hiccup_while_the_machine_grows_slower_does_not_close_a_size(longer: float) -> None:
    """Full batches pay; the machine slows down, and in the middle of that one takes far too long."""
    model = guessed(CHEAPER[1])
    fed(model, CHEAPER, 200)
    for slower in (1.05, 1.1, 1.15, 1.2, 1.25, 1.25 * longer):
        model.observe(32, slower * 32 * CHEAPER[32] * MS)
    ran = fed(model, CHEAPER, 100, speed=1.25)
    assert ran.count(32) > 80


@pytest.mark.parametrize("longer", [2.0, 3.0, 10.0])
def test_a_kind_whose_first_batch_is_a_hiccup_finds_its_best_size(longer: float) -> None:
    """A full batch is the first that comes of rows of another length, and allocates for all that follow."""
    model = CostModel()
    model.seed({rows: CHEAPER[rows] * rows * MS for rows in SIZES}, octaves=1.0)
    model.observe(32, longer * 32 * CHEAPER[32] * MS)
    ran = fed(model, CHEAPER, 1500)
    assert ran[-100:].count(32) > 90


def test_a_warm_up_that_shows_how_batches_pay_says_nothing_of_the_speed() -> None:
    """One lone row, with caches still cold, takes half as long again: that is not expected of batches."""
    model = CostModel()
    flat = {1: 5.0, 2: 5.2, 4: 5.6, 8: 6.4, 16: 8.0, 32: 12.8}
    model.seed({rows: ms * MS for rows, ms in flat.items()})
    model.observe(1, 1.5 * flat[1] * MS)
    for rows in (8, 16, 32):
        assert model.cost.batch_ns(rows) < 1.15 * flat[rows] * MS


def test_one_lone_row_that_takes_long_is_not_expected_of_batches_that_are_known() -> None:
    model = CostModel()
    flat = {1: 20.0, 2: 20.5, 4: 21.0, 8: 22.0, 16: 24.0, 32: 30.0}
    model.seed({rows: ms * MS for rows, ms in flat.items()})
    for _ in range(20_000):
        model.observe(16, flat[16] * MS)
    model.observe(1, 2.6 * flat[1] * MS)
    assert model.cost.batch_ns(16) < 1.1 * flat[16] * MS


def test_how_long_a_size_takes_that_was_only_guessed_is_no_hiccup() -> None:
    model = CostModel()
    model.seed({rows: 7.0 * rows * MS for rows in SIZES}, octaves=1.0)
    for _ in range(2100):
        model.observe(1, 7.0 * MS)
    for rows in (32, 2):
        model.observe(rows, 20 * 7.0 * rows * MS)
    assert model.cost.hiccup_ns == 0.0


@pytest.mark.parametrize("most", [3, 12, 24])
def test_a_largest_batch_between_two_powers_of_two_is_tried_again(most: int) -> None:
    """It was dear once, by a hiccup, and is the cheapest by the row."""
    model = CostModel()
    for rows in (1, 2, 4, 8, 16, 2, 2):
        model.observe(rows, rows * 7.0 * MS)
    model.observe(most, 1.5 * most * 7.0 * MS)
    assert model.cost.full_rows(most, tried=True) < most
    ran = []
    for _ in range(2000):
        ran.append(model.cost.full_rows(most, tried=True))
        model.observe(ran[-1], (5.0 if ran[-1] == most else 7.0) * ran[-1] * MS)
    assert ran[-100:].count(most) > 90


def test_a_seed_that_was_all_wrong_says_nothing_of_which_sizes_pay() -> None:
    """The build measured thirty times as much, and that all rows cost the same."""
    model = CostModel()
    model.seed({rows: 30 * CHEAPER[1] * rows * MS for rows in SIZES})
    ran = fed(model, CHEAPER, 60)
    assert ran[-20:].count(32) > 15
