"""The drift detector through its public door: sketches, alarms, and what its state says."""

from __future__ import annotations

import numpy as np
import pytest

from tailcut.common.tensors import Array
from tailcut.errors import ArtifactError
from tailcut.manifest import TensorSpec
from tailcut.observe.drift.detector import MONTH_S, NONE, Detector, DriftAlarm, DriftSettings, OncePerWindow
from tailcut.observe.drift.sketch import (
    Reference,
    Sketch,
    columns_of,
    decode,
    effective_rows,
    encode,
    sketch,
    sketches_of,
)

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


def reference(random: np.random.Generator, rows: int = 1000) -> list[Sketch]:
    return [sketch("input", "number", random.normal(size=rows)), sketch("input", "code", codes(random, rows))]


def codes(random: np.random.Generator, rows: int) -> Array:
    return random.choice(np.array(["a", "b", "c"], object), rows, p=[0.6, 0.3, 0.1])


def numbers(random: np.random.Generator, rows: int) -> Array:
    return random.normal(size=rows)


def play(detector: Detector, days: float, draw, start_s: float = 0.0, per_hour: int = 60) -> list[DriftAlarm]:
    """Give hours of rows that ``draw`` makes of the hour."""
    alarms = []
    for hour in range(int(days * 24)):
        now_s = start_s + hour * HOUR_S
        alarm = detector.update(draw(hour % 24, per_hour), now_s)
        alarms += [alarm] if alarm is not None else []
    return alarms


def test_an_alarm_names_the_column_and_since_when_and_shows_both_distributions() -> None:
    random = np.random.default_rng(0)
    detector = Detector(reference(random), DriftSettings())
    assert [each.evidence for each in detector.state().columns] == [None, None]
    calm = lambda hour, rows: [numbers(random, rows), codes(random, rows)]  # noqa: E731
    assert play(detector, 5, calm) == []
    shifted = lambda hour, rows: [numbers(random, rows) + 1, codes(random, rows)]  # noqa: E731
    (alarm,) = play(detector, 5, shifted, start_s=5 * DAY_S)
    assert [(each.name, each.role) for each in alarm.columns] == [("number", "input")]
    assert abs(alarm.columns[0].since_s - 5 * DAY_S) < 3 * HOUR_S
    state = detector.state()
    moved, other = state.columns
    assert (moved.drifting, other.drifting) == (True, False)
    assert moved.psi > 0.5 > 0.05 > other.psi
    assert len(moved.reference) == len(moved.current) == len(moved.labels)
    assert sum(moved.reference) == pytest.approx(1) == sum(moved.current)
    assert moved.unseen > moved.missing == 0
    assert (state.alarms, state.window_rows) == (1, 24 * 60)


def test_one_cause_is_one_alarm_until_the_column_has_come_back() -> None:
    random = np.random.default_rng(1)
    detector = Detector(reference(random), DriftSettings())
    calm = lambda hour, rows: [numbers(random, rows), codes(random, rows)]  # noqa: E731
    shifted = lambda hour, rows: [numbers(random, rows) * 3, codes(random, rows)]  # noqa: E731
    assert len(play(detector, 10, shifted)) == 1
    assert play(detector, 5, calm, 10 * DAY_S) == []
    assert not detector.state().columns[0].drifting
    assert len(play(detector, 5, shifted, 15 * DAY_S)) == 1


@pytest.mark.parametrize(("column", "change"), [
    (0, lambda values: np.where(np.arange(len(values)) % 5 == 0, np.nan, values)),
    (1, lambda values: np.where(np.arange(len(values)) % 5 == 0, "new", values)),
    (1, lambda values: np.where(np.arange(len(values)) % 5 == 0, "", values)),
    (1, lambda values: np.where(np.arange(len(values)) % 2 == 0, "b", values)),
    (0, np.abs),
], ids=["missing", "unseen", "empty", "other shares", "other shape"])  # fmt: skip
def test_what_moves_is_found_whatever_it_is(column: int, change) -> None:
    random = np.random.default_rng(2)
    detector = Detector(reference(random), DriftSettings())

    def draw(hour: int, rows: int) -> list[Array]:
        values = [numbers(random, rows), codes(random, rows)]
        values[column] = change(values[column])
        return values

    (alarm,) = play(detector, 3, draw)
    assert [each.name for each in alarm.columns] == [("number", "code")[column]]


def test_a_daily_rhythm_within_the_window_is_no_drift() -> None:
    """By hour the column is far off; over the whole window, which is a day, it is the reference."""
    random = np.random.default_rng(3)
    hours = random.integers(24, size=1000)
    detector = Detector([sketch("input", "hour", (hours + random.random(1000)))], DriftSettings())
    assert play(detector, 30, lambda hour, rows: [hour + random.random(rows)], per_hour=200) == []
    shorter = Detector(detector.sketches, DriftSettings(window_s=HOUR_S))
    assert len(play(shorter, 5, lambda hour, rows: [hour + random.random(rows)], per_hour=200)) > 0


def test_rows_of_one_entity_count_once_in_a_window() -> None:
    random = np.random.default_rng(4)
    detector = Detector(reference(random), DriftSettings())
    same = np.full(50, 77, np.int64)
    for hour in range(48):
        # One client asks for one odd row over and over.
        values: list[Array] = [np.full(50, 9.0), np.full(50, "new", object)]
        assert detector.update(values, hour * HOUR_S, same) is None
    assert detector.counted == 2
    nobody = np.zeros(50, np.int64)
    detector.update([numbers(random, 50), codes(random, 50)], 48 * HOUR_S, nobody)
    assert detector.counted == 52


