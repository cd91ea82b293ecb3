"""The promise of the verdict on speed: variants that are equally fast are rarely called faster."""

from __future__ import annotations

import numpy as np
import pytest

from tailcut.build.verdicts import speed
from tailcut.core.slo import LatencyObjective

SLO = LatencyObjective(share=0.95, limit_s=0.025)


@pytest.mark.parametrize("rounds", [3, 5, 7, 15])
def test_equal_variants_are_called_faster_in_no_more_than_five_of_a_hundred(rounds: int) -> None:
    random = np.random.default_rng(rounds)
    trials = 4000
    faster = 0
    for _ in range(trials):
        noise = np.exp(random.normal(0.0, 0.15, (2, rounds)))
        faster += speed("onnx", list(10 * noise[0]), list(10 * noise[1]), [0.0] * rounds, SLO, 0.001).faster
    assert faster / trials <= 0.05 + 3 * (0.05 * 0.95 / trials) ** 0.5
