"""What a folder says: its transformer, what follows it, its classifier's end, and how texts become tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailcut.errors import ArtifactError
from tailcut.models.runtimes.huggingface import stages
from tailcut.models.runtimes.huggingface.files import (
    EXPORT,
    IDENTITY,
    SIGMOID,
    activation_of,
    read_object,
    refuse_unknown,
    refused,
    settings_of,
)
from tailcut.models.runtimes.huggingface.stages import EncoderStage

PIPELINE = "text-classification"
"""transformers' pipeline of a classifier's folder without modules.json."""

_CLASSIFIER = "ForSequenceClassification"
_HEADLESS = ("Model", "ForMaskedLM", "ForPreTraining")
"""Endings of architectures whose encoder is served; a head over the vocabulary is left off, as the library does."""
_DECODERS = ("LMHeadModel", "DoubleHeadsModel")

_SIDES = ("right", "left")

_KNOWN_OF_TOKENIZERS = frozenset(
    (
        *("model_max_length", "max_len", "truncation_side", "split_special_tokens"),
        # transformers reads these; what comes of them is compared, token by token, by the build.
        *("tokenizer_class", "backend", "name_or_path", "tokenizer_file", "vocab_file", "merges_file", "is_local"),
        *("special_tokens_map_file", "local_files_only", "use_fast", "legacy", "from_slow", "processor_class"),
        *("added_tokens_decoder", "add_prefix_space", "add_bos_token", "add_eos_token", "trim_offsets", "errors"),
        *("do_lower_case", "do_basic_tokenize", "never_split", "strip_accents", "tokenize_chinese_chars", "unk_id"),
        *("wordpieces_prefix", "clean_up_tokenization_spaces", "sp_model_kwargs", "keep_accents", "remove_space"),
        *("do_split_by_punct", "split_by_punct", "vocab_type", "model_input_names", "spaces_between_special_tokens"),
        # Padding and chat change no answer of a text alone.
        *("padding_side", "padding", "pad_to_multiple_of", "pad_token_type_id", "max_length", "stride"),
        *("truncation", "truncation_strategy", "chat_template", "extra_ids"),
    )
)


@dataclass(frozen=True)
class Texts:
    """How texts become tokens.

    Attributes:
        max_tokens: longest input, special tokens included; None where no file names a limit.
        pad_id: id of the padding token.
        prompt: put before every text; of a pair, before the first.
        lower_case: whether texts are lower-cased before anything else.
        side: end of a text that is cut off: "right" or "left"; empty: as tokenizer.json says.
        split_special: whether special tokens in a text are taken as text.
        pairs: whether a row may have a second text.
        needs_pair: whether it must.
    """

    max_tokens: int | None
    pad_id: int = 0
    prompt: str = ""
    lower_case: bool = False
    side: str = ""
    split_special: bool = False
    pairs: bool = False
    needs_pair: bool = False


@dataclass(frozen=True)
class Folder:
    """A folder whose whole configuration is honoured.

    Attributes:
        path: of the folder.
        transformer: of config.json and tokenizer.json.
        library: what its answers are compared with: "SentenceTransformer", "CrossEncoder" or PIPELINE.
        classifies: whether the transformer is loaded with a sequence classifier's head.
        stages: what follows the transformer.
        head: the end of a classifier; None of an embedding.
        truncate_dim: how many numbers of a vector are kept; None: all.
        texts: how texts become tokens.
        warnings: settings of the tokenizer that are not known.
    """

    path: Path
    transformer: Path
    library: str
    classifies: bool
    stages: tuple[EncoderStage, ...]
    head: Head | None
    truncate_dim: int | None
    texts: Texts
    warnings: tuple[str, ...] = ()


def read(path: Path) -> Folder:
    """Read the configuration of a folder.

    Raises:
        ArtifactError: no config.json, no encoder, or a setting that is not supported or not known.
    """
    modules = stages.listed(path)
    transformer = modules.transformer if modules else path
    config_path = transformer / "config.json"
    config = read_object(config_path)
    architecture = _check(path, transformer, config)
    if modules:
        settings = read_sentence(path, transformer)
        found = modules.stages
    else:
        settings = _plain(config_path, config, architecture)
        mean = EncoderStage("Pooling", path, stages.TOKENS, stages.VECTOR, modes=("mean",))
        found = () if settings.task == CLASSIFIER else (mean,)
    classifies = settings.task == CLASSIFIER
    embeds = settings.library == EMBEDS
    answer = stages.VECTOR if embeds else stages.SCORES
    stages.check_order(path / "modules.json", found, stages.SCORES if classifies else stages.TOKENS, answer)
    texts, warnings = _texts(transformer, config, settings)
    return Folder(
        path,
        transformer,
        settings.library,
        classifies,
        found,
        None if embeds else _head(config_path, config, settings, found),
        settings.truncate_dim,
        texts,
        warnings,
    )


def _plain(path: Path, config: dict[str, Any], architecture: str) -> Sentence:
    """Return the settings of a folder without modules.json: a classifier, or an encoder whose tokens are averaged."""
    if architecture.endswith(_CLASSIFIER):
        # What a CrossEncoder leaves in config.json.
        library = SCORES if _OLD_ACTIVATION in config or "sentence_transformers" in config else PIPELINE
        return Sentence(library, CLASSIFIER)
    if architecture and (architecture.endswith(_DECODERS) or not architecture.endswith(_HEADLESS)):
        raise ArtifactError(
            f"{path} names the architecture {architecture}, which tailcut does not serve from a folder; supported are "
            f"encoders (*{', *'.join(_HEADLESS)}) and *{_CLASSIFIER}",
            hint=EXPORT.removeprefix("or "),
        )
    return Sentence(EMBEDS)


def _head(path: Path, config: dict[str, Any], settings: Sentence, found: tuple[EncoderStage, ...]) -> Head:
    if settings.library == PIPELINE:
        return of_pipeline(path, config)
    dense = [stage.sizes[1] for stage in found if stage.kind == "Dense" and stage.gives == stages.SCORES]
    columns = dense[-1] if dense else columns_of(config)
    return of_cross_encoder(path, config, columns=columns, saved=settings.activation)


def _check(folder: Path, transformer: Path, config: dict[str, Any]) -> str:
    """Refuse models that are no encoders of text as they lie there; return the architecture."""
    path = transformer / "config.json"
    architecture = str((config.get("architectures") or [""])[0])
    if config.get("is_decoder") or config.get("is_encoder_decoder") or architecture.endswith("ForCausalLM"):
        raise ArtifactError(
            f"{folder} holds a {architecture or config.get('model_type')}, which is not an encoder",
            hint="tailcut serves encoders from a folder: embeddings and sequence classifiers",
        )
    if config.get("auto_map"):
        raise refused(
            path,
            "auto_map",
            config["auto_map"],
            "the model has its own code, and tailcut does not run code from a folder",
            hint="remove auto_map if the model is one of transformers' own, or export it to ONNX",
        )
    if config.get("quantization_config"):
        raise refused(path, "quantization_config", config["quantization_config"], "the weights must not be quantised")
    for key in ("vision_config", "audio_config", "text_config"):
        if key in config:
            raise refused(path, key, config[key], "models for images or sound are not served from a folder")
    for adapter in (transformer / "adapter_config.json", folder / "adapter_config.json"):
        if adapter.is_file():
            raise ArtifactError(
                f"{adapter} shows that this is the folder of an adapter, not of a model",
                hint="merge the adapter with merge_and_unload(), then save the model with save_pretrained",
            )
    return architecture


def _texts(transformer: Path, config: dict[str, Any], settings: Sentence) -> tuple[Texts, tuple[str, ...]]:
    path = transformer / "tokenizer_config.json"
    own = settings_of(path)
    if own.get("auto_map"):
        raise refused(path, "auto_map", own["auto_map"], "tailcut does not run code from a folder")
    side = own.get("truncation_side", "")
    if side not in ("", *_SIDES):
        raise refused(path, "truncation_side", side, f"known are {', '.join(_SIDES)}")
    unknown = [key for key in own if key not in _KNOWN_OF_TOKENIZERS and not key.endswith(("_token", "_tokens"))]
    warnings = tuple(
        f"{path.name} sets {key!r}, which tailcut does not know; on the texts tried, tokens equal those of transformers"
        for key in unknown
    )
    embeds = settings.library == EMBEDS
    texts = Texts(
        max_tokens=longest(settings.max_tokens, own, config),
        pad_id=pad_id(config),
        prompt=settings.prompt,
        lower_case=settings.lower_case,
        side=side,
        split_special=bool(own.get("split_special_tokens", False)),
        pairs=not embeds,
        needs_pair=settings.library == SCORES,
    )
    return texts, warnings


# -- The longest input, in tokens --------------------------------------------------------------------------------------


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


# -- The end of a classifier -------------------------------------------------------------------------------------------


_PROBLEMS = ("regression", "single_label_classification", "multi_label_classification")
_SECTION = ("activation_fn", "version")
_OLD_ACTIVATION = "sbert_ce_default_activation_function"


@dataclass(frozen=True)
class Head:
    """The end of a classifier.

    Attributes:
        columns: number of scores per row.
        activation: class of torch.nn that the scores go through.
        labels: name of each score, of id2label; empty where the folder has the default names only.
    """

    columns: int
    activation: str
    labels: tuple[str, ...] = ()


def of_pipeline(path: Path, config: dict[str, Any]) -> Head:
    """Return the head as transformers' pipeline "text-classification" applies it.

    Args:
        path: of config.json.

    Raises:
        ArtifactError: a setting that is not supported.
    """
    columns, problem = columns_of(config), config.get("problem_type")
    if problem not in (None, *_PROBLEMS):
        raise refused(path, "problem_type", problem, f"known are {', '.join(_PROBLEMS)}")
    if problem == "regression":
        activation = IDENTITY
    elif problem == "multi_label_classification" or columns == 1:
        activation = SIGMOID
    else:
        activation = "Softmax"
    function = config.get("function_to_apply")
    applied = "none" if activation == IDENTITY else activation.lower()
    if function is not None and str(function).lower() != applied:
        raise refused(
            path,
            "function_to_apply",
            function,
            f"transformers does not read it here; by problem_type and the number of labels it applies {applied!r}",
            hint="set problem_type in config.json, or remove function_to_apply",
        )
    return Head(columns, activation, labels_of(config))


def of_cross_encoder(path: Path, config: dict[str, Any], *, columns: int, saved: Any = None) -> Head:
    """Return the head as a CrossEncoder applies it: a sigmoid to a single score and nothing to several by default.

    Args:
        path: of config.json.
        columns: number of scores per row.
        saved: ``activation_fn`` of config_sentence_transformers.json, which goes first.

    Raises:
        ArtifactError: an activation function that is no class of torch.nn, or an unknown key.
    """
    section = config.get("sentence_transformers") or {}
    refuse_unknown(path, section, _SECTION, section)
    for key, value in (
        ("activation_fn", saved),
        ("sentence_transformers.activation_fn", section.get("activation_fn")),
        (_OLD_ACTIVATION, config.get(_OLD_ACTIVATION)),
    ):
        if value is not None:
            return Head(columns, activation_of(path, key, value), labels_of(config))
    return Head(columns, SIGMOID if columns == 1 else IDENTITY, labels_of(config))


def columns_of(config: dict[str, Any]) -> int:
    """Return how many scores a classifier gives, by config.json."""
    labels = config.get("id2label")
    return len(labels) if labels else int(config.get("num_labels") or 2)


def labels_of(config: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the scores in their order; empty where they are transformers' own (LABEL_0, ...)."""
    named = {int(place): str(name) for place, name in (config.get("id2label") or {}).items()}
    names = tuple(named.get(place, f"LABEL_{place}") for place in range(len(named)))
    return names if any(name != f"LABEL_{place}" for place, name in enumerate(names)) else ()


# -- Sentence encoders -------------------------------------------------------------------------------------------------


# The settings of a sentence-transformers folder: config_sentence_transformers.json and sentence_bert_config.json.

EMBEDS, SCORES = "SentenceTransformer", "CrossEncoder"
ENCODER, CLASSIFIER = "feature-extraction", "sequence-classification"

_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""The library takes the first that is there."""

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


def read_sentence(folder: Path, transformer: Path) -> Sentence:
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
    own = next((each for each in map(transformer.joinpath, _FILES) if each.is_file()), transformer / _FILES[0])
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


def _task(path: Path, settings: dict[str, Any], library: str) -> str:
    task = str(settings.get("transformer_task", ENCODER))
    if task not in _OUTPUTS or (task == CLASSIFIER and library != SCORES):
        served = f"{ENCODER} or {CLASSIFIER}" if library == SCORES else ENCODER
        raise refused(path, "transformer_task", task, f"a {library} is served with {served}")
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
