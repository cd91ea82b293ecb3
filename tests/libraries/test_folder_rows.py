"""Rows of a Hugging Face folder: texts, pairs, names of scores; and folders that the build refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from tests import folder_kit
from tests.build_kit import made
from tests.folder_kit import SIZE, TEXTS, copied, dense, modules, pooling, put

from tailcut import text
from tailcut.builder.holdouts import files as holdout_files
from tailcut.builder.recipes import onnx_export
from tailcut.errors import BadRequest, BuildError, StartError
from tailcut.manifest import Deployment, HoldoutSettings, Manifest, Model, TensorSpec
from tailcut.models.runtimes import huggingface
from tailcut.pipeline.hook_loading import import_code
from tailcut.pipeline.row_transform import RowTransform

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

IDS = TensorSpec(name="input_ids", datatype="INT64", shape=(-1, -1))
MASK = TensorSpec(name="attention_mask", datatype="INT64", shape=(-1, -1))
KINDS = TensorSpec(name="token_type_ids", datatype="INT64", shape=(-1, -1))
VECTOR = TensorSpec(name="y", shape=(-1, SIZE))
NAMES = ["input_ids", "token_type_ids", "attention_mask"]
BERT = transformers.BertForSequenceClassification
CROSS = "config_sentence_transformers.json", "sentence_bert_config.json"
LABELS = {"id2label": {0: "bad", 1: "fair", 2: "good"}, "label2id": {"bad": 0, "fair": 1, "good": 2}}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    at = tmp_path_factory.mktemp("bases")
    return {
        "encoder": folder_kit.save(at / "encoder"),
        "score": folder_kit.save(at / "score", BERT, num_labels=1),
        "labels": folder_kit.save(at / "labels", BERT, **LABELS),
    }


@pytest.fixture
def cross(bases: dict[str, Path], tmp_path: Path) -> Path:
    folder = modules(copied(bases["score"], tmp_path / "cross"))
    put(folder / CROSS[0], model_type="CrossEncoder")
    put(folder / CROSS[1], transformer_task="sequence-classification")
    return folder


def tokens(folder: Path) -> dict[str, Any]:
    return text.of_folder(folder, ["input_ids", "attention_mask"]).encode(TEXTS)


def manifest_of(folder: Path, output: TensorSpec = VECTOR, **more: Any) -> Manifest:
    model = Model(source=str(folder), inputs=(IDS, MASK), outputs=(output,))
    return Manifest(Deployment(name="m", model=model, **more), folder.parent, {})


def answering(folder: Path, output: TensorSpec = VECTOR) -> RowTransform:
    code = import_code(manifest_of(folder, output))
    model = Model(source=str(folder), inputs=(IDS, MASK), outputs=(output,))
    return RowTransform(model, code.preprocess, code.postprocess, fields=code.fields)


@pytest.mark.parametrize(("name", "known"), [("encoder", "text"), ("labels", "text, text_pair")])
def test_a_field_that_the_folder_does_not_read_is_refused(bases: dict[str, Path], name: str, known: str) -> None:
    transform = answering(bases[name])
    assert transform.inputs([{"text": "late"}], from_client=True)["input_ids"].shape == (1, 16)
    for field in {"prompt", "text_pair", "txt"} - set(known.split(", ")):
        with pytest.raises(BadRequest, match=f"row 1 has the unknown field '{field}'") as caught:
            transform.inputs([{"text": "late"}, {"text": "late", field: "order"}], from_client=True)
        assert caught.value.hint == f"its fields are {known}"
    # Feature groups may yield columns beside the text.
    assert transform.inputs([{"text": "late", "age": 3}], from_client=False)["input_ids"].shape == (1, 16)


def test_a_cross_encoder_needs_both_texts(cross: Path) -> None:
    preprocess = text.of_folder(cross, NAMES)
    found = preprocess([{"text": "late order", "text_pair": "my parcel"}])
    assert found["attention_mask"].sum() == 7
    assert found["token_type_ids"][0, :7].tolist() == [0, 0, 0, 0, 1, 1, 1]
    for row, says in (
        ({"text": "late"}, "row 0 has no 'text_pair'"),
        ({"text": "a", "text_pair": 3}, "int in 'text_p"),
    ):
        with pytest.raises(BadRequest, match=says) as caught:
            preprocess([row])
        assert caught.value.hint == 'a row is {"text": "...", "text_pair": "..."}'


def test_a_classifiers_row_has_a_second_text_or_none(bases: dict[str, Path]) -> None:
    preprocess = text.of_folder(bases["labels"], NAMES)
    alone = preprocess([{"text": "late order"}])
    assert alone["attention_mask"].sum() == 4
    both = preprocess([{"text": "late order"}, {"text": "late", "text_pair": "my parcel"}])
    assert both["attention_mask"].sum(axis=1).tolist() == [4, 6]
    np.testing.assert_array_equal(both["input_ids"][0], alone["input_ids"][0])


def test_scores_are_answered_under_the_names_of_id2label(bases: dict[str, Path]) -> None:
    scores = np.array([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]], np.float64)
    answers = answering(bases["labels"], TensorSpec(name="y", shape=(-1, 3))).answers({"y": scores}, 2)
    assert answers == [{"y": {"bad": 0.1, "fair": 0.2, "good": 0.7}}, {"y": {"bad": 0.5, "fair": 0.25, "good": 0.25}}]
    plain = answering(bases["score"], TensorSpec(name="y", shape=(-1,))).answers({"y": scores[:, 0]}, 2)
    assert plain == [{"y": 0.1}, {"y": 0.5}]


def test_the_names_of_scores_are_part_of_the_deployment_version(bases: dict[str, Path], tmp_path: Path) -> None:
    folder, output = copied(bases["labels"], tmp_path / "model"), TensorSpec(name="y", shape=(-1, 3))
    before = import_code(manifest_of(folder, output)).files.snapshot(live=False).digest
    put(folder / "config.json", id2label={"0": "bad", "1": "good", "2": "fair"})
    assert import_code(manifest_of(folder, output)).files.snapshot(live=False).digest != before


@pytest.mark.parametrize(("labels", "known"), [(["bad", "good"], ["bad", "fair", "good"]), ([0, 2], None)])
def test_labels_of_the_holdout_are_the_folders_where_they_are_text(
    bases: dict[str, Path], tmp_path: Path, labels: list[Any], known: list[str] | None
) -> None:
    found, _ = labelled(bases["labels"], tmp_path, labels)
    assert found.found.classes == known


def labelled(folder: Path, at: Path, labels: list[Any]) -> Any:
    from tailcut import builder as build
    from tailcut.builder import sources

    inputs = text.of_folder(folder, ["input_ids", "attention_mask"]).encode(TEXTS[:6])
    holdout = build.Holdout(inputs=inputs, labels=np.array(labels * 3))
    return sources.make(at, manifest_of(folder, TensorSpec(name="y", shape=(-1, 3))), holdout), None


def test_a_holdout_of_pairs_goes_through_the_tokenizer(cross: Path) -> None:
    (cross.parent / "rows.csv").write_text("text,text_pair,label\nlate order,my parcel,1\nlate,price,0\n")
    manifest = manifest_of(cross, TensorSpec(name="y"), holdout=HoldoutSettings(source="rows.csv", labels="label"))
    assert holdout_files.load(manifest).inputs["attention_mask"].sum(axis=1).tolist() == [7, 5]


def refuse(
    folder: Path, says: str, *, inputs: tuple[TensorSpec, ...] = (IDS, MASK), output: TensorSpec = VECTOR
) -> BuildError:
    given = tokens(folder)
    given |= {"token_type_ids": np.zeros_like(given["input_ids"])} if KINDS in inputs else {}
    with pytest.raises(BuildError, match=says) as caught:
        made(folder, str(folder), given, inputs, output)
    return caught.value


def test_kinds_of_tokens_are_an_input_where_the_library_gives_them_and_only_there(
    bases: dict[str, Path], tmp_path: Path
) -> None:
    output = TensorSpec(name="y", shape=(-1, 3))
    extra = refuse(
        copied(bases["labels"], tmp_path / "a"), "token_type_ids of", inputs=(IDS, MASK, KINDS), output=output
    )
    assert extra.hint.startswith("remove token_type_ids from model.inputs")
    folder = copied(bases["labels"], tmp_path / "b")
    put(folder / "tokenizer_config.json", model_input_names=NAMES)
    missing = refuse(folder, r"token_type_ids of .* model\.inputs lack", output=output)
    assert missing.hint.startswith('add [[model.inputs]] name = "token_type_ids"')


def test_a_tokenizer_that_transformers_builds_otherwise_is_refused(bases: dict[str, Path], tmp_path: Path) -> None:
    """BertTokenizer makes a normalizer of its own, by do_lower_case, whatever tokenizer.json says."""
    folder = copied(bases["encoder"], tmp_path / "model")
    put(folder / "tokenizer_config.json", tokenizer_class="BertTokenizer", backend=None, do_lower_case=True)
    error = refuse(folder, r"tokens of .* differ: SentenceTransformer.encode makes")
    assert "save_pretrained" in error.hint


def test_weights_that_are_missing_are_named(bases: dict[str, Path], tmp_path: Path) -> None:
    folder = copied(bases["encoder"], tmp_path / "model")
    put(folder / "config.json", architectures=["BertForSequenceClassification"])
    refuse(
        folder, r"has no weights for classifier\.bias, classifier\.weight \(2 tensors\)", output=TensorSpec(name="y")
    )


def test_weights_of_a_stage_are_safetensors(bases: dict[str, Path], tmp_path: Path) -> None:
    folder = modules(copied(bases["encoder"], tmp_path / "model"), pooling(), dense(SIZE, 4))
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    error = refuse(folder, r"cannot load the weights of Dense from .*2_Dense/model\.safetensors")
    assert "pickle" in error.hint


def test_a_folder_without_a_tokenizer_is_refused_at_start(bases: dict[str, Path], tmp_path: Path) -> None:
    folder = copied(bases["encoder"], tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(StartError, match="cannot read the tokenizer"):
        import_code(manifest_of(folder))
    put(folder / "config.json", auto_map={"AutoModel": "x.Y"})
    with pytest.raises(StartError, match="sets 'auto_map' to"):
        import_code(manifest_of(folder))


def test_every_stage_is_exported_with_the_answers_of_the_module(bases: dict[str, Path], tmp_path: Path) -> None:
    modes = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
    folder = modules(
        copied(bases["encoder"], tmp_path / "model"),
        pooling(modes, include_prompt=False),
        dense(len(modes) * SIZE, SIZE, use_residual=True),
        ("LayerNorm", {"dimension": SIZE}),
        ("Normalize", {}),
    )
    put(folder / CROSS[0], prompts={"q": "query the: "}, default_prompt_name="q", truncate_dim=12)
    found, work = made(tmp_path, str(folder), tokens(folder), (IDS, MASK), TensorSpec(name="y", shape=(-1, 12)))
    assert found.found.details["reference"]["texts"] > 10
    module = huggingface.module(folder, ("input_ids", "attention_mask"), rank=2, weights=True)
    model = work.manifest.deployment.model
    onnx_export.export(module, work.selection, model.inputs, model.outputs, work.path)
    session = onnxruntime.InferenceSession(str(work.path))
    preprocess = text.of_folder(folder, ["input_ids", "attention_mask"])
    for texts in (TEXTS[:1], TEXTS[1:4], TEXTS):
        arrays = preprocess.encode(texts)
        with torch.inference_mode():
            own = module(*(torch.from_numpy(arrays[name]) for name in ("input_ids", "attention_mask")))
        np.testing.assert_allclose(session.run(None, arrays)[0], own.numpy(), atol=1e-5)


def test_how_texts_become_tokens_is_part_of_the_deployment_version(bases: dict[str, Path], tmp_path: Path) -> None:
    folder = modules(copied(bases["encoder"], tmp_path / "model"), pooling())
    found = [import_code(manifest_of(folder)).files.snapshot(live=False).digest]
    for file, settings in (
        (CROSS[0], {"prompts": {"q": "query: "}, "default_prompt_name": "q"}),
        (CROSS[1], {"max_seq_length": 9}),
        (CROSS[1], {"do_lower_case": True}),
        ("tokenizer_config.json", {"truncation_side": "left"}),
    ):
        put(folder / file, **settings)
        found.append(import_code(manifest_of(folder)).files.snapshot(live=False).digest)
    assert len(set(found)) == len(found) == 5


def test_a_mask_is_held_to_what_a_tokenizer_gives(bases: dict[str, Path], tmp_path: Path) -> None:
    """Kernels of attention take other numbers otherwise than the module."""
    found, _ = made(tmp_path, str(bases["encoder"]), tokens(bases["encoder"]), (IDS, MASK), VECTOR)
    bounds = found.limits.bounds
    assert [each.values for each in bounds if each.input == "attention_mask" and each.values is not None] == [(0, 1)]
