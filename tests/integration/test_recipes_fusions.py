"""recipes.fusions: a BERT's operators are fused, counted, compared and raced; what matches no pattern is left alone."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from tests import recipe_kit
from tests.models import encoder, tabular

from tailcut.builder import Holdout
from tailcut.builder.recipes import kernels, onnx_export, recipe
from tailcut.builder.recipes import onnx as fusions
from tailcut.builder.recipes.base import Work
from tailcut.builder.records import Made
from tailcut.errors import BuildError

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
    found = fusions.try_fusions(exported, encoder.encoder(), answers)
    assert (found["layers"], found["failed"]) == (encoder.LAYERS, {})
    assert found["norms"] == 2 * encoder.LAYERS
    assert found["kept"] == ("fused" if found["ratio"] < fusions.GAIN else "plain")
    assert kinds_of(exported.path)["Attention"] == (encoder.LAYERS if found["status"] == "fused" else 0)
    if found["kept"] == "plain":
        assert exported.path.read_bytes() == plain
    exported.path.write_bytes(plain)


def faster_if(monkeypatch: pytest.MonkeyPatch, chosen: Callable[[str], bool]) -> None:
    """Let runtimes whose file's name is chosen take half the time of the others."""
    monkeypatch.setattr(fusions, "timed", lambda runtime, *_: 1.0 if chosen(runtime._name) else 2.0)


