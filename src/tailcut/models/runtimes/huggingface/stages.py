"""What follows the transformer in a sentence-transformers folder: modules.json and the settings of each module."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailcut.errors import ArtifactError
from tailcut.models.runtimes.huggingface.files import (
    EXPORT,
    IDENTITY,
    activation_of,
    read_json,
    refuse_unknown,
    refused,
    settings_of,
    shown,
)

TOKENS, VECTOR, SCORES = "token_embeddings", "sentence_embedding", "scores"
"""Features that modules hand on."""

POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Settings of sentence-transformers before 6, in the order in which the vectors are joined."""

_OURS = "sentence_transformers."
_ENTRY = ("idx", "name", "path", "type", "kwargs")
"""``kwargs`` names arguments that a call of ``encode`` may pass on to the module: a request has none."""

_DENSE = (
    *("in_features", "out_features", "bias", "activation_function"),
    *("module_input_name", "module_output_name", "use_residual"),
)


@dataclass(frozen=True)
class EncoderStage:
    """One module behind the transformer.

    Attributes:
        kind: "Pooling", "Dense", "Normalize" or "LayerNorm".
        folder: of its weights, where it has any.
        takes: feature that it reads.
        gives: feature that it writes.
        modes: of a Pooling, whose vectors are joined.
        include_prompt: of a Pooling: whether the tokens of the prompt are pooled, too.
        sizes: of a Dense, (in, out); of a LayerNorm, (size,).
        activation: of a Dense, a class of torch.nn.
        bias: of a Dense.
        residual: of a Dense: whether what it reads is added to what it gives.
    """

    kind: str
    folder: Path
    takes: str = VECTOR
    gives: str = VECTOR
    modes: tuple[str, ...] = ()
    include_prompt: bool = True
    sizes: tuple[int, ...] = ()
    activation: str = IDENTITY
    bias: bool = True
    residual: bool = False


@dataclass(frozen=True)
class Listed:
    """What modules.json lists.

    Attributes:
        transformer: folder of the transformer and its tokenizer.
        stages: what follows.
    """

    transformer: Path
    stages: tuple[EncoderStage, ...] = field(default=())


def listed(folder: Path) -> Listed | None:
    """Read modules.json and the settings of what it lists; None where there is no such file.

    Raises:
        ArtifactError: a module or a setting that is not supported.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return None
    entries = read_json(path)
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise ArtifactError(f"{path} lists no modules", hint="write it with SentenceTransformer.save")
    kinds = []
    for entry in entries:
        refuse_unknown(path, entry, _ENTRY, entry)
        kinds.append(_kind(path, entry))
    if kinds[0] != "Transformer" or "Transformer" in kinds[1:]:
        raise _unsupported(path, kinds, f"the first module must be a Transformer, but is {kinds[0]}")
    stages = []
    for kind, entry in zip(kinds[1:], entries[1:], strict=True):
        if kind != "Dropout":  # it does nothing outside of training
            stages.append(_stage(path, kind, folder / entry.get("path", ""), kinds))
    return Listed(folder / entries[0].get("path", ""), tuple(stages))


def check_order(path: Path, stages: tuple[EncoderStage, ...], first: str, last: str) -> None:
    """Check that every module finds what it reads, and that the last feature is made.

    Args:
        path: of modules.json.
        first: the feature that the transformer gives.
        last: the feature that is the answer.

    Raises:
        ArtifactError: it does not.
    """
    known = {first}
    for stage in stages:
        if stage.takes not in known:
            raise ArtifactError(
                f"{path}: {stage.kind} in {stage.folder.name} reads {stage.takes!r}, which no module before it gives",
                hint=f"correct the order in modules.json, {EXPORT}",
            )
        known.add(stage.gives)
    if last not in known:
        raise ArtifactError(
            f"{path}: no module gives {last!r}; there are {', '.join(sorted(known))}",
            hint=f"add a Pooling, {EXPORT}",
        )


def _kind(path: Path, entry: dict[str, Any]) -> str:
    name = str(entry.get("type", ""))
    if not name.startswith(_OURS):
        raise ArtifactError(
            f"{path} names the module {name!r}, which is not part of sentence-transformers",
            hint=f"tailcut does not run code from a folder; {EXPORT.removeprefix('or ')}",
        )
    return name.rpartition(".")[2]


def _unsupported(path: Path, kinds: list[str], why: str) -> ArtifactError:
    return ArtifactError(
        f"{path} names the modules {kinds}: {why}; known are Transformer, Pooling, Dense, Normalize, LayerNorm and "
        "Dropout",
        hint=EXPORT.removeprefix("or "),
    )


def _stage(path: Path, kind: str, folder: Path, kinds: list[str]) -> EncoderStage:
    config_path = folder / "config.json"
    config = settings_of(config_path)
    if kind == "Pooling":
        return _pooling(config_path, folder, config)
    if kind == "Dense":
        return _dense(config_path, folder, config)
    if kind == "Normalize":
        refuse_unknown(config_path, config, ("module_input_name", "module_output_name"), config)
        takes, gives = _names(config)
        return EncoderStage(kind, folder, takes, gives)
    if kind == "LayerNorm":
        refuse_unknown(config_path, config, ("dimension",), config)
        return EncoderStage(kind, folder, sizes=(_whole(config_path, config, "dimension"),))
    raise _unsupported(path, kinds, f"{kind} is not supported")


def _pooling(path: Path, folder: Path, config: dict[str, Any]) -> EncoderStage:
    known = ("embedding_dimension", "word_embedding_dimension", "pooling_mode", "include_prompt", *_FLAGS)
    refuse_unknown(path, config, known, config)
    named = config.get("pooling_mode")
    if named is None:
        modes = [mode for flag, mode in _FLAGS.items() if config.get(flag)] or ["mean"]
    else:
        modes = [named] if isinstance(named, str) else list(named)
    if not modes or not set(modes) <= set(POOLINGS):
        raise refused(path, "pooling_mode", named, f"known are {', '.join(POOLINGS)}")
    return EncoderStage(
        "Pooling", folder, TOKENS, VECTOR, modes=tuple(modes), include_prompt=bool(config.get("include_prompt", True))
    )


def _dense(path: Path, folder: Path, config: dict[str, Any]) -> EncoderStage:
    refuse_unknown(path, config, _DENSE, config)
    takes, gives = _names(config)
    function = config.get("activation_function", "torch.nn.Tanh")
    return EncoderStage(
        "Dense",
        folder,
        takes,
        gives,
        sizes=(_whole(path, config, "in_features"), _whole(path, config, "out_features")),
        activation=activation_of(path, "activation_function", function),
        bias=bool(config.get("bias", True)),
        residual=bool(config.get("use_residual", False)),
    )


def _names(config: dict[str, Any]) -> tuple[str, str]:
    takes = str(config.get("module_input_name") or VECTOR)
    return takes, str(config.get("module_output_name") or takes)


def _whole(path: Path, config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise ArtifactError(f"{path}: {key!r} is {shown(value)}, expected a size", hint="save the model again")
    return value
