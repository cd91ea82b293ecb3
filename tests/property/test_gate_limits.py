"""The gate: each verdict agrees with the confidence limit that is reported beside it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tailcut.gate import judge

ROWS = st.integers(40, 400)
BUDGETS = st.sampled_from([0.003, 0.02, 0.1, 0.4])


@given(
    st.integers(0, 2**32 - 1),
    ROWS,
    BUDGETS,
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4),
    st.integers(0, 3),
    st.sampled_from([None, 3, 20]),
)
def test_what_passes_has_a_limit_within_its_budget_and_what_stays_open_has_not(
    seed: int, rows: int, budget: float, spoiled: list[float], uses: int, per_group: int | None
) -> None:
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(rows) % 2)
    source = np.clip(np.where(labels == 1, 0.75, 0.25) + random.normal(0.0, 0.15, rows), 0.01, 0.99)
    variants = {}
    for number, share in enumerate(spoiled):
        noise = random.normal(0.0, 0.3, rows) * (random.random(rows) < share)
        variants[f"v{number}"] = np.clip(source + noise, 0.01, 0.99)
    budgets = {"accuracy": budget, "auc": budget, "log_loss": budget}
    groups = None if per_group is None else np.arange(rows) // per_group
    verdicts = judge(variants, source, labels, {}, budgets, uses=uses, groups=groups, resamples=200)
    for verdict in verdicts.values():
        for metric in verdict.metrics:
            if metric.outcome == "pass":
                assert metric.upper is not None
                assert metric.upper <= budget + 1e-6, metric
            elif metric.outcome == "inconclusive":
                assert metric.upper is None or metric.upper > budget - 1e-6, metric
            else:
                assert metric.lower is not None
                assert metric.lower > budget - 1e-6, metric
            assert metric.lower is None or metric.upper is None or metric.lower <= metric.upper + 1e-9
        assert (verdict.outcome == "pass") == all(metric.outcome == "pass" for metric in verdict.metrics)
