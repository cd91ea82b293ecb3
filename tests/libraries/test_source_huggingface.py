"""Hugging Face folders: the module, what it gives, and the text that its tokenizer makes arrays of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from tests.build_kit import made

from tailcut import text
from tailcut.builder.holdouts import files
from tailcut.errors import ArtifactError, BadRequest, BuildError, StartError
from tailcut.manifest import Deployment, HoldoutSettings, Manifest, Model, TensorSpec
from tailcut.models.runtimes import huggingface

pytestmark = pytest.mark.torch

WORDS = ["[PAD]", "[UNK]", "late", "train", "in", "the", "morning"]
IDS = TensorSpec(name="input_ids", datatype="INT64", shape=(-1, -1))
MASK = TensorSpec(name="attention_mask", datatype="INT64", shape=(-1, -1))
VECTOR = TensorSpec(name="vector", shape=(-1, 16))


def config(**settings: Any) -> Any:
    return transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=40,
        **settings,
    )


def save(folder: Path, kind: Any = transformers.BertModel, **settings: Any) -> Path:
    torch.manual_seed(1)
    kind(config(**settings)).eval().save_pretrained(folder)
    held: Any = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(WORDS)}, "[UNK]"))
    held.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    # As folders of sentence-transformers come: fixed padding and another cut than the model's.
    held.enable_padding(length=128)
    held.enable_truncation(max_length=128)
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=held, **special).save_pretrained(folder)
    return folder


def sentence(folder: Path, pooling: dict[str, Any], *more: str) -> Path:
    kinds = ["Transformer", "Pooling", *more]
    paths = ["", "1_Pooling", *(f"{n + 2}_{kind}" for n, kind in enumerate(more))]
    modules = [
        {"name": kind, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for path, kind in zip(paths, kinds, strict=True)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 16} | pooling))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 24}))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(tmp_path / "model")


TEXTS = ["late train", "the late train in the morning the late train in the morning the train in the morning"]


def tokens(folder: Path) -> dict[str, Any]:
    return text.of_folder(folder, ["input_ids", "attention_mask"]).encode(TEXTS)


def test_a_plain_folder_gives_the_mean_of_its_tokens(folder: Path) -> None:
    inputs = tokens(folder)
    found, work = made(folder, str(folder), inputs, (IDS, MASK), VECTOR)
    assert (found.kind, found.variant, found.runtime) == ("huggingface", "torch", "torch")
    given = work.open(work.base).run(inputs, ["vector"])["vector"]
    model = transformers.BertModel.from_pretrained(folder)
    with torch.inference_mode():
        hidden = model(**{name: torch.from_numpy(array) for name, array in inputs.items()}).last_hidden_state.numpy()
    wide = inputs["attention_mask"][:, :, None]
    np.testing.assert_allclose(given, (hidden * wide).sum(axis=1) / wide.sum(axis=1), atol=1e-5)
    assert found.found.details["reference"]["library"] == "SentenceTransformer.encode"


def test_the_weights_come_from_the_artifact_at_serving(folder: Path) -> None:
    inputs = tokens(folder)
    _, work = made(folder, str(folder), inputs, (IDS, MASK), VECTOR)
    before = work.open(work.base).run(inputs, ["vector"])["vector"]
    (folder / "model.safetensors").unlink()
    np.testing.assert_array_equal(work.open(work.base).run(inputs, ["vector"])["vector"], before)


@pytest.mark.parametrize("order", [(IDS, MASK), (MASK, IDS)])
def test_the_manifests_order_of_inputs_is_kept(folder: Path, order: tuple[TensorSpec, ...]) -> None:
    inputs = tokens(folder)
    module = huggingface.module(folder, tuple(tensor.name for tensor in order), weights=True)
    plain = huggingface.module(folder, ("input_ids", "attention_mask"), weights=True)
    with torch.inference_mode():
        given = module(*(torch.from_numpy(inputs[tensor.name]) for tensor in order))
        expected = plain(*(torch.from_numpy(inputs[name]) for name in ("input_ids", "attention_mask")))
    torch.testing.assert_close(given, expected)


@pytest.mark.parametrize(
    ("pooling", "more", "expected"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, ("Normalize",), ("mean", True)),
        ({"pooling_mode_cls_token": True}, (), ("cls", False)),
        ({"pooling_mode": "max"}, ("Normalize",), ("max", True)),
    ],
)
def test_sentence_transformers_say_how_they_pool(
    folder: Path, pooling: dict[str, Any], more: tuple[str, ...], expected: tuple[str, bool]
) -> None:
    stages = huggingface.read(sentence(folder, pooling, *more)).stages
    assert (stages[0].modes, len(stages) == 2) == ((expected[0],), expected[1])
    inputs = tokens(folder)
    _, work = made(folder, str(folder), inputs, (IDS, MASK), VECTOR)
    given = work.open(work.base).run(inputs, ["vector"])["vector"]
    assert given.shape == (2, 16)
    assert np.allclose(np.linalg.norm(given, axis=1), 1, atol=1e-5) is expected[1]


@pytest.mark.parametrize(("labels", "shape"), [(1, (-1,)), (2, (-1,)), (2, (-1, 2)), (3, (-1, 3))])
def test_classifiers_give_probabilities(tmp_path: Path, labels: int, shape: tuple[int, ...]) -> None:
    folder = save(tmp_path, transformers.BertForSequenceClassification, num_labels=labels)
    inputs = tokens(folder)
    _, work = made(folder, str(folder), inputs, (IDS, MASK), TensorSpec(name="p", shape=shape))
    given = work.open(work.base).run(inputs, ["p"])["p"]
    assert given.shape == (2, *shape[1:])
    assert ((given > 0) & (given < 1)).all()
    if len(shape) == 2:
        np.testing.assert_allclose(given.sum(axis=1), 1, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda folder: sentence(folder, {"pooling_mode": "median"}), """sets 'pooling_mode' to "median": known are"""),
        (lambda folder: sentence(folder, {"pooling_mode": "mean"}, "CNN"), "names the modules .*CNN is not supported"),
        (lambda folder: (folder / "model.safetensors").unlink(), "transformers .* cannot load"),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot read .*config.json"),
        (
            lambda folder: (folder / "config.json").write_text(json.dumps({"architectures": ["GPT2LMForCausalLM"]})),
            "GPT2LMForCausalLM, which is not an encoder",
        ),
    ],
)
def test_folders_that_cannot_be_built_from_are_named(folder: Path, change: Any, text: str) -> None:
    inputs = tokens(folder)
    change(folder)
    with pytest.raises(BuildError, match=text):
        made(folder, str(folder), inputs, (IDS, MASK), VECTOR)


def test_other_inputs_are_refused(folder: Path) -> None:
    with pytest.raises(ArtifactError, match=r"model\.inputs are \['x'\]; a Hugging Face folder takes input_ids"):
        huggingface.module(folder, ("x",))


def test_texts_are_padded_to_the_longest_of_the_batch_in_steps_of_16(folder: Path) -> None:
    preprocess = text.of_folder(folder, ["input_ids", "attention_mask", "token_type_ids"])
    assert preprocess.max_tokens == 40
    short = preprocess([{"text": "late train"}])
    assert short["input_ids"].shape == (1, 16)
    assert short["input_ids"][0, :3].tolist() == [2, 3, 0]
    assert short["attention_mask"].sum() == 2
    assert set(short) == {"input_ids", "attention_mask", "token_type_ids"}
    both = preprocess([{"text": "late"}, {"text": "train " * 20}])
    assert both["input_ids"].shape == (2, 32)
    assert both["attention_mask"].sum(axis=1).tolist() == [1, 20]
    cut = preprocess([{"text": "train " * 100}])
    assert cut["attention_mask"].sum() == cut["input_ids"].shape[1] == 40
    assert preprocess.encode([""])["input_ids"].shape == (1, 16)


def test_sentence_transformers_say_how_long_an_input_is(folder: Path) -> None:
    sentence(folder, {"pooling_mode": "mean"})
    assert text.of_folder(folder, ["input_ids", "attention_mask"]).max_tokens == 24


@pytest.mark.parametrize(("row", "said"), [({}, "row 1 has no 'text'"), ({"text": 3}, "row 1 has int in 'text'")])
def test_rows_without_text_are_refused(folder: Path, row: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        text.of_folder(folder, ["input_ids"])([{"text": "late"}, row])


def test_a_tokenizer_that_cannot_be_read_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(StartError, match=r"cannot read the tokenizer .*tokenizer\.json"):
        text.of_folder(folder, ["input_ids"])
    (folder / "tokenizer.json").unlink()
    with pytest.raises(StartError, match=r"(?s)cannot read the tokenizer .*hint: .*AutoTokenizer\.from_pretrained"):
        text.of_folder(folder, ["input_ids"])


def test_a_manifest_implies_its_folders_preprocess(folder: Path) -> None:
    def implied(source: str, preprocess: str = "") -> text.Preprocess | None:
        model = Model(source=source, inputs=(IDS, MASK), outputs=(VECTOR,), preprocess=preprocess)
        return text.preprocess_of(Manifest(Deployment(name="m", model=model), folder.parent, {}))

    assert implied("my_model:build") is None
    assert implied(folder.name, "my_model:preprocess") is None
    found = implied(folder.name)
    assert found is not None
    assert found([{"text": "late train"}])["input_ids"].shape == (1, 16)
    # A deployment's version is hashed from what a partial was bound to.
    assert text.of_folder(folder, ["input_ids"]).sha256 in repr(found)


def test_a_holdout_file_of_texts_goes_through_the_tokenizer(folder: Path) -> None:
    (folder / "rows.csv").write_text("text,label\n" + "".join(f"{words},{n}\n" for n, words in enumerate(TEXTS)))
    model = Model(source=str(folder), inputs=(IDS, MASK), outputs=(VECTOR,))
    manifest = Manifest(
        Deployment(name="m", model=model, holdout=HoldoutSettings(source="rows.csv", labels="label")), folder, {}
    )
    found = files.load(manifest)
    assert found.inputs["input_ids"].shape == (2, 32)
    assert found.take(1)["input_ids"].shape == (1, 16)
    assert found.truth.tolist() == [0, 1]
