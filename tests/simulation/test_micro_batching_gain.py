"""Into which runs batches are divided on a machine whose speed wanders: soon into those that pay, and not by luck."""

from __future__ import annotations

import random
from statistics import mean, median

import pytest

from tailcut.scheduler.micro_batching import Division

MS = 1e6
BATCHES = 400

SHAPES = {
    "small runs": ({1: 6.3, 2: 6.1, 4: 6.4, 8: 7.0, 16: 7.5, 32: 7.8}, 0.94, 0.97),
    "lone rows": ({1: 5.0, 2: 5.5, 4: 6.0, 8: 6.5, 16: 7.0, 32: 7.5}, 0.91, 0.97),
    "a knee": ({1: 7.0, 2: 5.0, 4: 4.0, 8: 3.6, 16: 4.2, 32: 5.0}, 0.93, 0.97),
    "large runs": ({size: (8.0 + size) / size for size in (1, 2, 4, 8, 16, 32)}, 0.95, 0.98),
    "all but the ends": ({1: 7.8, 2: 6.05, 4: 6.0, 8: 6.06, 16: 6.1, 32: 7.8}, 0.95, 0.98),
    "a mild gain": ({1: 7.8, 2: 6.6, 4: 6.2, 8: 6.06, 16: 6.0, 32: 6.0}, 0.97, 0.98),
}
"""Milliseconds by the row and by rows; of the best division, what the first sixty batches and all later ones are."""


def run_ms(shape: dict[int, float], rows: int) -> float:
    """Return what a run takes: between two sizes on a straight line."""
    lower = 1 << (rows.bit_length() - 1)
    lower_ms = lower * shape[lower]
    if lower == rows:
        return lower_ms
    return lower_ms + (2 * lower * shape[2 * lower] - lower_ms) * (rows - lower) / lower


def best_ms(shape: dict[int, float], rows: int) -> float:
    """Return what a batch takes at best, divided evenly."""
    found = []
    for count in range(1, rows + 1):
        least, more = divmod(rows, count)
        larger_ms = more * run_ms(shape, least + 1) if more else 0.0
        found.append(larger_ms + (count - more) * run_ms(shape, least))
    return min(found)


def shares(shape: dict[int, float], seed: int, noise: float = 0.05) -> tuple[float, float]:
    """Play batches of several sizes; return how near the first sixty, and those of the second half, come to the best.

    Spells of up to 1.3 times the time, a run in a hundred takes twice as long.
    """
    draw, division, speed = random.Random(seed), Division(), 1.0
    took, best = [], []
    for _ in range(BATCHES):
        if draw.random() < 0.05:
            speed = draw.uniform(1.0, 1.3)
        rows = draw.choice([32, 32, 31, 20, 16, 8])
        runs = division.runs(rows)
        assert sum(runs) == rows
        assert min(runs) > 0
        times = [run_ms(shape, run) for run in runs]
        hiccups = [2.0 if draw.random() < 0.01 else 1.0 for _ in runs]
        noisy = [each * speed * draw.lognormvariate(0.0, noise) for each in times]
        division.learn(runs, [MS * each * more for each, more in zip(noisy, hiccups, strict=True)])
        took.append(sum(times))
        best.append(best_ms(shape, rows))
    half = BATCHES // 2
    return sum(best[:60]) / sum(took[:60]), sum(best[half:]) / sum(took[half:])


@pytest.mark.parametrize("name", SHAPES)
def test_batches_run_as_is_fastest_for_them(name: str) -> None:
    shape, soon, later = SHAPES[name]
    found = [shares(shape, seed) for seed in range(12)]
    assert mean(first for first, _ in found) >= soon
    assert mean(second for _, second in found) >= later
    assert min(second for _, second in found) >= 0.93, "by nobody's luck"


