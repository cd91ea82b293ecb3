"""Levels of feature groups: every group once, after all the groups that its key needs, and no later than it must."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.errors import ManifestError
from tailcut.manifest import FeatureGroup, Features, groups_in_levels


def group(name: str, key: tuple[str, ...]) -> FeatureGroup:
    return FeatureGroup(name=name, key=key, columns=(f"{name}_a", f"{name}_b"), ttl="1s", sql="S")


@st.composite
def acyclic(draw: st.DrawFn) -> Features:
    """Groups whose keys use the entity and groups drawn before them, in any order in the manifest."""
    groups: list[FeatureGroup] = []
    for number in range(draw(st.integers(0, 8))):
        known = ["id", "day", *(column for one in groups for column in one.columns)]
        key = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
        groups.append(group(f"g{number}", tuple(key)))
    return Features(entity=("id", "day"), groups=tuple(draw(st.permutations(groups))))


@given(acyclic())
def test_every_group_stands_once_and_right_after_what_it_needs(features: Features) -> None:
    levels = groups_in_levels(features)
    level_of = {one.name: number for number, level in enumerate(levels) for one in level}
    assert sorted(level_of) == sorted(one.name for one in features.groups)
    assert sum(map(len, levels)) == len(features.groups)
    for one in features.groups:
        needed = [level_of[column.split("_")[0]] for column in one.key if column not in features.entity]
        assert level_of[one.name] == (max(needed) + 1 if needed else 0)


@given(acyclic())
def test_the_manifests_order_stays_within_a_level(features: Features) -> None:
    order = {one.name: place for place, one in enumerate(features.groups)}
    for level in groups_in_levels(features):
        assert [order[one.name] for one in level] == sorted(order[one.name] for one in level)


@given(st.integers(2, 6), st.randoms())
def test_a_cycle_is_refused_and_only_its_groups_are_named(length: int, random: object) -> None:
    cycle = [group(f"g{n}", (f"g{(n + 1) % length}_a",)) for n in range(length)]
    groups = [group("root", ("id",)), *cycle, group("above", ("g0_b",))]
    random.shuffle(groups)  # type: ignore[attr-defined]
    with pytest.raises(ManifestError) as caught:
        groups_in_levels(Features(entity=("id",), groups=tuple(groups)))
    for one in cycle:
        assert one.name in caught.value.message
    assert "root" not in caught.value.message
    assert "above" not in caught.value.message


def test_an_unknown_key_column_is_refused() -> None:
    with pytest.raises(ManifestError, match="zip is neither a field of the entity nor a column of a group"):
        groups_in_levels(Features(entity=("id",), groups=(group("g", ("zip",)),)))
