"""What a Hugging Face folder's files say: read, honoured, or refused by name. No model is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.errors import ArtifactError
from tailcut.models.runtimes.huggingface import folder, read

BERT: dict[str, Any] = {"architectures": ["BertModel"], "model_type": "bert", "max_position_embeddings": 64}
CLASSIFIER = BERT | {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "bad", "1": "good"}}
POOLING = {"embedding_dimension": 16, "pooling_mode": "mean"}
DENSE = {"in_features": 16, "out_features": 8, "activation_function": "torch.nn.modules.activation.Tanh"}


def write(folder: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    return folder


def listed(*kinds: str) -> list[dict[str, Any]]:
    """Entries of modules.json; a kind without a dot is sentence-transformers' own."""
    return [
        {
            "idx": place,
            "name": str(place),
            "path": f"{place}_{kind}" if place else "",
            "type": kind if "." in kind else f"sentence_transformers.models.{kind}",
        }
        for place, kind in enumerate(("Transformer", *kinds))
    ]


def sentence(folder: Path, files: dict[str, Any] | None = None, *kinds: str) -> Path:
    """A sentence-transformers folder; ``files`` go over the usual ones."""
    usual = {"config.json": BERT, "modules.json": listed("Pooling", *kinds), "1_Pooling/config.json": POOLING}
    return write(folder, usual | (files or {}))


OVERALL, TRANSFORMER = "config_sentence_transformers.json", "sentence_bert_config.json"

REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...], str]] = {
    **{
        kind: ({}, (kind,), f"names the modules .*: {kind} is not supported")
        for kind in ("CNN", "LSTM", "WordWeights", "WeightedLayerPooling", "Router", "LogitScore", "SpladePooling")
    },
    **{
        f"first_{kind}": (
            {"modules.json": [listed()[0] | {"type": f"sentence_transformers.models.{kind}"}]},
            (),
            f"the first module must be a Transformer, but is {kind}",
        )
        for kind in ("StaticEmbedding", "WordEmbeddings", "BoW", "CLIPModel", "Asym")
    },
    "own_code": (
        {},
        ("custom_st.Pooler",),
        "names the module 'custom_st.Pooler', which is not part of sentence-transformers",
    ),
    "two_transformers": ({}, ("Transformer",), "the first module must be a Transformer"),
    "module_key": (
        {"modules.json": [listed()[0] | {"when": "always"}]},
        (),
        "sets 'when' to \"always\", which tailcut",
    ),
    "no_pooling": ({"modules.json": listed()}, (), "no module gives 'sentence_embedding'"),
    "order": ({"modules.json": listed("Dense", "Pooling"), "1_Dense/config.json": DENSE}, (), "Dense in .* reads"),
    "pooling_mode": ({"1_Pooling/config.json": POOLING | {"pooling_mode": ["cls", "median"]}}, (), '"median"'),
    "pooling_key": ({"1_Pooling/config.json": POOLING | {"temperature": 2}}, (), "sets 'temperature' to 2, which"),
    "dense_key": ({"2_Dense/config.json": DENSE | {"scale": 2}}, ("Dense",), "sets 'scale' to 2, which tailcut"),
    "dense_activation": (
        {"2_Dense/config.json": DENSE | {"activation_function": "mine.Swish"}},
        ("Dense",),
        "sets 'activation_function' to 'mine.Swish', which is not a class of torch.nn",
    ),
    "dense_size": ({"2_Dense/config.json": DENSE | {"in_features": None}}, ("Dense",), "'in_features' is null"),
    "normalize_key": ({"2_Normalize/config.json": {"order": 1}}, ("Normalize",), "sets 'order' to 1, which tailcut"),
    "model_type": ({OVERALL: {"model_type": "SparseEncoder"}}, (), "'model_type' to \"SparseEncoder\": known are"),
    "prompt_name": (
        {OVERALL: {"default_prompt_name": "x", "prompts": {"q": "a"}}},
        (),
        "prompts are document, q, query",
    ),
    "truncate_dim": ({OVERALL: {"truncate_dim": 0}}, (), "sets 'truncate_dim' to 0"),
    "overall_key": ({OVERALL: {"scaling": 2}}, (), "sets 'scaling' to 2, which tailcut does not know"),
    "transformer_key": ({TRANSFORMER: {"whiten": True}}, (), "sets 'whiten' to true, which tailcut does not know"),
    "task": ({TRANSFORMER: {"transformer_task": "fill-mask"}}, (), "sets 'transformer_task' to \"fill-mask\""),
    "task_of_scores": ({TRANSFORMER: {"transformer_task": "sequence-classification"}}, (), "'transformer_task'"),
    "modality": ({TRANSFORMER: {"modality_config": {"image": {}}}}, (), "sets 'modality_config' to"),
    "output": ({TRANSFORMER: {"module_output_name": "pooled"}}, (), "sets 'module_output_name' to \"pooled\""),
    "processing": ({TRANSFORMER: {"processing_kwargs": {"text": {"max_length": 3}}}}, (), "'processing_kwargs'"),
    "expansion": ({TRANSFORMER: {"query_expansion": {"strategy": "min"}}}, (), "sets 'query_expansion'"),
    "model_args": ({TRANSFORMER: {"model_args": {"variant": "x"}}}, (), "sets 'model_args.variant' to \"x\""),
    "config_args": ({TRANSFORMER: {"config_args": {"num_labels": 2}}}, (), "sets 'config_args.num_labels' to 2"),
    "tokenizer_args": ({TRANSFORMER: {"tokenizer_args": {"add_eos": 1}}}, (), "sets 'tokenizer_args.add_eos'"),
    "remote_code": ({"config.json": BERT | {"auto_map": {"AutoModel": "m.M"}}}, (), "sets 'auto_map' to"),
    "remote_tokenizer": ({"tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["t.T"]}}}, (), "sets 'auto_map' to"),
    "quantised": ({"config.json": BERT | {"quantization_config": {"bits": 4}}}, (), "sets 'quantization_config' to"),
    "images": ({"config.json": BERT | {"vision_config": {}}}, (), "sets 'vision_config' to"),
    "adapter": ({"adapter_config.json": {"peft_type": "LORA"}}, (), "shows that this is the folder of an adapter"),
    "decoder": ({"config.json": BERT | {"is_decoder": True}}, (), "holds a BertModel, which is not an encoder"),
    "truncation_side": (
        {"tokenizer_config.json": {"truncation_side": "middle"}},
        (),
        "'truncation_side' to \"middle\"",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_that_is_not_supported_is_refused_by_name(name: str, tmp_path: Path) -> None:
    files, kinds, says = REFUSED[name]
    with pytest.raises(ArtifactError, match=says) as caught:
        read(sentence(tmp_path, files, *kinds))
    assert caught.value.hint


PLAIN_REFUSED = {
    **{
        name: ({"architectures": [f"Bert{name}"]}, f"names the architecture Bert{name}, which tailcut does not")
        for name in ("ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice", "ForNextSentencePrediction")
    },
    "GPT2LMHeadModel": ({"architectures": ["GPT2LMHeadModel"]}, "names the architecture GPT2LMHeadModel"),
    "causal": ({"architectures": ["LlamaForCausalLM"]}, "holds a LlamaForCausalLM, which is not an encoder"),
    "seq2seq": ({"architectures": ["T5Model"], "is_encoder_decoder": True}, "holds a T5Model, which is not an encoder"),
    "problem": (CLASSIFIER | {"problem_type": "ranking"}, "sets 'problem_type' to \"ranking\""),
    "function": (CLASSIFIER | {"function_to_apply": "sigmoid"}, "'function_to_apply' to \"sigmoid\": transformers"),
    "section": (CLASSIFIER | {"sentence_transformers": {"scale": 2}}, "sets 'scale' to 2, which tailcut does not know"),
    "activation": (
        CLASSIFIER | {"sbert_ce_default_activation_function": "mine.Swish"},
        "sets 'sbert_ce_default_activation_function' to 'mine.Swish', which is not a class of torch.nn",
    ),
}


@pytest.mark.parametrize("name", PLAIN_REFUSED)
def test_a_head_that_is_not_served_is_refused_by_name(name: str, tmp_path: Path) -> None:
    config, says = PLAIN_REFUSED[name]
    with pytest.raises(ArtifactError, match=says):
        read(write(tmp_path, {"config.json": BERT | config}))


def test_settings_that_change_no_answer_are_left_alone(tmp_path: Path) -> None:
    overall = {"similarity_fn_name": "dot", "__version__": {}, "keep_in_fp32_modules": ["x"], "prompts": {"q": "a: "}}
    transformer = {"unpad_inputs": False, "query_length": 3, "model_args": {"attn_implementation": "sdpa"}}
    found = read(sentence(tmp_path, {OVERALL: overall, TRANSFORMER: transformer}))
    assert found.texts.prompt == ""
    assert found.texts.max_tokens == 64
    assert found.warnings == ()


def test_a_setting_of_the_tokenizer_that_is_not_known_is_a_warning(tmp_path: Path) -> None:
    settings = {"cls_token": "[CLS]", "strip_accents": True, "phonetic": True}
    found = read(sentence(tmp_path, {"tokenizer_config.json": settings}))
    assert len(found.warnings) == 1
    assert "'phonetic'" in found.warnings[0]


@pytest.mark.parametrize(
    ("named", "tokenizer", "config", "expected"),
    [
        (None, {}, BERT, 64),
        (None, {"model_max_length": 10**30}, BERT, 64),
        (None, {"model_max_length": 32}, BERT, 32),
        (None, {"max_len": 16}, BERT, 16),
        (48, {"model_max_length": 32}, BERT, 48),
        (128, {}, BERT, 64),
        (None, {}, {"model_type": "roberta", "max_position_embeddings": 34, "pad_token_id": 1}, 32),
        (None, {}, {"model_type": "xlm-roberta", "max_position_embeddings": 514}, 512),
        (None, {}, {"model_type": "mpnet", "max_position_embeddings": 34, "pad_token_id": 5}, 32),
        (None, {"model_max_length": 9}, {"model_type": "xlnet", "max_position_embeddings": -1}, 9),
        (None, {}, {}, None),
    ],
)
def test_the_longest_input_is_the_first_limit_that_is_named_and_no_more_than_positions(
    named: Any, tokenizer: dict[str, Any], config: dict[str, Any], expected: int | None
) -> None:
    assert folder.longest(named, tokenizer, config) == expected


@given(st.none() | st.integers(-1, 10**40), st.none() | st.integers(-1, 10**40), st.integers(1, 5000), st.booleans())
def test_the_longest_input_never_exceeds_a_limit(named: int | None, own: int | None, most: int, skips: bool) -> None:
    config = {"model_type": "roberta" if skips else "bert", "max_position_embeddings": most + 2, "pad_token_id": 1}
    found = folder.longest(named, {"model_max_length": own}, config)
    assert found is not None
    assert 1 <= found <= (most if skips else most + 2)
    if named is not None and 0 < named < 1_000_000:
        assert found <= named


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        ({"0": "bad", "1": "good"}, ("bad", "good")),
        ({"0": "LABEL_0", "1": "LABEL_1"}, ()),
        ({"1": "b", "0": "a"}, ("a", "b")),
    ],
)
def test_scores_have_the_names_of_id2label(labels: dict[str, str], named: tuple[str, ...], tmp_path: Path) -> None:
    head = read(write(tmp_path, {"config.json": CLASSIFIER | {"id2label": labels}})).head
    assert head is not None
    assert (head.labels, head.columns, head.activation) == (named, 2, "Softmax")
