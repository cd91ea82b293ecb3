"""The manifest that ``tailcut init`` writes."""

from __future__ import annotations

import re
from pathlib import Path

from tests.manifest_kit import leaves

from tailcut.manifest import load
from tailcut.manifest.template import ListElement, template


def test_it_loads_as_it_is_and_sets_nothing_but_what_is_required(tmp_path: Path) -> None:
    (tmp_path / "tailcut.toml").write_text(template())
    loaded = load(tmp_path, environment={})
    assert loaded.deployment.name == "my-model"
    assert sorted(loaded.origins) == [
        "model.inputs.features.name",
        "model.inputs.features.shape",
        "model.outputs.probability.name",
        "model.source",
        "name",
    ]


def test_the_slo_stands_first() -> None:
    """Variants, batch sizes and verdicts follow from it."""
    for filled in (None, {"model.source": "m.onnx", "model.inputs": [ListElement({"name": "x"})]}):
        sections = [line for line in template(filled).splitlines() if line.startswith("[")]
        assert sections[0] == "[slo]"


def test_every_commented_setting_can_be_uncommented(tmp_path: Path) -> None:
    """All at once; only the further sources of the example group and the length of an input without a free dimension
    have to go, and windows are of the fixed mode."""
    text = re.sub(r"(?m)^#(?=[a-z\[])", "", template()).replace('mode = "auto"', 'mode = "fixed"', 1)
    text = re.sub(r"(?m)^(function = .*|model = \"minilm\"|max_length = 512)\n", "", text)
    (tmp_path / "tailcut.toml").write_text(text)
    deployment = load(tmp_path, environment={}).deployment
    assert deployment.server.port == 8700
    assert deployment.slo.p95_s == 0.025
    assert deployment.features.groups[0].columns == ("temperature", "wind")
    assert (deployment.model.inputs[0].max, deployment.model.fields[0].min) == (1, -60)
    assert deployment.ladder.rungs[0].set == ("features.cache=memory",)


def test_every_key_stands_there_with_its_description() -> None:
    lines = template().splitlines()
    flat = " ".join(line.removeprefix("# ") for line in lines)
    for path, key in leaves():
        assert any(re.match(rf"#?{re.escape(key.name)} = ", line) for line in lines), path
        assert key.description, path
        assert key.description in flat, path
