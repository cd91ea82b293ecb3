"""A Hugging Face folder as a torch module: an encoder with pooling, or a sequence classifier with its probabilities.

Read are config.json, *.safetensors and, of sentence-transformers folders, modules.json and the pooling's config.json.
No code of a folder is run (trust_remote_code is off) and no pickle is loaded.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailcut.errors import ArtifactError, MissingExtra

if TYPE_CHECKING:
    import torch

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
POOLINGS = ("mean", "cls", "max", "mean_sqrt_len")
_TINY = 1e-9


@dataclass(frozen=True)
class Description:
    """What a folder says of its model.

    Attributes:
        folder: of config.json.
        classifies: whether it ends in a sequence classifier; else it gives an embedding.
        pooling: of POOLINGS; tokens -> one vector.
        normalise: whether vectors get length 1.
    """

    folder: Path
    classifies: bool
    pooling: str
    normalise: bool


def describe(folder: Path) -> Description:
    """Read what a folder holds.

    Raises:
        ArtifactError: no config.json, no encoder, or modules that are not known.
    """
    modules = _modules(folder)
    config_folder = folder / modules[0]["path"] if modules else folder
    config = _json(config_folder / "config.json")
    architecture = str((config.get("architectures") or [""])[0])
    if config.get("is_decoder") or config.get("is_encoder_decoder") or architecture.endswith("ForCausalLM"):
        raise ArtifactError(
            f"{folder} holds a {architecture or config.get('model_type')}, which is no encoder",
            hint="encoders are served from a folder: embeddings and sequence classifiers",
        )
    pooling, normalise = _pooling(folder, modules) if modules else ("mean", True)
    return Description(config_folder, architecture.endswith("ForSequenceClassification"), pooling, normalise)


def module(folder: Path, inputs: tuple[str, ...], *, weights: bool = False) -> torch.nn.Module:
    """Build the module of a folder.

    Args:
        folder: with config.json.
        inputs: names of the module's inputs in the manifest's order, of INPUTS.
        weights: whether to load the folder's weights; else they are random until a state dict is put in.

    Returns:
        a module that gives (rows, size) embeddings; probabilities (rows, classes), of two classes the second's
        (rows,), or (rows,) of a regression.

    Raises:
        ArtifactError: the folder cannot be read, or the inputs are others.
        MissingExtra: transformers is not installed.
    """
    if not {"input_ids", "attention_mask"} <= set(inputs) <= set(INPUTS):
        raise ArtifactError(
            f"model.inputs are {list(inputs)}; a Hugging Face folder takes input_ids, attention_mask and, where the "
            "model knows it, token_type_ids",
            hint='name them so in the manifest, each datatype "INT64" and shape [-1, -1]',
        )
    description = describe(folder)
    model = _load(description, weights=weights)
    return _wrap(model, inputs, description)


def _load(description: Description, *, weights: bool) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra(
            f"a Hugging Face folder needs the transformers package: {error}", hint="pip install 'tailcut[text-build]'"
        ) from error
    kind: Any = transformers.AutoModelForSequenceClassification if description.classifies else transformers.AutoModel
    # Plain attention: the exporters and quantizers know its operators.
    options = {"attn_implementation": "eager", "trust_remote_code": False}
    logging: Any = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if weights:
                model = kind.from_pretrained(
                    str(description.folder), local_files_only=True, use_safetensors=True, dtype="float32", **options
                )
            else:
                config = transformers.AutoConfig.from_pretrained(str(description.folder), local_files_only=True)
                model = kind.from_config(config, **options)
    except Exception as error:  # transformers raises many kinds
        raise ArtifactError(
            f"transformers {transformers.__version__} cannot load {description.folder}: "
            f"{str(error).strip().partition(chr(10))[0]}",
            hint="the folder needs config.json and weights in safetensors (save_pretrained writes both)",
        ) from error
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
    return model.eval()


def _wrap(model: Any, names: tuple[str, ...], description: Description) -> torch.nn.Module:
    import torch

    class Encoder(torch.nn.Module):
        """Tokens in the manifest's order -> the answer."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, first: torch.Tensor, second: torch.Tensor, third: torch.Tensor | None = None) -> torch.Tensor:
            given = dict(zip(names, (first, second, third), strict=False))
            found = self.model(**given)
            if description.classifies:
                return _probabilities(found.logits, self.model.config)
            vectors = _pool(found.last_hidden_state, given["attention_mask"], description.pooling)
            return torch.nn.functional.normalize(vectors, p=2.0, dim=1) if description.normalise else vectors

    return Encoder().eval()


def _probabilities(logits: torch.Tensor, config: Any) -> torch.Tensor:
    if config.num_labels == 1:
        return logits[:, 0]
    if getattr(config, "problem_type", None) == "multi_label_classification":
        return logits.sigmoid()
    shares = logits.softmax(dim=-1)
    return shares[:, 1] if config.num_labels == 2 else shares


def _pool(tokens: torch.Tensor, mask: Any, pooling: str) -> torch.Tensor:
    """Pool (rows, tokens, size) to (rows, size), padding left out."""
    if pooling == "cls":
        return tokens[:, 0]
    wide = mask.unsqueeze(-1).to(tokens.dtype)
    if pooling == "max":
        found: torch.Tensor = (tokens + (wide - 1.0) / _TINY).max(dim=1).values
        return found
    counts = wide.sum(dim=1).clamp(min=_TINY)
    mean: torch.Tensor = (tokens * wide).sum(dim=1) / (counts.sqrt() if pooling == "mean_sqrt_len" else counts)
    return mean


def _modules(folder: Path) -> list[dict[str, Any]]:
    """Modules of a sentence-transformers folder; none where it is a plain one."""
    path = folder / "modules.json"
    if not path.is_file():
        return []
    modules = json.loads(path.read_text(encoding="utf-8"))
    kinds = [str(each["type"]).rpartition(".")[2] for each in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        raise ArtifactError(
            f"{path} names the modules {kinds}; known are Transformer, Pooling and Normalize, in that order",
            hint="export the model to ONNX yourself and set model.source to the .onnx file",
        )
    return list(modules)


def _pooling(folder: Path, modules: list[dict[str, Any]]) -> tuple[str, bool]:
    config = _json(folder / modules[1]["path"] / "config.json")
    # Of sentence-transformers before 6 one flag per mode, since then one name.
    flags = {
        "cls": "pooling_mode_cls_token",
        "max": "pooling_mode_max_tokens",
        "mean": "pooling_mode_mean_tokens",
        "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
    }
    named = config.get("pooling_mode")
    modes = [named] if named else [mode for mode, flag in flags.items() if config.get(flag)]
    others = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    if len(modes) != 1 or modes[0] not in POOLINGS or (not named and len(others) != 1):
        raise ArtifactError(
            f"pooling of {folder} is {modes or others}; known is one of {', '.join(POOLINGS)}",
            hint="export the model to ONNX yourself and set model.source to the .onnx file",
        )
    return str(modes[0]), len(modules) > 2


def _json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"cannot read {path}: {error}", hint="model.source must be a folder that save_pretrained has written"
        ) from error
    return found
