"""Laws of the drift detector's parts, whatever the data."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tailcut.common.tensors import Array
from tailcut.observe.drift.detector import (
    STAKES,
    Bets,
    Cellular,
    Detector,
    DriftSettings,
    Effect,
    payoffs_of,
    transform,
)
from tailcut.observe.drift.sketch import sketch

FLOATS = hnp.arrays(np.float64, st.integers(1, 200), elements=st.floats(width=32))
"""NaN, infinities, subnormals and ties included."""
CODES = hnp.arrays(np.int64, st.integers(1, 200), elements=st.integers(-(2**63), 2**63 - 1))
SMALL = hnp.arrays(np.int64, st.integers(1, 200), elements=st.integers(-3, 3))
TEXTS = st.lists(st.text(max_size=3), min_size=1, max_size=60).map(lambda each: np.array([*each, ""], object)[:-1])
COLUMNS = st.one_of(FLOATS, CODES, SMALL, TEXTS)


@given(COLUMNS)
@settings(max_examples=200, deadline=None)
def test_the_reference_lies_in_its_own_cells(values: Array) -> None:
    made = sketch("input", "x", values)
    placed = Cellular([made])
    counts = placed.count(placed.place([values]))[0]
    assert counts.tolist() == [*made.counts, made.missing]
    assert made.rows == len(values)
    assert len(made.labels()) == made.cells
    assert Effect([made]).psi(counts[None])[0] == 0, "a window that is the reference has no effect"


@given(COLUMNS, COLUMNS, st.floats(0, 0.9))
@settings(max_examples=200, deadline=None)
def test_no_bet_loses_all_and_none_wins_on_the_reference(values: Array, other: Array, min_effect: float) -> None:
    made = [sketch("input", "x", values), sketch("input", "y", other)]
    bets = Bets(made, min_effect)
    assert np.isfinite(bets.table).all()
    for place, each in enumerate(made):
        shares = np.array([*each.counts, each.missing]) / each.rows
        wealth = shares @ np.exp(bets.table[place, : each.cells])
        assert (wealth <= 1 + 1e-9).all()
        assert bets.table.shape[2] >= np.isfinite(bets.shares[place]).sum() <= 2 * len(STAKES) * len(payoffs_of(each))


@given(FLOATS)
@settings(max_examples=100, deadline=None)
def test_the_transform_rises_and_is_a_half_on_average(values: Array) -> None:
    made = sketch("input", "x", values)
    u = transform(made)
    assert (np.diff(u) >= 0).all()
    assert ((u >= 0) & (u <= 1)).all()
    known = np.array(made.counts)
    if known.sum():
        assert abs(known @ u / known.sum() - 0.5) < 1e-9


@given(st.lists(st.tuples(COLUMNS, st.floats(0, 1e6)), max_size=6), COLUMNS)
@settings(max_examples=100, deadline=None)
def test_any_rows_at_any_pace_leave_a_state_that_can_be_shown(blocks: list[tuple[Array, float]], values: Array) -> None:
    detector = Detector([sketch("input", "x", values)], DriftSettings())
    now_s = 0.0
    numeric = detector.sketches[0].is_numeric
    for block, passed_s in blocks:
        now_s += passed_s
        if numeric and block.dtype.hasobject:
            continue
        detector.update([block], now_s)
    (column,) = detector.state().columns
    assert column.psi >= 0
    assert column.evidence is None or not np.isnan(column.evidence)
