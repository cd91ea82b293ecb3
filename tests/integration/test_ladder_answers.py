"""A ladder says beside each rung whether its answers are the pilot's."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("fastapi")
from tests.integration.test_parity import HERE, MANIFEST
from tests.models.graphs import linear

from tailcut.ladder import LadderOptions, climb
from tailcut.manifest.subject import find_subject
from tailcut.report.document import markdown
from tailcut.report.html import html
from tailcut.report.ladder.document import ladder_document
from tailcut.report.ladder.file import LadderRecord, load_ladder

pytestmark = pytest.mark.integration

LADDER = """
[ladder]
pilot = ["{python}", "-m", "uvicorn", "parity_pilot:app", "--port", "{port}", "--log-level", "warning"]
pilot_path = "/predict"
traffic = "parity_deployment:traffic"
rungs = [
    { name = "levers off", set = ["features.cache=off"] },
    { name = "+ cache", set = ["features.cache=memory"] },
    { name = "+ other hook", set = ["model.preprocess=parity_deployment:lowered_preprocess"] },
    { name = "+ missing", set = ["serve.variant=missing"] },
]
"""


@pytest.fixture(scope="module")
def climbed(tmp_path_factory: pytest.TempPathFactory) -> LadderRecord:
    folder = tmp_path_factory.mktemp("ladder")
    linear(folder / "model.onnx", width=6)
    (folder / "tailcut.toml").write_text(MANIFEST + LADDER)
    options = LadderOptions(
        out=folder / "out", rates=(), rounds=1, duration_s=0.3, warmup_s=0.1, settle_s=0.1, comfortable_rate=20.0,
        capacity=False, parity=24,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARITY_MODEL", str(folder / "model.onnx"))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
        climb(find_subject([folder], keep_unset=True), options, tell=lambda _: None)
    return load_ladder(folder / "out" / "ladder.json")


def test_each_rungs_answers_are_held_against_the_pilots(climbed: LadderRecord) -> None:
    """Given a rung whose hook differs in half of the customers, and one that does not start."""
    found = {rung.name: rung.parity for rung in climbed.rungs}
    assert found.pop("pilot") is None
    equal, cached, other, missing = found.values()
    assert equal is not None
    assert equal == cached
    assert (equal.requests, equal.differing, equal.status_differences, equal.failed) == (24, 0, 0, "")
    assert other is not None
    assert (other.differing, other.output) == (12, "score")
    assert 0.001 < (other.max_difference or 0) < 1
    assert missing is not None
    assert "serve.variant" in missing.failed or "missing" in missing.failed or "exited" in missing.failed


def test_the_table_and_the_page_show_it(climbed: LadderRecord) -> None:
    assert climbed.rungs[1].measurements
    text = markdown(ladder_document(climbed))
    assert "| parity |" in text
    assert "| 0 of 24 |" in text
    assert "12 of 24, max 0." in text
    assert "<th>parity</th>" in html(ladder_document(climbed))
