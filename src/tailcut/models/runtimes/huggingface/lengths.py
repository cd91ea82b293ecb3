"""The longest input of a folder, in tokens, special tokens included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NO_LIMIT = 1_000_000
"""tokenizer_config.json says "no limit" with a number above this."""

_SKIPPING = (
    *("camembert", "data2vec-text", "ibert", "longformer", "luke", "mpnet", "roberta", "roberta-prelayernorm"),
    *("xlm-roberta", "xlm-roberta-xl", "xmod"),
)
"""Model types whose first position is that of the padding token plus one."""


def positions(config: Mapping[str, Any]) -> int | None:
    """Return how many tokens have a position: RoBERTa's kind skips those up to the padding token's id.

    Args:
        config: of config.json.

    Returns:
        None where the file names no limit.
    """
    most = _limit(config.get("max_position_embeddings"))
    if most is None or config.get("model_type") not in _SKIPPING:
        return most
    return most - pad_id(config) - 1


def pad_id(config: Mapping[str, Any]) -> int:
    """Return the id of the padding token by config.json; where it names none, the model type's own."""
    kind = config.get("model_type")
    found = config.get("pad_token_id")
    # mpnet takes 1 whatever config.json says.
    if kind == "mpnet" or (found is None and kind in _SKIPPING):
        return 1
    return int(found or 0)


def longest(named: Any, tokenizer: Mapping[str, Any], config: Mapping[str, Any]) -> int | None:
    """Return the longest input.

    Args:
        named: what a sentence-transformers folder says (max_seq_length, or model_max_length of its tokenizer's
            arguments), which goes before the tokenizer's own; None where it says nothing.
        tokenizer: of tokenizer_config.json.
        config: of config.json. Positions that the model does not have are no inputs.

    Returns:
        None where no file names a limit.
    """
    own = _limit(tokenizer.get("model_max_length", tokenizer.get("max_len")))
    known = [limit for limit in (_limit(named) or own, positions(config)) if limit is not None]
    return min(known) if known else None


def _limit(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and 0 < value < _NO_LIMIT else None
