"""recipes.fusions: a BERT's operators are fused, counted, compared and raced; what matches no pattern is left alone."""

from __future__ import annotations

import warnings
from pathlib import Path

import onnx
import pytest
import torch
from tests import recipe_kit
from tests.models import encoder, tabular

from tailcut.build import Holdout
from tailcut.build.recipes import fusions, onnx_export, recipe
from tailcut.build.recipes.base import Work
from tailcut.build.records import Made

pytest.importorskip("transformers")
pytestmark = [pytest.mark.integration, pytest.mark.torch]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Work:
    """A work whose path holds the plain export."""
    folder = tmp_path_factory.mktemp("bert")
    module = encoder.encoder()
    base = recipe_kit.torch_base(folder, module)
    work = recipe_kit.work(folder, recipe_kit.ENCODER, base, encoder.holdout(), "m.onnx")
    model = work.manifest.deployment.model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        onnx_export.export(module, work.selection, model.inputs, model.outputs, work.path)
    return work


def answers(runtime):
    return lambda inputs: runtime.run(inputs, ["embedding"])


def test_a_bert_is_fused_layer_by_layer_and_answers_the_same(exported: Work) -> None:
    plain = exported.path.read_bytes()
    found = fusions.improve(exported, encoder.encoder(), answers)
    assert found["layers"] == encoder.LAYERS
    scripted = next(each for each in found["candidates"] if each["name"] == "scripted")
    assert scripted["fused"] is True
    assert scripted["operators"]["Attention"] == encoder.LAYERS
    assert scripted["operators"]["SkipLayerNormalization"] == 2 * encoder.LAYERS
    assert found["times"]["plain"]["ratio"] == 1.0
    ratio = found["times"]["scripted"]["ratio"]
    if ratio < fusions.GAIN:
        assert found["status"] == "fused"
        kinds = [node.op_type for node in onnx.load(str(exported.path)).graph.node]
        assert kinds.count("Attention") == encoder.LAYERS
    else:
        assert found["status"] == "unfused"
        assert exported.path.read_bytes() == plain
    exported.path.write_bytes(plain)


def test_a_faster_fused_model_replaces_the_plain_one(exported: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = exported.path.read_bytes()
    monkeypatch.setattr(fusions, "_timed", lambda runtime, *_: 1.0 if fused(runtime) else 2.0)
    found = fusions.improve(exported, encoder.encoder(), answers)
    assert (found["status"], found["kept"]) == ("fused", "scripted")
    base = Made(name="onnx", runtime="onnxruntime", path=str(exported.path))
    kinds = [node.op_type for node in onnx.load(str(exported.path)).graph.node]
    assert kinds.count("Attention") == encoder.LAYERS
    quantised = recipe_kit.work(exported.folder, recipe_kit.ENCODER, base, encoder.holdout(), "dynamic.onnx")
    counts = recipe("int8-dynamic").make(quantised).found["operators"]
    assert counts["integer"] == 4 * encoder.LAYERS  # attention's three weights are one operator
    exported.path.write_bytes(plain)


def fused(runtime) -> bool:
    """Fused sessions were opened from a file that says so."""
    return "fused" in runtime._name


def test_a_model_whose_export_no_longer_answers_the_same_is_not_kept(exported: Work) -> None:
    plain = exported.path.read_bytes()
    other = encoder.encoder()
    with torch.no_grad():
        other.bert.embeddings.word_embeddings.weight.mul_(1.5)
    found = fusions.improve(exported, other, answers)
    scripted = next(each for each in found["candidates"] if each["name"] == "scripted")
    assert "differs from the source model" in scripted["failed"]
    assert found["status"] == "unfused"
    assert exported.path.read_bytes() == plain


def test_a_model_without_attention_is_left_alone(tmp_path: Path) -> None:
    module = tabular.mlp()
    x = torch.zeros(2, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), str(tmp_path / "m.onnx"), dynamo=False)
    base = recipe_kit.torch_base(tmp_path, module)
    work = recipe_kit.work(tmp_path, recipe_kit.ENCODER, base, Holdout(inputs={"x": x.numpy()}), "m.onnx")
    assert fusions.improve(work, module, answers) == {"status": "nothing to fuse", "layers": 0}


def test_heads_are_read_from_the_module() -> None:
    assert fusions.shape_of(encoder.encoder()) == (encoder.HEADS, encoder.HIDDEN)
    assert fusions.shape_of(torch.nn.MultiheadAttention(32, 8)) == (8, 32)
    assert fusions.shape_of(tabular.mlp()) == (0, 0)
