"""What a Hugging Face folder says is honoured: the answers are those of the library that the folder is for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests import folder_kit
from tests.folder_kit import PAIRS, SIZE, TEXTS, copied, dense, modules, pooling, put

from tailcut import text
from tailcut.builder.quality import folder_answers
from tailcut.common.tensors import Arrays
from tailcut.errors import BuildError
from tailcut.manifest import Deployment, Manifest, Model, TensorSpec
from tailcut.models.runtimes import huggingface
from tailcut.models.runtimes.huggingface.module import quiet

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

OVERALL, TRANSFORMER = "config_sentence_transformers.json", "sentence_bert_config.json"
TOKENIZER = "tokenizer_config.json"
PROMPT = {"prompts": {"q": "query the: "}, "default_prompt_name": "q"}
NAMES = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
BERT = transformers.BertForSequenceClassification


class Module:
    """A runtime of a folder's module."""

    def __init__(self, folder: Path, inputs: tuple[str, ...], rank: int, scale: float = 1.0) -> None:
        self._module = huggingface.module(folder, inputs, rank=rank, weights=True)
        self._inputs, self._scale = inputs, scale

    def run(self, inputs: Arrays, outputs: Any) -> Arrays:
        with torch.inference_mode():
            found = self._module(*(torch.from_numpy(inputs[name]) for name in self._inputs))
        return {outputs[0]: found.numpy() * self._scale}

    def close(self) -> None: ...


