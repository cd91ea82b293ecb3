"""Texts of a request -> token arrays, and a classifier's scores -> their names: what a Hugging Face folder implies.

Serving needs the tokenizers package alone. Texts are cut to the model's longest input and padded to the batch's longest
text, rounded up to a multiple of 16: padding to the longest input would multiply the work of short texts, no rounding
at all would give every batch a shape of its own (a new memory plan each, and requests share batches only where shapes
agree).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tailcut.common.tensors import Arrays
from tailcut.errors import ArtifactError, BadRequest, StartError, WrongFields
from tailcut.manifest import Manifest
from tailcut.models.runtimes.huggingface import Folder, read, tokenizer
from tailcut.models.runtimes.live import source_path

MULTIPLE = 16
"""Padded lengths are multiples of this."""

FIELD, PAIR = "text", "text_pair"
"""Columns of a row that hold the text and, where the model takes one, the second text."""

Preprocess = Callable[[Sequence[Mapping[str, Any]]], Arrays]
Postprocess = Callable[[Arrays], list[Any]]


class TextPreprocess:
    """Rows with a text -> input_ids, attention_mask and token_type_ids, each (rows, tokens) int64.

    Args:
        folder: how its texts become tokens.
        inputs: which of the three arrays to make.

    Raises:
        MissingExtra: tokenizers is not installed.
        ArtifactError: the tokenizer cannot be read.
    """

    def __init__(self, folder: Folder, *, inputs: Sequence[str] = ("input_ids", "attention_mask")) -> None:
        self._tokenizer, self.sha256 = tokenizer.load(folder)
        self.texts = folder.texts
        assert self.texts.max_tokens is not None  # else the tokenizer is not loaded
        self.inputs = tuple(inputs)
        self.max_tokens = self.texts.max_tokens
        self.fields = (FIELD, PAIR) if self.texts.pairs else (FIELD,)

    def __repr__(self) -> str:
        return f"TextPreprocess{(self.sha256, self.inputs, self.texts, MULTIPLE)}"

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> Arrays:
        """Turn rows into arrays.

        Raises:
            BadRequest: a row has no text, or not the second text that the model needs.
        """
        firsts = self._texts(rows, FIELD)
        if not self.texts.pairs:
            return self.encode(firsts)
        if self.texts.needs_pair:
            return self.encode(list(zip(firsts, self._texts(rows, PAIR), strict=True)))
        seconds = self._texts([row if PAIR in row else {PAIR: ""} for row in rows], PAIR)
        # transformers' own tokenizers leave an empty second text out, CrossEncoder does not.
        return self.encode([(a, b) if b else a for a, b in zip(firsts, seconds, strict=True)])

    def encode(self, texts: Sequence[str | tuple[str, str]]) -> Arrays:
        """Turn texts or pairs into arrays, padded to the longest of them rounded up to MULTIPLE."""
        encoded = self._tokenizer.encode_batch_fast(self._prompted(texts) if self.texts.prompt else list(texts))
        longest = max((len(each.ids) for each in encoded), default=1)
        width = min(-(-max(longest, 1) // MULTIPLE) * MULTIPLE, self.max_tokens)
        ids = np.full((len(encoded), width), self.texts.pad_id, dtype=np.int64)
        mask = np.zeros((len(encoded), width), dtype=np.int64)
        kinds = np.zeros((len(encoded), width), dtype=np.int64)
        for place, each in enumerate(encoded):
            size = len(each.ids)
            ids[place, :size] = each.ids
            mask[place, :size] = 1
            kinds[place, :size] = each.type_ids
        arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": kinds}
        return {name: arrays[name] for name in self.inputs}

    def _prompted(self, texts: Sequence[str | tuple[str, str]]) -> list[str | tuple[str, str]]:
        prompt = self.texts.prompt
        return [prompt + each if isinstance(each, str) else (prompt + each[0], each[1]) for each in texts]

    def _texts(self, rows: Sequence[Mapping[str, Any]], field: str) -> list[str]:
        """Return a field's text of every row."""
        found: list[Any] = [row.get(field) for row in rows]
        for place, value in enumerate(found):
            if not isinstance(value, str):
                what = f"{type(value).__name__} in {field!r}" if field in rows[place] else f"no {field!r}"
                shape = ", ".join(f'"{name}": "..."' for name in self.fields)
                kind = BadRequest if field in rows[place] else WrongFields
                raise kind(f"row {place} has {what}, expected text", hint=f"a row is {{{shape}}}")
        return found


def of_folder(folder: Path, inputs: Sequence[str]) -> TextPreprocess:
    """Return the preprocess of a Hugging Face or sentence-transformers folder.

    Raises:
        StartError: a file is missing or cannot be read, or says something that is not supported.
    """
    try:
        return TextPreprocess(read(folder), inputs=inputs)
    except ArtifactError as error:
        raise StartError(error.message, hint=error.hint) from error


def preprocess_of(manifest: Manifest) -> Preprocess | None:
    """Return the preprocess that a manifest's Hugging Face folder implies; None where there is none.

    It is a partial of a function of this module, so that ``models.deployment_version`` sees the tokenizer's hash.

    Raises:
        StartError: the folder or its tokenizer cannot be read.
    """
    model = manifest.deployment.model
    folder = source_path(manifest)
    if model.preprocess or folder is None or not folder.is_dir():
        return None
    return partial(_encode, of_folder(folder, [tensor.name for tensor in model.inputs]))


def fields_of(preprocess: Preprocess | None) -> tuple[str, ...]:
    """Return the fields of a row that an implied preprocess reads; none for a hook, whose fields only it knows."""
    bound = preprocess.args[0] if isinstance(preprocess, partial) and preprocess.func is _encode else None
    return bound.fields if isinstance(bound, TextPreprocess) else ()


def postprocess_of(manifest: Manifest) -> Postprocess | None:
    """Return what names a classifier's scores by the folder's id2label; None where there are no names or one score.

    Raises:
        StartError: the folder cannot be read.
    """
    model = manifest.deployment.model
    folder = source_path(manifest)
    if model.postprocess or folder is None or not folder.is_dir():
        return None
    try:
        head = read(folder).head
    except ArtifactError as error:
        raise StartError(error.message, hint=error.hint) from error
    columns = len(model.outputs[0].shape) == 2
    return partial(_named, head.labels) if head is not None and len(head.labels) > 1 and columns else None


def _named(labels: tuple[str, ...], outputs: Arrays) -> list[Any]:
    (name, scores), *_ = outputs.items()
    return [{name: dict(zip(labels, row, strict=True))} for row in scores.tolist()]


def _encode(preprocess: TextPreprocess, rows: Sequence[Mapping[str, Any]]) -> Arrays:
    return preprocess(rows)
