"""A folder as one torch module: the transformer and all that follows it, down to the answer.

Read are config.json and *.safetensors. No code of a folder is run (trust_remote_code is off) and no pickle is loaded.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailcut.errors import ArtifactError
from tailcut.models.runtimes.checks import first_line, load_library
from tailcut.models.runtimes.huggingface import tokenizer
from tailcut.models.runtimes.huggingface.folder import PIPELINE, Folder, read
from tailcut.models.runtimes.huggingface.stages import SCORES, TOKENS, VECTOR, EncoderStage

if TYPE_CHECKING:
    import torch

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
MASK = "attention_mask"


def module(folder: Path, inputs: tuple[str, ...], *, rank: int = 1, weights: bool = False) -> torch.nn.Module:
    """Build the module of a folder.

    Args:
        folder: with config.json, its own or that of the first of modules.json.
        inputs: names of the module's inputs in the manifest's order, of INPUTS.
        rank: dimensions of the output, as the manifest declares it: a single score is (rows,) or (rows, 1); of two
            classes a pipeline's probabilities are (rows,), the second's, or (rows, 2).
        weights: whether to load the folder's weights; else they are random until a state dict is put in.

    Returns:
        a module that gives (rows, size) embeddings or a classifier's scores.

    Raises:
        ArtifactError: the folder cannot be read, says something that is not supported, or the inputs are others.
        MissingExtra: transformers is not installed.
    """
    if not {"input_ids", MASK} <= set(inputs) <= set(INPUTS):
        raise ArtifactError(
            f"model.inputs are {list(inputs)}; a Hugging Face folder takes input_ids, attention_mask and, if the model "
            "has it, token_type_ids",
            hint='use these names in the manifest, each with datatype "INT64" and shape [-1, -1]',
        )
    found = read(folder)
    model = _load(found, weights=weights)
    skipped = any(stage.kind == "Pooling" and not stage.include_prompt for stage in found.stages)
    prompt = tokenizer.prompt_length(found) if skipped and found.texts.prompt else 0
    parts = [_part(stage, prompt, weights=weights) for stage in found.stages]
    return _joined(model, parts, found, inputs, rank)


def _joined(model: Any, parts: list[Any], folder: Folder, names: tuple[str, ...], rank: int) -> torch.nn.Module:
    import torch

    from tailcut.models.runtimes.huggingface import pooling

    class Whole(torch.nn.Module):
        """Tokens in the manifest's order -> the answer."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.stages = torch.nn.ModuleList(parts)
            self.activation = pooling.activation(folder.head.activation) if folder.head else None

        def forward(self, first: torch.Tensor, second: torch.Tensor, third: torch.Tensor | None = None) -> torch.Tensor:
            given: dict[str, Any] = dict(zip(names, (first, second, third), strict=False))
            found = self.model(**given)
            features = {MASK: given[MASK]}
            features |= {SCORES: found.logits} if folder.classifies else {TOKENS: found.last_hidden_state}
            for stage in self.stages:
                features = stage(features)
            if self.activation is not None:
                return _shaped(self.activation(features[SCORES]), folder, rank)
            vectors: torch.Tensor = features[VECTOR]
            return vectors if folder.truncate_dim is None else vectors[:, : folder.truncate_dim]

    return Whole().eval()


def _shaped(scores: torch.Tensor, folder: Folder, rank: int) -> torch.Tensor:
    """Give (rows, columns) scores the dimensions that the manifest declares, where they can have them."""
    if rank != 1 or folder.head is None:
        return scores
    if folder.head.columns == 1:
        return scores[:, 0]
    shares = folder.library == PIPELINE and folder.head.columns == 2 and folder.head.activation == "Softmax"
    return scores[:, 1] if shares else scores


def _load(folder: Folder, *, weights: bool) -> Any:
    needs = "a Hugging Face folder needs the transformers package"
    transformers = load_library("transformers", needs)
    kind: Any = transformers.AutoModelForSequenceClassification if folder.classifies else transformers.AutoModel
    # Plain attention: the exporters and quantizers know its operators.
    options: dict[str, Any] = {"attn_implementation": "eager", "trust_remote_code": False}
    path, missing = str(folder.transformer), []
    try:
        with quiet(transformers):
            config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
            if folder.classifies and folder.head is not None:
                config.num_labels = folder.head.columns
            if weights:
                options |= {"local_files_only": True, "use_safetensors": True, "dtype": "float32"}
                model, info = kind.from_pretrained(path, config=config, output_loading_info=True, **options)
                missing = [name for name in info["missing_keys"] if "pooler" not in name or folder.classifies]
            else:
                model = kind.from_config(config, **options)
    except Exception as error:  # transformers raises many kinds
        raise ArtifactError(
            f"transformers {transformers.__version__} cannot load {path}: {first_line(error)}",
            hint="the folder needs config.json and weights in safetensors; write both with save_pretrained",
        ) from error
    if missing:
        raise ArtifactError(
            f"{path} has no weights for {', '.join(sorted(missing)[:3])} ({len(missing)} tensors); they would be "
            "random",
            hint="save the trained model, with its head, by save_pretrained",
        )
    return model.eval()


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Keep transformers from warning and drawing progress bars inside."""
    logging: Any = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _part(stage: EncoderStage, prompt: int, *, weights: bool) -> Any:
    """Make the torch module of a stage, with its weights where they are wanted."""
    from tailcut.models.runtimes.huggingface import pooling

    made = pooling.make(stage, prompt)
    if not weights or not list(made.state_dict()):
        return made
    from safetensors.torch import load_file

    path = stage.folder / "model.safetensors"
    try:
        made.load_state_dict(load_file(path), strict=True)
    except Exception as error:  # safetensors and torch raise their own
        raise ArtifactError(
            f"cannot load the weights of {stage.kind} from {path}: {first_line(error)}",
            hint="save the model again with safe_serialization=True; pytorch_model.bin is a pickle and is not loaded",
        ) from error
    return made.float()