def manifest(folder: Path, inputs: tuple[str, ...], rank: int, preprocess: str = "") -> Manifest:
    tensors = tuple(TensorSpec(name=name, datatype="INT64", shape=(-1, -1)) for name in inputs)
    output = TensorSpec(name="y", shape=(-1,) * rank)
    model = Model(source=str(folder), inputs=tensors, outputs=(output,), preprocess=preprocess)
    return Manifest(Deployment(name="m", model=model), folder.parent, {})


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads take longer to start than these models to run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with weights, which the cases copy and change."""
    at = tmp_path_factory.mktemp("bases")
    made = {
        "encoder": folder_kit.save(at / "encoder"),
        "masked": folder_kit.save(at / "m", transformers.BertForMaskedLM),
    }
    for labels in (1, 2, 3):
        made[f"labels{labels}"] = folder_kit.save(at / f"labels{labels}", BERT, num_labels=labels)
    for name, kind, config in (
        ("roberta", transformers.RobertaModel, transformers.RobertaConfig),
        ("mpnet", transformers.MPNetModel, transformers.MPNetConfig),
    ):
        torch.manual_seed(1)
        words = folder_kit.save_tokenizer(at / name, roberta=True)
        sizes = {"hidden_size": SIZE, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        more = {"vocab_size": words, "max_position_embeddings": 34, "initializer_range": 0.3, "pad_token_id": 1}
        kind(config(**sizes, **more)).eval().save_pretrained(at / name)
        made[name] = at / name
    return made


@dataclass(frozen=True)
class Case:
    """A folder: which one, and how it is changed."""

    change: Callable[[Path], Any]
    base: str = "encoder"
    rank: int = 2
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")


def embeds(*stages: Any, **overall: Any) -> Callable[[Path], Any]:
    """A sentence-transformers folder with these modules and settings."""

    def change(folder: Path) -> None:
        modules(folder, *stages)
        if overall:
            put(folder / OVERALL, **overall)

    return change


def also(first: Callable[[Path], Any], file: str, **values: Any) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        first(folder)
        put(folder / file, **values)

    return change


def moved(folder: Path) -> None:
    (folder / "0_Transformer").mkdir()
    for file in [each for each in folder.iterdir() if each.is_file()]:
        file.rename(folder / "0_Transformer" / file.name)
    modules(folder, pooling("cls"), first="0_Transformer")
    put(folder / "0_Transformer" / TRANSFORMER, max_seq_length=12)


def halved(folder: Path) -> None:
    kind = transformers.AutoModel
    kind.from_pretrained(folder, dtype="float32").to(torch.bfloat16).save_pretrained(folder)


OLD = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}
MEAN = embeds(pooling())
CROSS = {"model_type": "CrossEncoder"}


def crosses(**more: Any) -> Callable[[Path], Any]:
    """A folder of a CrossEncoder as sentence-transformers 6 saves it."""
    return also(embeds(**CROSS, **more), TRANSFORMER, transformer_task="sequence-classification")


CASES = {
    "plain": Case(lambda folder: None),
    "masked_lm": Case(lambda folder: None, "masked"),
    "roberta": Case(lambda folder: None, "roberta"),
    "mpnet": Case(lambda folder: None, "mpnet"),
    "bfloat16": Case(halved),
    **{mode: Case(embeds(pooling(mode))) for mode in ("cls", "max", "weightedmean", "lasttoken")},
    "mean_sqrt_len": Case(embeds(pooling("mean_sqrt_len_tokens"))),
    "two_poolings": Case(embeds(pooling(["max", "lasttoken"]))),
    "poolings_by_flag": Case(embeds(("Pooling", {"word_embedding_dimension": SIZE, **OLD}))),
    "normalize": Case(embeds(pooling(), ("Normalize", {}))),
    "dense": Case(embeds(pooling(), dense(SIZE, 6))),
    "dense_plain": Case(embeds(pooling(), dense(SIZE, 6, "torch.nn.modules.linear.Identity", bias=False))),
    "dense_twice": Case(embeds(pooling("cls"), dense(SIZE, 8, "torch.nn.GELU"), dense(8, 4), ("Normalize", {}))),
    "dense_residual": Case(embeds(pooling(), dense(SIZE, SIZE, use_residual=True))),
    "dense_projected": Case(embeds(pooling(), dense(SIZE, 6, use_residual=True))),
    "dense_of_tokens": Case(embeds(dense(SIZE, SIZE, module_input_name="token_embeddings"), pooling("max"))),
    "layer_norm": Case(embeds(pooling(), ("LayerNorm", {"dimension": SIZE}))),
    "dropout": Case(embeds(pooling(), ("Dropout", {"dropout": 0.5}))),
    "truncate_dim": Case(embeds(pooling(), ("Normalize", {}), truncate_dim=5)),
    "prompt": Case(embeds(pooling(), **PROMPT)),
    "prompt_none": Case(embeds(pooling(), **{**PROMPT, "default_prompt_name": None})),
    **{
        f"prompt_left_out_{mode}": Case(embeds(pooling(mode, include_prompt=False), **PROMPT))
        for mode in ("mean", "cls", "max", "weightedmean", "lasttoken")
    },
    "max_seq_length": Case(also(MEAN, TRANSFORMER, max_seq_length=9)),
    "max_seq_length_of_roberta_folder": Case(also(MEAN, "sentence_roberta_config.json", max_seq_length=9)),
    "model_max_length": Case(also(MEAN, TOKENIZER, model_max_length=7)),
    "tokenizer_args": Case(also(MEAN, TRANSFORMER, max_seq_length=9, tokenizer_args={"model_max_length": 6})),
    "model_args": Case(also(MEAN, TRANSFORMER, model_args={"torch_dtype": "float32"})),
    "do_lower_case": Case(also(MEAN, TRANSFORMER, do_lower_case=True)),
    "truncation_side": Case(also(MEAN, TOKENIZER, truncation_side="left")),
    "padding_side": Case(also(MEAN, TOKENIZER, padding_side="left")),
    "split_special_tokens": Case(also(MEAN, TOKENIZER, split_special_tokens=True)),
    "subfolder": Case(moved),
    "score": Case(lambda folder: None, "labels1", 1),
    "score_column": Case(lambda folder: None, "labels1", 2),
    "regression": Case(lambda folder: put(folder / "config.json", problem_type="regression"), "labels1", 1),
    "second_of_two": Case(lambda folder: None, "labels2", 1),
    "both_of_two": Case(lambda folder: None, "labels2", 2),
    "three": Case(lambda folder: None, "labels3"),
    "several": Case(lambda folder: put(folder / "config.json", problem_type="multi_label_classification"), "labels3"),
    "kinds_of_tokens": Case(
        lambda folder: put(folder / TOKENIZER, **NAMES),
        "labels2",
        inputs=("input_ids", "token_type_ids", "attention_mask"),
    ),
    "cross": Case(crosses(), "labels1", 1),
    "cross_identity": Case(crosses(activation_fn="torch.nn.modules.linear.Identity"), "labels1", 1),
    "cross_prompt": Case(crosses(**PROMPT), "labels1", 1),
    "cross_three": Case(crosses(), "labels3"),
    "cross_of_version_4": Case(
        lambda folder: put(
            folder / "config.json", sentence_transformers={"activation_fn": "torch.nn.Tanh", "version": "4"}
        ),
        "labels1",
        1,
    ),
    "cross_of_version_3": Case(
        lambda folder: put(folder / "config.json", sbert_ce_default_activation_function="torch.nn.Identity"),
        "labels1",
        1,
    ),
    "cross_of_modules": Case(
        embeds(pooling("cls"), dense(SIZE, 1, "torch.nn.Identity", module_output_name="scores"), **CROSS), rank=1
    ),
}


def theirs(folder: Path, rank: int, texts: list[Any]) -> list[Any]:
    """Answers of the library, each text alone; None where it fails."""
    import sentence_transformers

    found = huggingface.read(folder)
    with quiet(transformers):
        if found.library == "SentenceTransformer":
            own: Any = sentence_transformers.SentenceTransformer(
                str(folder), device="cpu", model_kwargs={"dtype": "float32"}
            )
            call = own.encode
        elif found.library == "CrossEncoder":
            call = sentence_transformers.CrossEncoder(str(folder), device="cpu").predict
        else:
            own = transformers.pipeline("text-classification", model=str(folder), device="cpu")
            order = {name: place for place, name in own.model.config.id2label.items()}

            def call(given: list[Any]) -> Any:
                row = (
                    {"text": given[0]} if isinstance(given[0], str) else {"text": given[0][0], "text_pair": given[0][1]}
                )
                scores = sorted(own(row, top_k=None, truncation=True), key=lambda each: order[each["label"]])
                values = [each["score"] for each in scores]
                return [values[1:] if rank == 1 and len(values) == 2 else values]

        answers = []
        for each in texts:
            try:
                answers.append(np.asarray(call([each])[0], np.float64).reshape(-1))
            except (IndexError, RuntimeError):  # RoBERTa has fewer positions than its limit says
                answers.append(None)
    return answers


@pytest.mark.parametrize("name", CASES)
def test_a_folder_gives_the_answers_of_its_library(name: str, bases: dict[str, Path], tmp_path: Path) -> None:
    case = CASES[name]
    folder = copied(bases[case.base], tmp_path / "model")
    case.change(folder)
    texts = huggingface.read(folder).texts
    given = [*([] if texts.needs_pair else TEXTS), *(PAIRS if texts.pairs else [])]
    rows = [{"text": each} if isinstance(each, str) else {"text": each[0], "text_pair": each[1]} for each in given]
    runtime = Module(folder, case.inputs, case.rank)
    mine = runtime.run(text.of_folder(folder, case.inputs)(rows), ["y"])["y"]
    own = theirs(folder, case.rank, given)
    assert sum(each is not None for each in own) >= len(own) - 1
    for row, expected in enumerate(own):
        if expected is not None:
            np.testing.assert_allclose(mine[row].reshape(-1), expected, rtol=2e-4, atol=2e-5, err_msg=str(given[row]))


CHECKED = (
    "plain",
    "roberta",
    "prompt_left_out_mean",
    "do_lower_case",
    "score",
    "both_of_two",
    "kinds_of_tokens",
    "cross",
)


@pytest.mark.parametrize("name", CHECKED)
def test_the_build_compares_texts_with_the_library(name: str, bases: dict[str, Path], tmp_path: Path) -> None:
    case = CASES[name]
    folder = copied(bases[case.base], tmp_path / "model")
    case.change(folder)
    section = manifest(folder, case.inputs, case.rank)
    found = folder_answers.check(folder, Module(folder, case.inputs, case.rank), section)
    assert found["texts"] > 10
    assert (found["unanswered"] > 0) is (name == "roberta")
    with pytest.raises(BuildError, match=r"the source variant answers \d+ of \d+ texts otherwise than .*, by up to"):
        folder_answers.check(folder, Module(folder, case.inputs, case.rank, scale=1.01), section)


def test_tokens_are_the_hooks_where_the_user_has_one(bases: dict[str, Path], tmp_path: Path) -> None:
    """The module is compared on the library's own tokens, which this tokenizer.json does not give."""
    folder, names = copied(bases["encoder"], tmp_path / "model"), ("input_ids", "attention_mask")
    put(folder / TOKENIZER, tokenizer_class="BertTokenizer", backend=None, do_lower_case=True)
    with pytest.raises(BuildError, match="tokens of"):
        folder_answers.check(folder, Module(folder, names, 2), manifest(folder, names, 2))
    found = folder_answers.check(folder, Module(folder, names, 2), manifest(folder, names, 2, preprocess="m:hook"))
    assert found["texts"] > 10
    with pytest.raises(BuildError, match="the source variant answers"):
        folder_answers.check(
            folder, Module(folder, names, 2, scale=1.01), manifest(folder, names, 2, preprocess="m:hook")
        )


def test_a_model_whose_answers_depend_on_padding_is_refused(tmp_path: Path) -> None:
    words, names = folder_kit.save_tokenizer(tmp_path, model_max_length=40), ("input_ids", "attention_mask")
    sizes = {
        "vocab_size": words,
        "hidden_size": SIZE,
        "num_hidden_layers": 1,
        "intermediate_size": 32,
        "pad_token_id": 0,
    }
    transformers.FNetModel(transformers.FNetConfig(**sizes, initializer_range=0.3)).eval().save_pretrained(tmp_path)
    with pytest.raises(BuildError, match="the source variant answers") as caught:
        folder_answers.check(tmp_path, Module(tmp_path, names, 2), manifest(tmp_path, names, 2))
    assert "depend on padding (FNet" in caught.value.hint
