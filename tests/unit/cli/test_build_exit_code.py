"""``tailcut build`` ends with 0 where what it promotes meets the SLO, and with 1 where nothing does."""

from __future__ import annotations

from pathlib import Path

import pytest

import tailcut.builder
from tailcut.cli.app import run
from tailcut.manifest import TensorSpec
from tailcut.registry import Promotion, VariantRecord, Version
from tailcut.registry.evidence import Choice, VersionEvidence

MANIFEST = """
name = "m"
[model]
source = "m:model"
inputs = [{ name = "x" }]
outputs = [{ name = "y" }]
"""


def built(*, meets_slo: bool) -> tuple[Version, Promotion]:
    version = Version(
        model="m",
        id="0123456789ab",
        created="2026-11-21T00:00:00",
        source="torch",
        inputs=(TensorSpec(name="x"),),
        outputs=(TensorSpec(name="y"),),
        variants={"torch": VariantRecord(runtime="torch", sha256="ab", size_bytes=1, state="passed")},
        evidence=VersionEvidence(choice=Choice(variant="torch", why="the fastest that passed", meets_slo=meets_slo)),
    )
    return version, Promotion(version="0123456789ab", variant="torch", promoted="2026-11-21T00:00:00", history=())


@pytest.mark.parametrize(("meets_slo", "code"), [(True, 0), (False, 1)])
def test_a_build_of_which_nothing_meets_the_slo_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], meets_slo: bool, code: int
) -> None:
    (tmp_path / "tailcut.toml").write_text(MANIFEST)
    monkeypatch.setattr(tailcut.builder, "build", lambda manifest, **settings: built(meets_slo=meets_slo))
    assert run(["build", "-m", str(tmp_path)]) == code
    printed = capsys.readouterr()
    assert "chosen: the fastest that passed" in printed.out
    assert "promoted 'torch'" in printed.err
