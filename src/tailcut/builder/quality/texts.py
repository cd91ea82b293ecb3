"""Texts that reach what a folder's configuration says of tokens: cutting, casing, special tokens, pairs, prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle, islice, pairwise

Text = str | tuple[str, str]

_WORDS = 40
_SPECIAL = 6
_ODD = (
    "Ünïcödé naïve CAFÉ déjà-vu",
    "你好 世界 こんにちは 🙂 ﬁne Ⅷ",
    "İstanbul STRASSE straße",
    "  spaces\tand\nlines   ",
    "don't 3.14, (a; b)! http://x.y/z?q=1 #tag @me",
)
_COMMON = ("the", "a", "and", "of", "in", "is", "it", "to", "for", "on", "with", "as", "was", "at", "by")
_MARKS = "▁Ġ#"
"""What vocabularies put before the parts of words."""


def words_of(vocabulary: Mapping[str, int]) -> list[str]:
    """Return words of a vocabulary, at most 40, spread over it; common words where it has none."""
    plain = [token.lstrip(_MARKS) for token, _ in sorted(vocabulary.items(), key=lambda item: item[1])]
    words = list(dict.fromkeys(word for word in plain if len(word) > 1 and word.isalpha()))
    step = max(1, len(words) // _WORDS)
    return words[::step][:_WORDS] or list(_COMMON)


def singles(words: Sequence[str], special: Sequence[str], longest: int) -> list[str]:
    """Return texts; the last two are cut.

    Args:
        special: special tokens of the tokenizer.
        longest: longest input in tokens.
    """
    some = " ".join(islice(cycle(words), 5))
    marked = [f"{words[0]} {token} {words[-1]}" for token in special[:_SPECIAL]]
    long = " ".join(islice(cycle(words), 2 * longest + 8))
    return ["", words[0], some, some.upper(), some.title(), *marked, *_ODD, long, long.upper()]


def pairs(words: Sequence[str], special: Sequence[str], longest: int) -> list[tuple[str, str]]:
    """Return pairs of texts; the last three are cut. See ``singles``."""
    short, other = " ".join(islice(cycle(words), 4)), " ".join(islice(cycle(reversed(words)), 6))
    long = " ".join(islice(cycle(words), 2 * longest + 8))
    marked = [(f"{words[0]} {token}", short) for token in special[:_SPECIAL]]
    return [
        (short, other),
        (other, short.upper()),
        ("", short),
        (short, ""),
        *marked,
        *pairwise(_ODD),
        (long, short),
        (short, long),
        (long, long),
    ]
