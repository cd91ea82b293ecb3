"""The settings of a sentence-transformers folder: config_sentence_transformers.json and sentence_bert_config.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailcut.models.runtimes.huggingface.files import refuse_unknown, refused, settings_of

EMBEDS, SCORES = "SentenceTransformer", "CrossEncoder"
ENCODER, CLASSIFIER = "feature-extraction", "sequence-classification"

_FILES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
"""sentence_..._config.json has one of these names; the library takes the first that is there."""

_OUTPUTS = {ENCODER: "last_hidden_state", CLASSIFIER: "logits"}

_OVERALL = (
    *("__version__", "model_type", "prompts", "default_prompt_name", "truncate_dim", "activation_fn"),
    # These change no value of an answer here: the similarity is computed by clients, the weights are float32 anyway,
    # and the library itself checks its version's requirements when the build asks it.
    *("similarity_fn_name", "keep_in_fp32_modules", "requirements"),
)
_TRANSFORMER = (
    *("max_seq_length", "do_lower_case", "transformer_task", "modality_config", "module_output_name"),
    *("model_args", "tokenizer_args", "config_args", "model_kwargs", "processor_kwargs", "config_kwargs"),
    *("processing_kwargs", "query_expansion"),
    # These change no value of ``encode``: padding that flash attention leaves out, and lengths of encode_query and
    # encode_document.
    *("unpad_inputs", "query_length", "document_length"),
)
_HUB = ("token", "cache_dir", "revision", "local_files_only", "trust_remote_code", "subfolder", "use_safetensors")
"""Arguments that say where files come from. The library itself removes trust_remote_code."""

_MODEL = (*_HUB, "dtype", "torch_dtype", "attn_implementation", "low_cpu_mem_usage", "add_pooling_layer")
"""Arguments of a model that change an answer by rounding at most: weights are float32 and attention is plain here."""

_TOKENIZER = (*_HUB, "model_max_length", "use_fast", "padding_side")
"""Arguments of a tokenizer; ``padding_side`` changes no answer of a text alone."""


@dataclass(frozen=True)
class Sentence:
    """What a sentence-transformers folder says beside its modules.

    Attributes:
        library: class of sentence-transformers that opens the folder: EMBEDS or SCORES.
        task: what the transformer is loaded as: ENCODER or CLASSIFIER.
        prompt: put before every text; empty where there is none.
        truncate_dim: how many numbers of a vector are kept; None: all.
        activation: saved by a CrossEncoder; None where it has saved none.
        max_tokens: longest input; None where the folder leaves it to the tokenizer.
        lower_case: whether texts are lower-cased before anything else.
    """

    library: str
    task: str = ENCODER
    prompt: str = ""
    truncate_dim: int | None = None
    activation: Any = None
    max_tokens: Any = None
    lower_case: bool = False


def read(folder: Path, transformer: Path) -> Sentence:
    """Read the settings of a folder with modules.json.

    Args:
        folder: of modules.json.
        transformer: the first module's.

    Raises:
        ArtifactError: a setting that is not supported, or not known.
    """
    path = folder / "config_sentence_transformers.json"
    overall = settings_of(path)
    refuse_unknown(path, overall, _OVERALL, overall)
    library = overall.get("model_type", EMBEDS)
    if library not in (EMBEDS, SCORES):
        raise refused(path, "model_type", library, f"known are {EMBEDS} and {SCORES}")
    own = next((each for each in map(transformer.joinpath, _names()) if each.is_file()), transformer / _names()[0])
    settings = settings_of(own)
    refuse_unknown(own, settings, _TRANSFORMER, settings)
    task = _task(own, settings, library)
    arguments = _arguments(own, settings)
    return Sentence(
        library,
        task,
        _prompt(path, overall, library),
        _size(path, overall),
        overall.get("activation_fn") if library == SCORES else None,
        arguments.get("model_max_length", settings.get("max_seq_length")),
        bool(settings.get("do_lower_case", False)),
    )


def _names() -> list[str]:
    return [f"sentence_{name}_config.json" for name in _FILES]


def _task(path: Path, settings: dict[str, Any], library: str) -> str:
    task = str(settings.get("transformer_task", ENCODER))
    if task not in _OUTPUTS or (task == CLASSIFIER and library != SCORES):
        raise refused(path, "transformer_task", task, f"a {library} is served with {ENCODER}" + _or(library))
    modalities = settings.get("modality_config", {"text": {"method": "forward", "method_output_name": _OUTPUTS[task]}})
    plain = [{"text": {"method": "forward", "method_output_name": name}} for name in (_OUTPUTS[task], [_OUTPUTS[task]])]
    if modalities not in plain:
        raise refused(path, "modality_config", modalities, f"text that becomes {_OUTPUTS[task]!r} is served, no other")
    output = settings.get("module_output_name")
    if output not in (None, "token_embeddings" if task == ENCODER else "scores"):
        raise refused(path, "module_output_name", output, "the transformer gives token_embeddings or scores")
    for key in ("processing_kwargs", "query_expansion"):
        if settings.get(key):
            raise refused(path, key, settings[key], "it changes the tokens of a text")
    return task


def _or(library: str) -> str:
    return f" or {CLASSIFIER}" if library == SCORES else ""


def _arguments(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Check what the folder passes on to transformers; return the tokenizer's arguments."""
    found: dict[str, Any] = {}
    for keys, known in (
        (("model_args", "model_kwargs"), _MODEL),
        (("config_args", "config_kwargs"), _HUB),
        (("tokenizer_args", "processor_kwargs"), _TOKENIZER),
    ):
        for key in keys:
            given = settings.get(key) or {}
            for name, value in given.items():
                if name not in known:
                    raise refused(path, f"{key}.{name}", value, "tailcut does not pass it on")
            found = dict(given) if known is _TOKENIZER and given else found
    return found


def _prompt(path: Path, overall: dict[str, Any], library: str) -> str:
    prompts = overall.get("prompts") or {}
    name = overall.get("default_prompt_name")
    if name is None:
        return ""
    known = {**({"query": "", "document": ""} if library == EMBEDS else {}), **prompts}
    if name not in known:
        raise refused(path, "default_prompt_name", name, f"the prompts are {', '.join(sorted(known)) or '(none)'}")
    return str(known[name] or "")


def _size(path: Path, overall: dict[str, Any]) -> int | None:
    size = overall.get("truncate_dim")
    if size is not None and (not isinstance(size, int) or size < 1):
        raise refused(path, "truncate_dim", size, "expected a number of at least 1")
    return size