@pytest.mark.parametrize("spell", [1.3, 1.5])
@pytest.mark.parametrize("name", ["small runs", "a knee"])
def test_a_size_that_first_ran_when_the_machine_was_faster_does_not_stay_the_best(name: str, spell: float) -> None:
    """Small batches, the last in a slow spell; then only large ones, which seem that much better than the others."""
    shape = SHAPES[name][0]
    for seed in range(4):
        draw, division = random.Random(seed), Division()
        took, best = 0.0, 0.0
        for number in range(553):
            rows = draw.choice([4, 8, 16]) if number < 303 else 32
            runs = division.runs(rows)
            times = [run_ms(shape, run) for run in runs]
            speed = spell if 300 <= number < 303 else 1.0
            division.learn(runs, [MS * each * speed * draw.lognormvariate(0.0, 0.03) for each in times])
            if number >= 353:
                took, best = took + sum(times), best + best_ms(shape, rows)
        assert best / took >= 0.97


def test_a_model_that_gains_by_batching_hardly_ever_pays_for_trying() -> None:
    """Who is in a batch that is tried in parts waits longer: one in hundreds, once it is known."""
    shape = SHAPES["large runs"][0]
    first, later = [], []
    for seed in range(6):
        draw, division = random.Random(seed), Division()
        longer = []
        for _ in range(3_000):
            rows = draw.randint(2, 32)
            runs = division.runs(rows)
            times = [run_ms(shape, run) for run in runs]
            longer.append(len(runs) > 1)
            division.learn(runs, [MS * each * draw.lognormvariate(0.0, 0.05) for each in times])
        first.append(sum(longer[:300]))
        later.append(sum(longer[300:]))
    assert mean(first) <= 20
    assert mean(later) <= 16


@pytest.mark.parametrize("name", ["all but the ends", "a mild gain"])
@pytest.mark.parametrize("rows", [32, 16, 0])
def test_sizes_that_hardly_differ_do_not_keep_those_in_trial_that_clearly_do(name: str, rows: int) -> None:
    """Which of them is the best changes with the noise; that lone rows are dear does not."""
    shape = SHAPES[name][0]
    limit = 1.1 * min(shape.values())
    dear = 0
    for seed in range(4):
        draw, division = random.Random(seed), Division()
        for number in range(1_500):
            whole = rows or draw.choice([32, 16])
            runs = division.runs(whole)
            times = [run_ms(shape, run) for run in runs]
            dear += number >= 100 and max(each / run for each, run in zip(times, runs, strict=True)) > limit
            hiccups = [2.0 if draw.random() < 0.01 else 1.0 for _ in runs]
            noisy = [each * draw.lognormvariate(0.0, 0.04) for each in times]
            division.learn(runs, [MS * each * more for each, more in zip(noisy, hiccups, strict=True)])
    assert dear / (4 * 1_400) < 0.01


@pytest.mark.parametrize(("before", "after"), [("large runs", "small runs"), ("small runs", "large runs")])
@pytest.mark.parametrize("seed", range(3))
def test_a_shape_that_changes_after_thousands_of_batches_is_noticed(before: str, after: str, seed: int) -> None:
    """What was dear for long is tried seldom, yet not so seldom that its day never comes."""
    draw, division = random.Random(seed), Division()
    took, best = 0.0, 0.0
    for number in range(6_000):
        shape = SHAPES[before if number < 4_000 else after][0]
        runs = division.runs(32)
        times = [run_ms(shape, run) for run in runs]
        division.learn(runs, [MS * each * draw.lognormvariate(0.0, 0.04) for each in times])
        if number >= 5_500:
            took, best = took + sum(times), best + best_ms(shape, 32)
    assert best / took >= 0.98


