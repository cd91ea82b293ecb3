"""Compares a Hugging Face folder's source variant with the answers of the library itself, text by text.

The user of a folder has no object of their own: what they would call is ``SentenceTransformer.encode``,
``CrossEncoder.predict`` or transformers' pipeline, each text alone. Weights are float32 on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tailcut import text
from tailcut.builder.calling import said
from tailcut.builder.quality import reference
from tailcut.common.tensors import Array, Arrays
from tailcut.errors import BuildError, MissingExtra, TailcutError
from tailcut.manifest import Manifest
from tailcut.models.runtimes import Runtime
from tailcut.models.runtimes.huggingface import Folder, read
from tailcut.models.runtimes.huggingface.module import quiet

SCALE = 10.0
"""Attention is computed in another order than the library's: rounding of this many times what one kernel gives."""

_MOST_TOKENS = 1024
"""Longer inputs are compared by their tokens only."""

_SHOWN = 60
_IDS, _KINDS = "input_ids", "token_type_ids"


@dataclass(frozen=True)
class Own:
    """The library's own object of a folder.

    Attributes:
        name: of what a user calls.
        tokens: a text -> the library's arrays of it, (tokens,) each.
        answer: a text -> its answer, (numbers,).
        vocabulary: token -> id.
        special: special tokens.
    """

    name: str
    tokens: Callable[[Text], Arrays]
    answer: Callable[[Text], Array]
    vocabulary: dict[str, int]
    special: list[str]


@dataclass(frozen=True)
class LibraryAnswer:
    """What the library makes of a text.

    Attributes:
        text: a text or a pair.
        tokens: the library's arrays of it, (tokens,) each.
        answer: (numbers,); None of a text so long that it would take long.
    """

    text: Text
    tokens: Arrays
    answer: Array | None


def check(path: Path, runtime: Runtime, manifest: Manifest) -> dict[str, object]:
    """Compare tokens and answers on texts that reach what the folder's configuration says.

    Where ``model.preprocess`` is a hook of the user's, tokens are the library's own: only the module is compared.

    Args:
        path: of the folder.
        runtime: the source variant, opened.

    Returns:
        evidence: the library, how many texts were compared, how many it did not answer, and the largest difference.

    Raises:
        BuildError: a token or an answer differs by more than rounding.
        MissingExtra: the library is not installed.
    """
    folder, section = read(path), manifest.deployment.model
    names, output = [tensor.name for tensor in section.inputs], section.outputs[0]
    with quiet(_transformers()):
        own = _own(folder, rank=len(output.shape))
        given = _probes(folder, own)
        tried = [each for each in map(partial(_asked, own), given) if each is not None]
        if section.preprocess:
            arrays = _padded([each.tokens for each in tried], names, folder.texts.pad_id)
        else:
            arrays = _encoded(path, names, [each.text for each in tried])
            for row, each in enumerate(tried):
                _compare_tokens(own, each, {name: array[row] for name, array in arrays.items()})
    places = [row for row, each in enumerate(tried) if each.answer is not None]
    if not places:
        raise BuildError(
            f"{own.name} answers none of {len(given)} texts with {path}",
            hint="open the folder with it by hand to see the error",
        )
    mine = runtime.run({name: array[places] for name, array in arrays.items()}, [output.name])[output.name]
    worst = _compare(own, [tried[row] for row in places], mine.reshape(len(places), -1))
    return {"library": own.name, "texts": len(places), "unanswered": len(given) - len(places), "max_abs": worst}


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra(
            f"a Hugging Face folder needs the transformers package: {error}", hint="pip install 'tailcut[text-build]'"
        ) from error
    return transformers


def _probes(folder: Folder, own: Own) -> list[Text]:
    words, longest = words_of(own.vocabulary), folder.texts.max_tokens or _MOST_TOKENS
    found: list[Text] = []
    if not folder.texts.needs_pair:
        found += singles(words, own.special, longest)
    if folder.texts.pairs:
        found += pairs(words, own.special, longest)
    return found


def _asked(own: Own, given: Text) -> LibraryAnswer | None:
    """Ask the library; None where it has no answer, to a text that is too long for its positions, for instance."""
    try:
        tokens = own.tokens(given)
        size = len(tokens[_IDS])
        return LibraryAnswer(given, tokens, own.answer(given) if size <= _MOST_TOKENS else None) if size else None
    except Exception:  # whatever the library raises, its user has no answer either
        return None


def _encoded(path: Path, names: Sequence[str], given: Sequence[Text]) -> Arrays:
    """Return the arrays that serving makes of rows with these texts."""
    rows = [
        dict(zip((text.FIELD, text.PAIR), (each,) if isinstance(each, str) else each, strict=False)) for each in given
    ]
    try:
        return text.of_folder(path, names)(rows)
    except TailcutError as error:
        raise BuildError(error.message, hint=error.hint) from error


def _padded(tokens: Sequence[Arrays], names: Sequence[str], pad_id: int) -> Arrays:
    """Return the library's tokens as one batch, (texts, tokens) each; what it does not give is zeros."""
    width = max(len(each[_IDS]) for each in tokens)
    found: Arrays = {
        name: np.full((len(tokens), width), pad_id if name == _IDS else 0, dtype=np.int64) for name in names
    }
    for row, each in enumerate(tokens):
        for name in names:
            if name in each:
                found[name][row, : len(each[name])] = each[name]
    return found


# -- The library -------------------------------------------------------------------------------------------------------


def _own(folder: Folder, *, rank: int) -> Own:
    if folder.library in ("SentenceTransformer", "CrossEncoder"):
        return _sentence(folder)
    return _pipeline(folder, rank)


