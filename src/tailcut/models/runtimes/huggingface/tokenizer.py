"""The tokenizer of a folder, with the tokenizers package alone: cut, cased and split as the folder says."""

from __future__ import annotations

import hashlib
import os
from typing import Any

from tailcut.errors import ArtifactError
from tailcut.models.runtimes.checks import load_library
from tailcut.models.runtimes.huggingface.folder import Folder


def load(folder: Folder) -> tuple[Any, str]:
    """Read the tokenizer of a folder.

    Returns:
        a tokenizers.Tokenizer that cuts and does not pad, and the SHA-256 of its file.

    Raises:
        MissingExtra: tokenizers is not installed.
        ArtifactError: the file is missing or cannot be read, or no file says how long an input may be.
    """
    tokenizers = load_library("tokenizers", "text needs the tokenizers package")
    # Its own threads take the cores of the executors, and do not survive a fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    path, texts = folder.transformer / "tokenizer.json", folder.texts
    if texts.max_tokens is None:
        raise ArtifactError(
            f"no file of {folder.transformer} gives the maximum length of an input",
            hint="set model_max_length in tokenizer_config.json",
        )
    try:
        content = path.read_bytes()
        found: Any = tokenizers.Tokenizer.from_buffer(content)
    except Exception as error:  # tokenizers raises plain Exception
        raise ArtifactError(
            f"cannot read the tokenizer {path}: {error}",
            hint="write it into the same folder with "
            f"transformers.AutoTokenizer.from_pretrained({str(folder.transformer)!r}).save_pretrained(...)",
        ) from error
    side = texts.side or (found.truncation or {}).get("direction", "right")
    # The file's own settings are those of whoever saved it last, often fixed padding.
    found.no_padding()
    found.enable_truncation(max_length=texts.max_tokens, strategy="longest_first", direction=side)
    if texts.lower_case:
        lower: Any = tokenizers.normalizers.Lowercase()
        own = found.normalizer
        found.normalizer = lower if own is None else tokenizers.normalizers.Sequence([lower, own])
    found.encode_special_tokens = texts.split_special
    return found, hashlib.sha256(content).hexdigest()


def prompt_length(folder: Folder) -> int:
    """Return how many tokens of a text are the prompt's, the leading special token included.

    Raises:
        MissingExtra, ArtifactError: see ``load``.
    """
    tokenizer, _ = load(folder)
    encoded = tokenizer.encode(folder.texts.prompt)
    return len(encoded.ids) - (1 if encoded.special_tokens_mask[-1:] == [1] else 0)
