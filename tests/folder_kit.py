"""Small random Hugging Face folders, as save_pretrained and sentence-transformers write them; nothing is downloaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import models, normalizers, pre_tokenizers, processors

SIZE = 16
WORDS = [
    *("refund", "order", "late", "price", "good", "bad", "ship", "where", "is", "my", "parcel", "broken", "thanks"),
    *("please", "cancel", "the", "in", "train", "query", "Refund", "ORDER", "Late", "café", "naïve"),
]
TEXTS = [
    "where is my parcel",
    "Refund my ORDER please",
    "late",
    "  the  order\tis late ",
    "",
    "café naïve Late",
    "good [SEP] bad",
    "the order is broken and late thanks a " * 12,
]
PAIRS = [
    ("where is my parcel", "late order"),
    ("Refund my ORDER", ""),
    ("good [SEP] bad", "price"),
    ("the order is late " * 12, "cancel the order " * 12),
]


def save_tokenizer(folder: Path, *, lower: bool = False, roberta: bool = False, **settings: Any) -> int:
    """Write a word tokenizer; return the size of its vocabulary."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if roberta else ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    first, last, unknown = ("<s>", "</s>", "<unk>") if roberta else ("[CLS]", "[SEP]", "[UNK]")
    vocabulary = {word: place for place, word in enumerate([*special, *WORDS])}
    held: Any = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    held.normalizer = normalizers.BertNormalizer(lowercase=lower, strip_accents=False)
    held.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    held.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(first, vocabulary[first]), (last, vocabulary[last])],
    )
    roles = ("bos_token", "pad_token", "eos_token", "unk_token", "mask_token")
    if not roberta:
        roles = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    named = dict(zip(roles, special, strict=True))
    transformers.PreTrainedTokenizerFast(tokenizer_object=held, **named, **settings).save_pretrained(folder)
    return len(vocabulary)


def save(folder: Path, kind: Any = transformers.BertModel, *, positions: int = 40, **settings: Any) -> Path:
    """Write a BERT of 2 layers with random weights, and its tokenizer."""
    torch.manual_seed(1)
    words = save_tokenizer(folder, model_max_length=positions)
    config = transformers.BertConfig(
        vocab_size=words,
        hidden_size=SIZE,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=2 * SIZE,
        max_position_embeddings=positions,
        initializer_range=0.3,
        **settings,
    )
    kind(config).eval().save_pretrained(folder)
    return folder


def copied(folder: Path, to: Path) -> Path:
    """Copy a folder, in order to change it."""
    shutil.copytree(folder, to)
    return to


def put(path: Path, **values: Any) -> None:
    """Set keys of a JSON file, which is made where it is not there; the value None removes a key."""
    found = json.loads(path.read_text()) if path.exists() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({key: value for key, value in (found | values).items() if value is not None}))


def modules(folder: Path, *stages: tuple[str, dict[str, Any]], first: str = "") -> Path:
    """Write modules.json and a folder for each stage; a Dense and a LayerNorm get random weights."""
    entries = [{"idx": 0, "name": "0", "path": first, "type": "sentence_transformers.models.Transformer"}]
    for place, (kind, settings) in enumerate(stages, 1):
        own = folder / f"{place}_{kind}"
        put(own / "config.json", **settings)
        weights = _weights(kind, settings)
        if weights:
            save_file(weights, own / "model.safetensors")
        name = kind if "." in kind else f"sentence_transformers.models.{kind}"
        entries.append({"idx": place, "name": str(place), "path": own.name, "type": name})
    (folder / "modules.json").write_text(json.dumps(entries))
    return folder


def dense(size: int, wanted: int, function: str = "torch.nn.modules.activation.Tanh", **more: Any) -> Any:
    """Return a Dense stage for ``modules``."""
    settings = {"in_features": size, "out_features": wanted, "bias": True, "activation_function": function}
    return "Dense", settings | more


def pooling(mode: Any = "mean", **more: Any) -> Any:
    """Return a Pooling stage for ``modules``."""
    return "Pooling", {"embedding_dimension": SIZE, "pooling_mode": mode} | more


def _weights(kind: str, settings: dict[str, Any]) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(2)
    if kind == "LayerNorm":
        size = settings["dimension"]
        return {"norm.weight": torch.rand(size, generator=random), "norm.bias": torch.rand(size, generator=random)}
    if kind != "Dense":
        return {}
    size, wanted = settings["in_features"], settings["out_features"]
    found = {"linear.weight": torch.randn(wanted, size, generator=random) / 4}
    if settings["bias"]:
        found["linear.bias"] = torch.randn(wanted, generator=random) / 4
    if settings.get("use_residual") and size != wanted:
        found["residual.weight"] = torch.randn(wanted, size, generator=random) / 4
    return found