@pytest.mark.parametrize(("rows", "before", "after"), [(2, 1, 2), (2, 2, 1), (32, 4, 32), (8, 2, 8)])
def test_a_whole_batch_that_becomes_the_fastest_is_noticed_like_any_size(rows: int, before: int, after: int) -> None:
    """By a fifth, each; where eight rows come, thirty-two would be faster still, which is no help to them."""
    draw, division = random.Random(rows + before), Division()
    took, best = 0.0, 0.0
    for number in range(5_000):
        fast = before if number < 3_000 else after
        shape = {size: 5.0 if size == fast else 6.2 for size in (1, 2, 4, 8, 16)} | {32: 5.0 if fast == 32 else 4.6}
        whole = 32 if rows == 8 and number < 40 else rows
        runs = division.runs(whole)
        times = [run_ms(shape, run) for run in runs]
        division.learn(runs, [MS * each * draw.lognormvariate(0.0, 0.04) for each in times])
        if number >= 4_000:
            took, best = took + sum(times), best + best_ms(shape, whole)
    assert best / took >= 0.98


@pytest.mark.parametrize("slower", [1.3, 2.0, 3.0])
@pytest.mark.parametrize("rows", [16, 8])
def test_batches_that_are_smaller_than_the_best_are_not_misjudged_on_a_slower_machine(slower: float, rows: int) -> None:
    """The size that all others are measured by does not fit into them."""
    shape = SHAPES["large runs"][0]
    for seed in range(4):
        draw, division = random.Random(seed), Division()
        took, best = 0.0, 0.0
        for number in range(1_000):
            whole, speed = (32, 1.0) if number < 40 else (rows, slower)
            runs = division.runs(whole)
            times = [run_ms(shape, run) for run in runs]
            division.learn(runs, [MS * each * speed * draw.lognormvariate(0.0, 0.04) for each in times])
            if number >= 200:
                took, best = took + sum(times), best + best_ms(shape, whole)
        assert best / took >= 0.97


def test_batches_of_two_sizes_in_strict_turns_are_both_divided() -> None:
    shape, draw, division = SHAPES["small runs"][0], random.Random(2), Division()
    largest = []
    for number in range(200):
        runs = division.runs((32, 16)[number % 2])
        times = [run_ms(shape, run) for run in runs]
        division.learn(runs, [MS * each * draw.lognormvariate(0.0, 0.03) for each in times])
        largest.append(max(runs))
    assert median(largest[150::2]) == 2
    assert median(largest[151::2]) == 2


def test_a_model_that_gains_by_batching_runs_whole() -> None:
    shape, draw, division = SHAPES["large runs"][0], random.Random(1), Division()
    divided = 0
    for number in range(1000):
        runs = division.runs(32)
        divided += len(runs) > 1 and number >= 20
        division.learn(runs, [MS * run_ms(shape, run) * draw.lognormvariate(0.0, 0.05) for run in runs])
    assert divided <= 20, "halves are tried now and then, a fifth dearer as they are"


@pytest.mark.parametrize("slow", [0, 1, 2, 3, 5])
def test_a_stall_at_the_start_does_not_decide(slow: int) -> None:
    """One of the first batches takes four times as long, all its runs: a size that only ran there seems dear."""
    shape, draw, division = SHAPES["small runs"][0], random.Random(slow), Division()
    took, best = 0.0, 0.0
    for number in range(300):
        runs = division.runs(32)
        stalled = 4.0 if number == slow else 1.0
        times = [run_ms(shape, run) for run in runs]
        division.learn(runs, [MS * each * stalled * draw.lognormvariate(0.0, 0.05) for each in times])
        if number >= 150:
            took, best = took + sum(times), best + best_ms(shape, 32)
    assert best / took >= 0.96


def test_a_slower_machine_changes_nothing_and_another_shape_does() -> None:
    """First runs of two are best; half as fast, they still are; then, with other neighbours, runs of eight."""
    draw, division = random.Random(3), Division()
    sizes = []
    for shape, speed in (("small runs", 1.0), ("small runs", 2.0), ("a knee", 2.0)):
        last: list[int] = []
        for _ in range(800):
            runs = division.runs(32)
            times = [run_ms(SHAPES[shape][0], run) * speed * draw.lognormvariate(0.0, 0.03) for run in runs]
            division.learn(runs, [MS * each for each in times])
            last = [*last, runs[0]][-50:]
        sizes.append(max(set(last), key=last.count))
    assert sizes == [2, 2, 8]