def test_a_faster_fused_model_replaces_the_plain_one(exported: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = exported.path.read_bytes()
    faster_if(monkeypatch, lambda name: name.endswith(".fused"))
    found = fusions.try_fusions(exported, encoder.encoder(), answers)
    assert (found["status"], found["kept"], found["ratio"]) == ("fused", "fused", 0.5)
    kinds = kinds_of(exported.path)
    assert (kinds["Attention"], kinds["SkipLayerNormalization"]) == (encoder.LAYERS, 0)
    assert kinds["Sum"] == kinds["LayerNormalization"] == 2 * encoder.LAYERS
    session = onnxruntime.SessionOptions()
    session.optimized_model_filepath = str(exported.folder / "opened.onnx")
    session.log_severity_level = 3
    onnxruntime.InferenceSession(str(exported.path), session, providers=["CPUExecutionProvider"])
    assert kinds_of(exported.folder / "opened.onnx")["SkipLayerNormalization"] == 0
    exported.path.write_bytes(plain)


def test_a_slower_fused_model_is_not_kept(exported: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = exported.path.read_bytes()
    faster_if(monkeypatch, lambda name: not name.endswith(".fused"))
    found = fusions.try_fusions(exported, encoder.encoder(), answers)
    assert (found["status"], found["kept"], found["ratio"]) == ("unfused", "plain", 2.0)
    assert exported.path.read_bytes() == plain


def test_a_model_without_known_heads_has_its_norms_apart(exported: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = exported.path.read_bytes()
    monkeypatch.setattr(fusions, "shape_of", lambda module: (0, 0))
    faster_if(monkeypatch, lambda name: name.endswith(".norms-apart"))
    found = fusions.try_fusions(exported, encoder.encoder(), answers)
    assert (found["status"], found["kept"]) == ("unfused", "norms apart")
    assert found["failed"] == {"fused": "BuildError: no part of the module gives its number of attention heads"}
    assert kinds_of(exported.path)["Sum"] == found["norms"] >= 2 * encoder.LAYERS
    exported.path.write_bytes(plain)


def test_a_mask_with_holes_is_read_as_it_is(exported: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as a length, which is right only where all padding comes last."""
    plain = exported.path.read_bytes()
    faster_if(monkeypatch, lambda name: name.endswith(".fused"))
    assert fusions.try_fusions(exported, encoder.encoder(), answers)["status"] == "fused"
    rows = exported.selection.take(4)
    rows["attention_mask"][0, 0] = rows["attention_mask"][1, 2] = 0
    session = onnxruntime.InferenceSession(str(exported.path))
    found = session.run(["embedding"], {each.name: rows[each.name] for each in session.get_inputs()})[0]
    own = exported.open(exported.base).run(rows, ["embedding"])["embedding"]
    np.testing.assert_allclose(found, own, atol=1e-5)
    exported.path.write_bytes(plain)


def kinds_of(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(str(path)).graph.node)


def fused_base(exported: Work, monkeypatch: pytest.MonkeyPatch) -> Made:
    """The fused model as the variant "onnx"."""
    plain = exported.path.read_bytes()
    with monkeypatch.context() as patch:
        faster_if(patch, lambda name: name.endswith(".fused"))
        fusions.try_fusions(exported, encoder.encoder(), answers)
    path = exported.folder / "fused-base.onnx"
    path.write_bytes(exported.path.read_bytes())
    exported.path.write_bytes(plain)
    return Made(name="onnx", runtime="onnxruntime", path=str(path))


@pytest.mark.parametrize("skips", [True, False], ids=["fused with their norms", "apart"])
def test_int8_undoes_fusions(exported: Work, monkeypatch: pytest.MonkeyPatch, skips: bool) -> None:
    if skips:
        monkeypatch.setattr(kernels, "norms_apart", lambda model: 0)
    base = fused_base(exported, monkeypatch)
    monkeypatch.undo()
    work = recipe_kit.work(exported.folder, recipe_kit.ENCODER, base, encoder.holdout(), f"dynamic-{skips}.onnx")
    found = recipe("int8-dynamic").make(work).found
    assert found["undone"] == {"norms": 2 * encoder.LAYERS if skips else 0, "gelus": encoder.LAYERS}
    assert found["operators"]["integer"] == 4 * encoder.LAYERS  # attention's three weights are one operator
    kinds = kinds_of(work.path)
    assert (kinds["SkipLayerNormalization"], kinds["BiasGelu"]) == (0, 0)
    assert kinds["QAttention"] == encoder.LAYERS


def test_a_fast_gelu_is_close_and_counted(exported: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    base = fused_base(exported, monkeypatch)
    work = recipe_kit.work(exported.folder, recipe_kit.ENCODER, base, encoder.holdout(), "fast.onnx")
    found = recipe("int8-fast-gelu").make(work).found
    assert found["approximated"] == {"gelu by tanh": encoder.LAYERS}
    kinds = kinds_of(work.path)
    assert (kinds["FastGelu"], kinds["Gelu"], kinds["BiasGelu"]) == (encoder.LAYERS, 0, 0)
    rows = work.selection.take(32)
    expected, given = (
        work.open(each).run(rows, ["embedding"])["embedding"]
        for each in (base, Made(name="fast", runtime="onnxruntime", path=str(work.path)))
    )
    assert (expected * given).sum(axis=1).mean() > 0.99


def test_gelus_written_out_with_erf_are_found_and_the_sums_stay_the_same(exported: Work) -> None:
    target = exported.folder / "approximated.onnx"
    assert kernels.approximate(exported.path, target) == encoder.LAYERS
    assert kinds_of(target)["FastGelu"] == encoder.LAYERS
    rows = exported.selection.take(8)
    expected, given = (
        exported.open_file(each, "onnxruntime").run(rows, ["embedding"])["embedding"]
        for each in (exported.path, target)
    )
    assert 0 < abs(expected - given).max() < 1e-3
    assert kernels.approximate(target, exported.folder / "twice.onnx") == 0


def test_where_there_is_no_gelu_and_no_norm_nothing_is_done(tmp_path: Path) -> None:
    module, x = tabular.mlp(), torch.zeros(2, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), str(tmp_path / "m.onnx"), dynamo=False)
    base = Made(name="onnx", runtime="onnxruntime", path=str(tmp_path / "m.onnx"))
    holdout = Holdout(inputs={"x": x.numpy()})
    work = recipe_kit.work(tmp_path, recipe_kit.ENCODER, base, holdout, "fast.onnx")
    with pytest.raises(BuildError, match="nothing to approximate: the model has no exact GELU"):
        recipe("int8-fast-gelu").make(work)
    assert kernels.apart(tmp_path / "m.onnx", tmp_path / "apart.onnx") == {"norms": 0, "gelus": 0}


def test_a_model_whose_export_no_longer_answers_the_same_is_not_kept(exported: Work) -> None:
    plain = exported.path.read_bytes()
    other = encoder.encoder()
    with torch.no_grad():
        other.bert.embeddings.word_embeddings.weight.mul_(1.5)
    found = fusions.try_fusions(exported, other, answers)
    assert "differs from the source model" in found["failed"]["fused"]
    assert found["status"] == "unfused"
    assert kinds_of(exported.path)["Attention"] == 0
    exported.path.write_bytes(plain)


def test_a_model_without_attention_is_left_alone(tmp_path: Path) -> None:
    module = tabular.mlp()
    x = torch.zeros(2, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), str(tmp_path / "m.onnx"), dynamo=False)
    base = recipe_kit.torch_base(tmp_path, module)
    work = recipe_kit.work(tmp_path, recipe_kit.ENCODER, base, Holdout(inputs={"x": x.numpy()}), "m.onnx")
    assert fusions.try_fusions(work, module, answers) == {"status": "nothing to fuse", "layers": 0}


def test_heads_are_read_from_the_module() -> None:
    assert fusions.shape_of(encoder.encoder()) == (encoder.HEADS, encoder.HIDDEN)
    assert fusions.shape_of(torch.nn.MultiheadAttention(32, 8)) == (8, 32)
    assert fusions.shape_of(tabular.mlp()) == (0, 0)