def _sentence(folder: Folder) -> Own:
    try:
        import sentence_transformers
    except ImportError as error:
        raise MissingExtra(
            f"the answers of a folder are compared with those of sentence-transformers: {error}",
            hint="pip install 'tailcut[text-build]'",
        ) from error
    embeds = folder.library == "SentenceTransformer"
    kind: Any = sentence_transformers.SentenceTransformer if embeds else sentence_transformers.CrossEncoder
    try:
        model = kind(str(folder.path), device="cpu", local_files_only=True, model_kwargs={"dtype": "float32"})
    except Exception as error:
        raise _cannot_open(f"sentence-transformers {sentence_transformers.__version__}", folder, error) from error
    call = model.encode if embeds else model.predict
    prompt = model.prompts.get(model.default_prompt_name) if model.default_prompt_name else None

    def tokens(given: Text) -> Arrays:
        found = model.preprocess([given], prompt=prompt)
        return {name: np.asarray(found[name][0]) for name in (_IDS, "attention_mask", _KINDS) if name in found}

    def answer(given: Text) -> Array:
        return np.asarray(call([given], show_progress_bar=False)[0]).reshape(-1)

    special = [str(token) for token in model.tokenizer.all_special_tokens]
    name = f"{folder.library}.{call.__name__}"
    return Own(name, tokens, answer, dict(model.tokenizer.get_vocab()), special)


def _pipeline(folder: Folder, rank: int) -> Own:
    transformers = _transformers()
    path = str(folder.transformer)
    try:
        made: Any = transformers.pipeline(folder.library, model=path, tokenizer=path, device="cpu", dtype="float32")
    except Exception as error:
        raise _cannot_open(f"transformers {transformers.__version__}", folder, error) from error
    order = made.model.config.id2label
    # A manifest that declares one number takes the second of two probabilities.
    second = rank == 1 and len(order) == 2 and folder.head is not None and folder.head.activation == "Softmax"

    def tokens(given: Text) -> Arrays:
        parts = (given,) if isinstance(given, str) else given
        found = made.tokenizer(*parts, truncation=True)
        return {name: np.asarray(values) for name, values in found.items()}

    def answer(given: Text) -> Array:
        row = {"text": given} if isinstance(given, str) else dict(zip(("text", "text_pair"), given, strict=True))
        scores = {each["label"]: each["score"] for each in made(row, truncation=True, top_k=None)}
        found = np.array([scores[order[place]] for place in range(len(order))], dtype=np.float32)
        return found[1:] if second else found

    special = [str(token) for token in made.tokenizer.all_special_tokens]
    return Own(f"pipeline({folder.library!r})", tokens, answer, dict(made.tokenizer.get_vocab()), special)


def _cannot_open(library: str, folder: Folder, error: Exception) -> BuildError:
    return BuildError(
        f"{library} cannot open {folder.path}: {said(error)}",
        hint="open it with that library once by hand, and save it again",
    )


# -- The comparison ----------------------------------------------------------------------------------------------------


def _compare_tokens(own: Own, asked: LibraryAnswer, mine: Arrays) -> None:
    """Compare one text's tokens, padding left off, and the kind of each token.

    Raises:
        BuildError: they differ.
    """
    given, theirs = asked.text, asked.tokens
    size = int(mine["attention_mask"].sum())
    ids = mine[_IDS][:size]
    if ids.tolist() != theirs[_IDS].tolist():
        raise BuildError(
            f"tokens of {_short(given)} differ: {own.name} makes {_short(theirs[_IDS].tolist())} of it "
            f"({len(theirs[_IDS])}), the folder's tokenizer.json and settings {_short(ids.tolist())} ({size})",
            hint="transformers builds another tokenizer than tokenizer.json describes. Save it again with your version "
            "of transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)",
        )
    none = np.zeros(size, dtype=np.int64)
    wanted, kinds = theirs.get(_KINDS, none), mine[_KINDS][:size] if _KINDS in mine else none
    if wanted.tolist() != kinds.tolist():
        raise BuildError(
            f"token_type_ids of {_short(given)} differ: {own.name} gives the model {_short(wanted.tolist())}, "
            f"model.inputs {'have' if _KINDS in mine else 'lack'} token_type_ids",
            hint="remove token_type_ids from model.inputs: this tokenizer gives none"
            if _KINDS in mine
            else 'add [[model.inputs]] name = "token_type_ids", datatype = "INT64", shape = [-1, -1]',
        )


def _compare(own: Own, asked: Sequence[LibraryAnswer], mine: Array) -> float:
    """Compare answers, (texts, numbers); return the largest difference.

    Raises:
        BuildError: they differ by more than rounding.
    """
    theirs = [each.answer for each in asked if each.answer is not None]
    sizes = {len(each) for each in theirs}
    if sizes != {mine.shape[1]}:
        raise BuildError(
            f"{own.name} gives {sorted(sizes)} numbers per text, the source variant {mine.shape[1]}",
            hint="make the shape of model.outputs agree with the library's answers",
        )
    wrong, worst = reference.differs(np.stack(theirs), mine, scale=SCALE)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise BuildError(
            f"the source variant answers {int(wrong.sum())} of {len(asked)} texts otherwise than {own.name}, by up to "
            f"{worst:.3g}; the first is {_short(asked[row].text)}: {own.name} {_short(theirs[row].tolist())}, the "
            f"variant {_short(mine[row].tolist())}",
            hint="its answers depend on padding (FNet, ConvBERT), or tailcut ignores a setting of the folder: export "
            "the model to ONNX yourself, and set model.source to the .onnx file",
        )
    return worst


def _short(value: Any) -> str:
    found = repr(value)
    return found if len(found) <= _SHOWN else f"{found[:_SHOWN]}..."


# -- Texts that reach what the configuration says ----------------------------------------------------------------------


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
