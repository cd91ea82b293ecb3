"""What of a manifest answers depend on: every change of it is named, and nothing else is."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.manifest.answer_settings import other_settings
from tailcut.manifest.keys import to_plain
from tailcut.manifest.reading import read

DEPLOYMENT = read(
    {
        "name": "m",
        "model": {
            "source": "train:build",
            "postprocess": "hooks:after",
            "inputs": [{"name": "x", "shape": [-1, 2], "columns": ["a", "b"]}],
            "outputs": [{"name": "y"}],
            "fields": [{"name": "a", "type": "number"}],
        },
        "features": {
            "entity": ["id"],
            "groups": [
                {"name": "g", "key": ["id"], "columns": ["a", "b"], "ttl": "1h", "function": "groups:g"},
            ],
        },
    },
    {},
)
PLAIN: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(to_plain(DEPLOYMENT)))
"""As a record has it."""

CHANGES: dict[str, tuple[tuple[Any, ...], Any]] = {
    "model.preprocess": (("model", "preprocess"), "hooks:two"),
    "model.postprocess": (("model", "postprocess"), ""),
    "model.inputs.x.columns": (("model", "inputs", 0, "columns"), ["b", "a"]),
    "model.inputs.x.allow_nan": (("model", "inputs", 0, "allow_nan"), True),
    "model.outputs.y.allow_nan": (("model", "outputs", 0, "allow_nan"), True),
    "model.fields.a.type": (("model", "fields", 0, "type"), "integer"),
    "features.entity": (("features", "entity"), ["other"]),
    "features.clock": (("features", "clock"), "clock:now"),
    "features.groups.g.columns": (("features", "groups", 0, "columns"), ["b", "a"]),
    "features.groups.g.key": (("features", "groups", 0, "key"), ["a"]),
    "features.groups.g.function": (("features", "groups", 0, "function"), "groups:h"),
    "features.groups.g.ttl": (("features", "groups", 0, "ttl"), "2h"),
    "features.groups.g.defaults": (("features", "groups", 0, "defaults"), {"a": 1, "b": 2}),
}
NO_CHANGES: list[tuple[tuple[Any, ...], Any]] = [
    (("python_path",), ["src"]),
    (("model", "files"), ["table.txt"]),
    (("model", "inputs", 0, "min"), 0),
    (("model", "fields", 0, "max"), 5),
    (("features", "database"), "sqlite:///other.db"),
    (("features", "connections"), 3),
    (("batching", "max_rows"), 2),
    (("slo", "timeout"), "5s"),
    (("serve", "variant"), "other"),
]


def changed(changes: list[tuple[tuple[Any, ...], Any]]) -> dict[str, Any]:
    plain = copy.deepcopy(PLAIN)
    for path, value in changes:
        place: Any = plain
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
    return plain


@given(st.sets(st.sampled_from(sorted(CHANGES))), st.sets(st.integers(0, len(NO_CHANGES) - 1)), st.booleans())
def test_exactly_the_settings_that_answers_depend_on_are_named(names: set[str], others: set[int], live: bool) -> None:
    built = changed([CHANGES[name] for name in names] + [NO_CHANGES[index] for index in others])
    found = other_settings(DEPLOYMENT, built, live=live)
    assert {each.split(" was ")[0] for each in found} == names


@pytest.mark.parametrize("live", [False, True])
def test_the_source_counts_where_the_users_own_object_runs(live: bool) -> None:
    found = other_settings(DEPLOYMENT, changed([(("model", "source"), "train:other")]), live=live)
    assert found == (("model.source was 'train:other' and is 'train:build'",) if live else ())


def test_an_element_that_is_new_or_gone_is_named() -> None:
    built = copy.deepcopy(PLAIN)
    built["features"]["groups"][0]["name"] = "h"
    found = {each.split(" was ")[0] for each in other_settings(DEPLOYMENT, built, live=False)}
    assert {"features.groups.g.function", "features.groups.h.function"} <= found
    assert "features.groups.g.function was not there and is 'groups:g'" in other_settings(DEPLOYMENT, built, live=False)


def test_keys_that_the_builds_tailcut_did_not_have_are_at_their_defaults() -> None:
    built = copy.deepcopy(PLAIN)
    for section, key in ((built["model"]["inputs"][0], "allow_nan"), (built["features"]["groups"][0], "per_tenant")):
        del section[key]
    del built["features"]["clock"]
    assert other_settings(DEPLOYMENT, built, live=True) == ()


def test_a_version_without_a_record_of_its_manifest_differs_in_nothing() -> None:
    assert other_settings(DEPLOYMENT, {}, live=True) == ()


def test_a_long_value_is_cut() -> None:
    found = other_settings(DEPLOYMENT, changed([(("model", "preprocess"), "hooks:" + "x" * 500)]), live=False)
    assert len(found[0]) < 200
