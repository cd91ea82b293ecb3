"""What cannot be opened is neither promoted nor gone back to, and ``verify`` tells it from what is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.registry_kit import add

from tailcut.errors import ArtifactError, NotServable
from tailcut.registry import Registry, Version


class Trial:
    """Opens everything but what it was told not to; keeps what it was asked for."""

    def __init__(self, **broken: ArtifactError) -> None:
        self.broken = broken
        self.asked: list[tuple[str, str]] = []

    def __call__(self, version: Version, name: str) -> str:
        self.asked.append((version.id, name))
        for each in (name, f"v{version.serial}"):
            if each in self.broken:
                raise self.broken[each]
        return "opened"


MISSING = NotServable("it needs lightgbm", hint="pip install it")


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "registry")


def versions(registry: Registry, folder: Path, count: int) -> list[str]:
    """Add versions and promote the onnx variant of each."""
    found = [add(registry, folder, f"{number}".encode()).id for number in range(count)]
    for each in found:
        registry.promote("flights", each, "onnx")
    return found


def test_rollback_passes_over_what_cannot_be_opened_and_says_so(registry: Registry, tmp_path: Path) -> None:
    first, second, _ = versions(registry, tmp_path, 3)
    trial, said = Trial(v2=MISSING), []
    after = registry.rollback("flights", trial=trial, notice=said.append)
    assert (after.version, after.variant) == (first, "onnx")
    assert trial.asked == [(second, "onnx"), (first, "onnx")], "each is opened once, newest first"
    assert said == [f"skipped onnx of {second}: it needs lightgbm"]


def test_rollback_goes_nowhere_rather_than_to_what_cannot_be_opened(registry: Registry, tmp_path: Path) -> None:
    first, second, third = versions(registry, tmp_path, 3)
    trial = Trial(v1=ArtifactError("it crashes", hint="build again"), v2=MISSING)
    with pytest.raises(ArtifactError, match=f"onnx of {second}: it needs lightgbm; onnx of {first}: it crashes") as no:
        registry.rollback("flights", trial=trial)
    assert no.value.hint == "pip install it; build again; `tailcut registry list` lists what can be promoted"
    assert (now := registry.promotion("flights")) is not None
    assert now.version == third
    assert len(trial.asked) == 2


def test_promote_opens_first(registry: Registry, tmp_path: Path) -> None:
    (first,) = versions(registry, tmp_path, 1)
    with pytest.raises(NotServable, match="lightgbm"):
        registry.promote("flights", first, "torch", trial=Trial(torch=MISSING))
    with pytest.raises(NotServable, match="lightgbm"):
        registry.promote("flights", first, "torch", force=True, trial=Trial(torch=MISSING))
    assert (now := registry.promotion("flights")) is not None
    assert now.variant == "onnx"
    assert registry.promote("flights", first, "torch", trial=Trial()).variant == "torch"


def test_verify_opens_what_is_whole(registry: Registry, tmp_path: Path) -> None:
    (first,) = versions(registry, tmp_path, 1)
    blob = registry.artifact("flights", "int8", first).artifact
    blob.write_bytes(b"other")
    trial = Trial(torch=MISSING)
    found = {what.split()[2]: (what, error) for what, error in registry.verify(trial)}
    assert found["onnx"][0].endswith(": opened")
    assert found["torch"][1] is MISSING
    assert not isinstance(found["int8"][1], NotServable)
    assert found["int8"][1] is not None
    assert (first, "int8") not in trial.asked
    assert all(": opened" not in what for what, _ in registry.verify())


def test_what_is_promoted_and_cannot_be_served_is_bad(registry: Registry, tmp_path: Path) -> None:
    versions(registry, tmp_path, 2)
    found = [error for _, error in registry.verify(Trial(onnx=MISSING)) if error is not None]
    assert [isinstance(error, NotServable) for error in found].count(False) == 1
    assert sorted(error.message for error in found) == ["it needs lightgbm", "it needs lightgbm; it is promoted"]
