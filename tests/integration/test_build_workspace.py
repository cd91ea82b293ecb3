"""A build whose registry has no room for the model ends before it sends load, and leaves the registry as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.builder.test_workspace import small_disk

from tailcut.builder import build
from tailcut.builder.progress import Event
from tailcut.errors import BuildError
from tailcut.manifest import load
from tailcut.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("warm_builds")]

CODE = """
import numpy as np
from tailcut.builder import Holdout


def rows():
    values = np.random.default_rng(0).normal(size=(3000, 8)).astype(np.float32)
    return values, (values[:, 0] * values[:, 1] + values[:, 2] > 0).astype(int)


def model():
    from sklearn.ensemble import RandomForestClassifier

    values, labels = rows()
    return RandomForestClassifier(200, random_state=0, n_jobs=1).fit(values[:2000], labels[:2000])


def holdout():
    values, labels = rows()
    return Holdout(inputs={"x": values[2000:]}, labels=labels[2000:])
"""
MANIFEST = """
name = "forest"
[model]
source = "forest_code:model"
inputs = [{ name = "x", shape = [-1, 8] }]
outputs = [{ name = "probability", shape = [-1, 2] }]
[holdout]
source = "forest_code:holdout"
[quality.budget]
accuracy = 0.02
[build]
recipes = ["onnx"]
"""


def test_a_full_disk_is_found_before_the_load_rounds(tmp_path: Path) -> None:
    (tmp_path / "forest_code.py").write_text(CODE)
    (tmp_path / "tailcut.toml").write_text(MANIFEST)
    steps: list[str] = []

    def note(event: Event) -> None:
        steps.append(event.step)

    with small_disk(tmp_path / "disk", 5 << 20) as disk:
        manifest = load(tmp_path, environment={}, overrides=[f"registry.path={disk / 'registry'}"])
        with pytest.raises(
            BuildError, match=r"has too little free space: .* for the registry .* are needed, .* are free"
        ):
            build(manifest, progress=note)
        assert "source" in steps
        assert not {"tune", "race", "load"} & set(steps)
        assert Registry(disk / "registry").list("forest") == ()
