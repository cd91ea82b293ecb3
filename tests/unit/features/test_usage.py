"""The table of keys in use: bounded, and nothing in it is forgotten or asked for twice."""

from __future__ import annotations

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from tailcut.features.entry import Entry
from tailcut.features.groups import Group
from tailcut.features.refresh import COMPACT_FROM, UsageTable
from tailcut.features.sources.base import Source
from tailcut.manifest.schema import FeatureGroup


def group_of(name: str = "g") -> Group:
    spec = FeatureGroup(name=name, key=("id",), columns=("value",), ttl="1h", function="m:f")
    return Group(spec=spec, own_id=name.encode(), source=cast(Source, None), ttl=3600.0)


def entry(now_s: float, ttl_s: float = 3600.0) -> Entry:
    return Entry({"value": 1.0}, now_s + ttl_s, ttl_s)


def test_a_key_that_is_written_again_and_again_takes_bounded_memory() -> None:
    """As where the cache is too small for what is in use: seen before, 100,000 writes were 100,000 things to do."""
    table, group = UsageTable(), group_of()
    table.note(group, (1,), b"1", "", entry(0.0), 0.0)
    for step in range(10 * COMPACT_FROM):
        table.written(group, b"1", entry(step / 1000))
    assert table.planned <= COMPACT_FROM + 1
    last_due_s = group.usages[b"1"].due_s
    group.usages[b"1"].last_asked_s = last_due_s
    assert table.take_due(last_due_s - 0.001, 10) == []
    assert [usage.key for usage in table.take_due(last_due_s, 10)] == [(1,)]


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0, 100), st.floats(1, 100)), max_size=60), st.integers(1, 8))
def test_every_key_in_use_is_due_exactly_once_however_it_was_written(
    writes: list[tuple[int, float, float]], compact_from: int
) -> None:
    table, group = UsageTable(compact_from), group_of()
    for key, at_s, ttl_s in writes:
        store_key = b"%d" % key
        table.note(group, (key,), store_key, "", entry(at_s, ttl_s), at_s)
        table.written(group, store_key, entry(at_s, ttl_s), 0.5)
    for usage in group.usages.values():
        usage.last_asked_s = 200.0
    taken = table.take_due(200.0, 1000)
    assert sorted(usage.key for usage in taken) == sorted(usage.key for usage in group.usages.values())