@pytest.mark.parametrize(("entities", "least"), [(2_000, 0.99), (250_000, 0.9), (3_000_000, 0.1)])
def test_no_entity_counts_twice_in_a_window_however_many_there_are(entities: int, least: float) -> None:
    random = np.random.default_rng(0)
    keys = random.integers(-(2**63), 2**63 - 1, entities)
    once = OncePerWindow()
    for window in range(3):
        counted = np.zeros(entities, np.int64)
        tenths = []
        for asked in range(2):
            for part in np.array_split(random.permutation(entities), 1000):
                first = once.first(keys[part], window)
                counted[part[first]] += 1
                if not asked:
                    tenths.append(np.count_nonzero(first) / len(part))
        assert counted.max() == 1
        assert counted.mean() > least
    assert np.mean(tenths[-100:]) > 0.7 * np.mean(tenths[:100]), "the end of a window counts, too"


def test_keys_in_order_are_told_apart() -> None:
    once = OncePerWindow()
    assert np.count_nonzero(once.first(np.arange(1, 10_001, dtype=np.int64), 0)) > 9_900
    assert once.first(np.array([NONE, 10_001, NONE, 10_001], np.int64), 0).tolist() == [True, True, True, False]


@pytest.mark.parametrize(("blocks", "rows"), [(400, 5), (40, 50)])
def test_the_window_stays_as_long_as_it_is_however_small_the_blocks_are(blocks: int, rows: int) -> None:
    random = np.random.default_rng(0)
    detector = Detector(reference(random), DriftSettings(window_s=HOUR_S))
    moment_s = 0.0

    def play_windows(windows: float, shift: float) -> list[DriftAlarm]:
        nonlocal moment_s
        found = []
        for _ in range(int(windows * blocks)):
            moment_s += HOUR_S / blocks
            alarm = detector.update([numbers(random, rows) + shift, codes(random, rows)], moment_s)
            found += [alarm] if alarm is not None else []
        return found

    assert play_windows(12, 0) == []
    assert detector.state().window_rows == pytest.approx(blocks * rows, rel=1 / 16)
    changed_s = moment_s
    (alarm,) = play_windows(2, 1)
    assert alarm.columns[0].since_s == pytest.approx(changed_s, abs=0.1 * HOUR_S)
    assert detector.state().columns[0].psi > 0.5
    play_windows(2.5, 0)
    moved = detector.state().columns[0]
    assert (moved.drifting, moved.psi < 0.05) == (False, True)


def test_rows_of_the_reference_that_belong_together_are_worth_less() -> None:
    assert effective_rows(np.repeat(np.arange(100), 10), 1000) == pytest.approx(100)
    assert effective_rows(None, 1000) == 1000


def test_ties_and_constants_do_not_alarm_and_a_change_of_a_constant_does() -> None:
    random = np.random.default_rng(5)
    counts = lambda rows: random.poisson(0.3, rows).astype(np.float32)  # noqa: E731
    found = [sketch("input", "count", counts(1000)), sketch("input", "constant", np.full(1000, 3.0))]
    assert found[1].counts == (0, 1000, 0)
    detector = Detector(found, DriftSettings())
    assert play(detector, 20, lambda hour, rows: [counts(rows), np.full(rows, 3.0)]) == []
    (alarm,) = play(detector, 3, lambda hour, rows: [counts(rows), np.full(rows, 3.1)], 20 * DAY_S)
    assert [each.name for each in alarm.columns] == ["constant"]


def test_a_budget_of_fewer_false_alarms_asks_for_more_evidence() -> None:
    random = np.random.default_rng(6)
    sketches = reference(random)
    values = [numbers(random, 300) + 0.6, codes(random, 300)]
    found = []
    for budget in (1.0, 0.01):
        detector = Detector(sketches, DriftSettings(false_alarms_per_month=budget))
        detector.update(values, MONTH_S)
        found.append(detector.state().columns[0].evidence)
    assert found[0] - found[1] == pytest.approx(2)


def test_columns_of_a_tensor_are_named_and_tensors_of_tokens_are_summed_up() -> None:
    pair = TensorSpec(name="x", datatype="FP32", shape=(-1, 2), columns=("a", "b"))
    assert list(columns_of("input", pair, np.zeros((3, 2), np.float32))) == ["a", "b"]
    plain = TensorSpec(name="x", datatype="FP32", shape=(-1, 2))
    assert list(columns_of("input", plain, np.zeros((3, 2), np.float32))) == ["x[0]", "x[1]"]
    tokens = TensorSpec(name="ids", datatype="INT64", shape=(-1, -1))
    ((name, lengths),) = columns_of("input", tokens, np.array([[5, 6, 0], [7, 0, 0]])).items()
    assert (name, lengths.tolist()) == ("ids.nonzero", [2, 1])
    wide = TensorSpec(name="image", datatype="FP32", shape=(-1, 3, 64, 64))
    found = columns_of("input", wide, np.ones((2, 3, 64, 64), np.float32))
    assert {name: values.tolist() for name, values in found.items()} == {"image.mean": [1, 1], "image.std": [0, 0]}


def test_a_reference_comes_back_from_its_bytes_and_a_later_form_is_refused() -> None:
    random = np.random.default_rng(7)
    specs = [TensorSpec(name="x", datatype="FP32", shape=(-1, 2)), TensorSpec(name="text", datatype="BYTES")]
    arrays: dict[str, Array] = {"x": random.normal(size=(50, 2)), "text": codes(random, 50)}
    made = Reference(inputs=sketches_of("input", specs, arrays))
    assert decode(encode(made)) == made
    assert [each.name for each in made.inputs] == ["x[0]", "x[1]", "text"]
    with pytest.raises(ArtifactError, match=r"form 9.*up to 1"):
        decode(encode(Reference(form=9, inputs=())))
    with pytest.raises(ArtifactError, match="cannot be read"):
        decode(b"{")
