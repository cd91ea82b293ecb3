"""Cells of the matrix: what is served is the model's own answer, or is refused with a reason.

``make test`` has one or two groups of each model, ``make test-all`` all of them; every pair of levels is in 54 groups.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from tests.matrix.answers import differs
from tests.matrix.axes import FORMS, GROUPS, LABELS, MODELS, PROTOCOLS, VALUES, Group, pairwise
from tests.matrix.running import Finding, Result, run
from tests.scale import sized

pytestmark = [
    pytest.mark.integration,
    # Servers and builds run in this process, with the model libraries' warnings, which no server makes errors.
    pytest.mark.filterwarnings("ignore"),
]

CHOSEN = pairwise()
FEW = [group for place, group in enumerate(CHOSEN) if (place + place // len(VALUES)) % 4 == 1]


def may_be_refused(group: Group) -> bool:
    """Tell which groups need no variant that answers."""
    if group.values == "text":
        # torch has no tensors of text; that a model was fitted on pandas' categories no tensor says.
        return group.model in ("torch", "lightgbm", "xgboost")
    # LightGBM makes float32 of an array of integers: their last digits are lost before it looks at them.
    return group.model == "lightgbm" and group.values == "int64" and group.one_tensor and not group.on_frame


@cache
def result_of(group: Group) -> Result:
    found = run(group)
    gc.collect()  # servers, sessions and estimators of a group that is done
    return found


@pytest.mark.parametrize("group", sized(FEW, GROUPS), ids=lambda group: group.slug)
def test_served_is_the_own_answer_or_refused(group: Group) -> None:
    found = result_of(group)
    assert found.wrong == []
    if not may_be_refused(group):
        refused = [each for each in found.findings if each.outcome == "refused" and each.form != "no rows"]
        assert {cell for cell, outcome in found.cells().items() if outcome == "refused"} == {
            ("no rows", protocol) for protocol in PROTOCOLS
        }, refused


def test_every_pair_of_levels_is_chosen() -> None:
    axes = {"model": MODELS, "values": VALUES, "labels": LABELS}
    for one, other in combinations(axes, 2):
        chosen = {(getattr(group, one), getattr(group, other)) for group in CHOSEN}
        assert chosen == {(first, second) for first in axes[one] for second in axes[other]}
    assert len(CHOSEN) < len(GROUPS) / 4


def test_the_few_groups_have_every_level() -> None:
    for axis, levels in {"model": MODELS, "values": VALUES, "labels": LABELS}.items():
        assert {getattr(group, axis) for group in FEW} == set(levels), axis


def test_both_layouts_and_both_ways_to_call_are_chosen() -> None:
    for model in MODELS:
        mine = [group for group in CHOSEN if group.model == model]
        assert {group.one_tensor for group in mine} == {True, False}
        if model in ("lightgbm", "xgboost", "tree", "forest", "histgradient", "linear"):
            assert {group.on_frame for group in mine} == {True, False}


@pytest.fixture
def group() -> Iterator[Group]:
    return Group("linear", "float32", "1..3")


def test_rounding_is_no_difference_and_more_is(group: Group) -> None:
    wanted = np.array([[0.2, 0.3, 0.5], [0.1, 0.8, 0.1]])
    assert differs(group, wanted.astype(np.float32), wanted) == ""
    assert "1 of 2 rows" in differs(group, wanted + np.array([[0, 0, 0], [0, 1e-4, 0]]), wanted)
    assert "shape" in differs(group, wanted[:1], wanted)
    assert "2 of 2 rows" in differs(group, np.full((2, 3), np.nan), wanted)


def test_a_cell_is_wrong_where_any_variant_is() -> None:
    right = [Finding(outcome="equal", variant="a", form=form, protocol="json") for form in FORMS]
    wrong = Finding(outcome="WRONG", variant="b", form="one row", protocol="json")
    found = Result(group=("tree", "text", "0/1"), findings=[*right, wrong]).cells()
    assert [found[form, "json"] for form in FORMS] == ["equal", "WRONG", "equal"]
    assert found["many rows", "grpc"] == "refused"
