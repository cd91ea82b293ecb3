"""Text -> token arrays at serving: the preprocess of a Hugging Face folder, with the tokenizers package alone.

Texts are cut to the model's longest input and padded to the batch's longest text, rounded up to a multiple of 16:
padding to the longest input would multiply the work of short texts, no rounding at all would give every batch a shape
of its own (a new memory plan each, and requests share batches only where shapes agree).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tailcut.core.tensors import Arrays
from tailcut.errors import BadRequest, MissingExtra, StartError
from tailcut.manifest import Manifest
from tailcut.runtimes.live import source_path

MULTIPLE = 16
"""Padded lengths are multiples of this."""

FIELD = "text"
"""Column of a row that holds the text."""

_NO_LIMIT = 1_000_000
"""tokenizer_config.json says "no limit" with a number above this."""

Preprocess = Callable[[Sequence[Mapping[str, Any]]], Arrays]


class TextPreprocess:
    """Rows with a text -> input_ids, attention_mask and token_type_ids, each (rows, tokens) int64.

    Args:
        tokenizer: path of a tokenizer.json.
        inputs: which of the three arrays to make.
        max_tokens: longest input, special tokens included.
        pad_id: id of the padding token.
        field: column of a row that holds the text.

    Raises:
        MissingExtra: tokenizers is not installed.
        StartError: the file cannot be read.
    """

    def __init__(
        self,
        tokenizer: Path,
        *,
        inputs: Sequence[str] = ("input_ids", "attention_mask"),
        max_tokens: int,
        pad_id: int = 0,
        field: str = FIELD,
    ) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise MissingExtra(
                f"text needs the tokenizers package: {error}", hint="pip install 'tailcut[text]'"
            ) from error
        # Its own threads take the cores of the executors, and do not survive a fork.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        try:
            content = tokenizer.read_bytes()
            self._tokenizer: Any = tokenizers.Tokenizer.from_buffer(content)
        except Exception as error:  # tokenizers raises plain Exception
            raise StartError(
                f"cannot read the tokenizer {tokenizer}: {error}",
                hint="it is a tokenizer.json, as save_pretrained writes",
            ) from error
        # The file's own settings are those of whoever saved it last, often fixed padding.
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_length=max_tokens)
        self.inputs = tuple(inputs)
        self.max_tokens = max_tokens
        self.pad_id = pad_id
        self.field = field
        self.sha256 = hashlib.sha256(content).hexdigest()

    def __repr__(self) -> str:
        parts = (self.sha256, self.inputs, self.max_tokens, self.pad_id, self.field, MULTIPLE)
        return f"TextPreprocess{parts}"

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> Arrays:
        """Turn rows into arrays.

        Raises:
            BadRequest: a row has no text.
        """
        return self.encode([self._text(row, place) for place, row in enumerate(rows)])

    def encode(self, texts: Sequence[str]) -> Arrays:
        """Turn texts into arrays, padded to the longest of them rounded up to MULTIPLE."""
        encoded = self._tokenizer.encode_batch_fast(list(texts))
        longest = max((len(each.ids) for each in encoded), default=1)
        width = min(-(-max(longest, 1) // MULTIPLE) * MULTIPLE, self.max_tokens)
        ids = np.full((len(encoded), width), self.pad_id, dtype=np.int64)
        mask = np.zeros((len(encoded), width), dtype=np.int64)
        kinds = np.zeros((len(encoded), width), dtype=np.int64)
        for place, each in enumerate(encoded):
            size = len(each.ids)
            ids[place, :size] = each.ids
            mask[place, :size] = 1
            kinds[place, :size] = each.type_ids
        arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": kinds}
        return {name: arrays[name] for name in self.inputs}

    def _text(self, row: Mapping[str, Any], place: int) -> str:
        value = row.get(self.field)
        if not isinstance(value, str):
            what = f"{type(value).__name__} in {self.field!r}" if self.field in row else f"no {self.field!r}"
            raise BadRequest(f"row {place} has {what}, expected text", hint=f'a row is {{"{self.field}": "..."}}')
        return value


def of_folder(folder: Path, inputs: Sequence[str], *, field: str = FIELD) -> TextPreprocess:
    """Return the preprocess of a Hugging Face or sentence-transformers folder.

    The longest input is sentence_bert_config.json's, else tokenizer_config.json's, and never above config.json's.

    Raises:
        StartError: a file is missing or cannot be read.
    """
    modules = folder / "modules.json"
    if modules.is_file():
        folder = folder / json.loads(modules.read_text(encoding="utf-8"))[0]["path"]
    config, settings, sentence = (
        _json(folder / name) for name in ("config.json", "tokenizer_config.json", "sentence_bert_config.json")
    )
    limits = [sentence.get("max_seq_length"), settings.get("model_max_length"), config.get("max_position_embeddings")]
    named = [int(limit) for limit in limits if limit and limit < _NO_LIMIT]
    if not named:
        raise StartError(
            f"no file of {folder} says how long an input may be",
            hint="set model_max_length in tokenizer_config.json",
        )
    # The first that is named decides, but positions that the model does not have are no inputs.
    return TextPreprocess(
        folder / "tokenizer.json",
        inputs=inputs,
        max_tokens=min(named[0], named[-1]),
        pad_id=int(config.get("pad_token_id") or 0),
        field=field,
    )


def preprocess_of(manifest: Manifest) -> Preprocess | None:
    """Return the preprocess that a manifest's Hugging Face folder implies; None where there is none.

    It is a partial of a function of this module, so that ``engine.version`` sees the tokenizer's hash.

    Raises:
        StartError: the tokenizer cannot be read.
    """
    model = manifest.deployment.model
    folder = source_path(manifest)
    if model.preprocess or folder is None or not folder.is_dir():
        return None
    return partial(_encode, of_folder(folder, [tensor.name for tensor in model.inputs]))


def _encode(preprocess: TextPreprocess, rows: Sequence[Mapping[str, Any]]) -> Arrays:
    return preprocess(rows)


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StartError(
            f"cannot read {path}: {error}", hint="it must be JSON, as save_pretrained writes it"
        ) from error
    return found
