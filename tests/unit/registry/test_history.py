"""registry: promotions and the way back, and how often a confirmation split was asked."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.registry_kit import AVX2, add

from tailcut.errors import ArtifactError
from tailcut.registry import Move, Promotion, Registry
from tailcut.registry.history import LONGEST_HISTORY, promoted, rolled_back
from tailcut.registry.store import MOST_SETS, MOST_SPLITS, Ledger, count_other, recorded


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "registry", machine=AVX2)


def served(registry: Registry) -> tuple[str, str]:
    promotion = registry.promotion("flights")
    assert promotion is not None
    return promotion.version, promotion.variant


def test_a_rollback_goes_back_and_again_further_back(registry: Registry, tmp_path: Path) -> None:
    ids = [add(registry, tmp_path, content).id for content in (b"1", b"2", b"3")]
    for each in ids:
        registry.promote("flights", each, "onnx")
    assert registry.rollback("flights").version == ids[1]
    assert registry.rollback("flights").version == ids[0] == served(registry)[0]
    with pytest.raises(ArtifactError, match="no earlier promotion to roll back to"):
        registry.rollback("flights")
    assert served(registry) == (ids[0], "onnx")
    registry.promote("flights", ids[2], "torch")
    assert registry.rollback("flights").version == ids[0], "what was rolled back from is not what was before"
    history = registry.promotion("flights").history
    assert [(each.version, each.how) for each in history] == [
        (ids[0], "rollback"),
        (ids[2], "promote"),
        (ids[0], "rollback"),
        (ids[1], "rollback"),
        (ids[2], "promote"),
        (ids[1], "promote"),
        (ids[0], "promote"),
    ]


def test_a_rollback_passes_over_what_cannot_be_served_and_names_it(registry: Registry, tmp_path: Path) -> None:
    ids = [add(registry, tmp_path, content).id for content in (b"1", b"2", b"3")]
    for each in ids:
        registry.promote("flights", each, "onnx")
    registry.retire("flights", ids[1])
    blob = registry.artifact("flights", "onnx", ids[0]).artifact
    whole = blob.read_bytes()
    blob.write_bytes(b"?")
    with pytest.raises(ArtifactError, match=f"onnx of {ids[1]}: .* was retired.*; onnx of {ids[0]}: .* has 1 bytes"):
        registry.rollback("flights")
    assert served(registry) == (ids[2], "onnx")
    blob.write_bytes(whole)
    assert registry.rollback("flights").version == ids[0]


def test_promoting_what_is_promoted_changes_nothing(registry: Registry, tmp_path: Path) -> None:
    version = add(registry, tmp_path)
    assert registry.promotion_stamp("flights") is None
    first = registry.promote("flights", version.id, "onnx")
    stamp = registry.promotion_stamp("flights")
    assert registry.promote("flights", version.id, "onnx") == first
    assert registry.promotion_stamp("flights") == stamp
    registry.promote("flights", version.id, "torch")
    assert registry.promotion_stamp("flights") != stamp


def test_a_pointer_without_history_is_refused_until_a_promotion_writes_one(registry: Registry, tmp_path: Path) -> None:
    version = add(registry, tmp_path)
    registry.promote("flights", version.id, "onnx")
    (registry.root / "models" / "flights" / "promoted.json").write_text(
        f'{{"version": "{version.id}", "variant": "onnx", "promoted": "2026-01-01"}}'
    )
    with pytest.raises(ArtifactError, match="missing required field `history`") as refused:
        registry.rollback("flights")
    assert "promote a version" in refused.value.hint
    registry.promote("flights", version.id, "torch")
    assert registry.variant("flights").name == "torch"


def test_promotions_at_the_same_moment_are_all_kept(registry: Registry, tmp_path: Path) -> None:
    ids = [add(registry, tmp_path, str(number).encode()).id for number in range(8)]
    start = threading.Barrier(len(ids), timeout=30)

    def promote(version: str) -> None:
        start.wait()
        Registry(registry.root, machine=AVX2).promote("flights", version, "onnx")

    threads = [threading.Thread(target=promote, args=(each,)) for each in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    history = registry.promotion("flights").history
    assert {each.version for each in history} == set(ids)
    assert served(registry)[0] == history[0].version


moves = st.lists(st.tuples(st.sampled_from(["promote", "rollback"]), st.sampled_from("abc")), max_size=30)


@given(moves)
def test_rollback_is_an_undo_of_promotions(steps: list[tuple[str, str]]) -> None:
    """Beside a plain stack: a promotion pushes unless it is the top, a rollback pops."""
    stack: list[str] = []
    pointer: Promotion | None = None
    for how, name in steps:
        if how == "promote":
            pointer = promoted(pointer, Move(version=name, variant="onnx", at="now"))
            if stack[-1:] != [name]:
                stack.append(name)
        elif pointer is not None:
            after = rolled_back(pointer, "now", lambda move: "")
            assert (after is None) == (len(stack) == 1)
            if after is not None:
                stack.pop()
                pointer = after
        assert (pointer.version if pointer else None) == (stack[-1] if stack else None)
        assert pointer is None or pointer.history[0].version == pointer.version


def test_a_history_has_an_end() -> None:
    pointer = None
    for number in range(3 * LONGEST_HISTORY):
        pointer = promoted(pointer, Move(version=str(number), variant="onnx", at="now"))
    assert pointer is not None
    assert len(pointer.history) == LONGEST_HISTORY


def test_a_split_is_counted_once_per_other_set_of_artifacts(registry: Registry) -> None:
    assert registry.confirmations("flights", "split", ["a", "b"]) == 0
    registry.record_confirmation("flights", "split", ["b", "a", "a"])
    assert registry.confirmations("flights", "split", ["a", "b"]) == 0, "the same set asks nothing new"
    registry.record_confirmation("flights", "split", ["a", "b"])
    assert registry.confirmations("flights", "split", ["a", "c"]) == 1
    registry.record_confirmation("flights", "split", ["a", "c"])
    assert registry.confirmations("flights", "split", ["a", "b"]) == 1
    assert registry.confirmations("flights", "split", ["d"]) == 2
    assert registry.confirmations("flights", "another split", ["d"]) == 0
    assert registry.confirmations("another", "split", ["d"]) == 0
    registry.collect_garbage()
    assert registry.confirmations("flights", "split", ["d"]) == 2, "garbage collection forgets nothing"


@given(st.lists(st.sets(st.sampled_from("abcdef"), min_size=1), max_size=40), st.sets(st.sampled_from("abcdef")))
def test_the_count_is_that_of_other_sets(judged: list[set[str]], mine: set[str]) -> None:
    ledger = Ledger()
    for each in judged:
        ledger = recorded(ledger, "split", sorted(each))
    assert count_other(ledger, "split", mine) == len({frozenset(each) for each in judged} - {frozenset(mine)})


def test_a_ledger_stays_small_and_forgets_no_use_of_a_split_that_it_knows() -> None:
    ledger = Ledger()
    for number in range(MOST_SETS + 50):
        ledger = recorded(ledger, "split", [str(number)])
    assert len(ledger.splits["split"].sets) == MOST_SETS
    assert count_other(ledger, "split", ["other"]) == MOST_SETS + 50
    for number in range(MOST_SPLITS):
        ledger = recorded(ledger, f"split {number}", ["a"])
    assert len(ledger.splits) == MOST_SPLITS
    assert "split" not in ledger.splits, "it was used longest ago"
