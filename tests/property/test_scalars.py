"""common.scalars: which values stand for no value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.common.scalars import is_missing

PLAIN = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary())


@given(st.one_of(PLAIN, st.lists(PLAIN), PLAIN.map(lambda value: np.array([value, value])[0])))
def test_a_value_is_not_missing(value: Any) -> None:
    assert is_missing(value) is False


@pytest.mark.parametrize("value", [np.zeros(2), np.zeros(0), np.array([None, math.nan]), np.False_, np.float32(0)])
def test_arrays_and_scalars_of_numpy_are_not_missing(value: Any) -> None:
    assert is_missing(value) is False


@pytest.mark.parametrize("value", [None, math.nan, np.float32("nan"), np.datetime64("NaT"), pd.NA, pd.NaT])
def test_every_spelling_of_a_gap_is_missing(value: Any) -> None:
    assert is_missing(value) is True
