"""The end of a classifier: how many scores it gives, which function they go through, and what they are called."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailcut.models.runtimes.huggingface import activations
from tailcut.models.runtimes.huggingface.files import refuse_unknown, refused

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


def is_cross_encoder(config: dict[str, Any]) -> bool:
    """Tell whether a folder without modules.json was saved by a CrossEncoder, by what that leaves in config.json."""
    return _OLD_ACTIVATION in config or "sentence_transformers" in config


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
        activation = activations.IDENTITY
    elif problem == "multi_label_classification" or columns == 1:
        activation = activations.SIGMOID
    else:
        activation = "Softmax"
    function = config.get("function_to_apply")
    applied = "none" if activation == activations.IDENTITY else activation.lower()
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
            return Head(columns, activations.named(path, key, value), labels_of(config))
    return Head(columns, activations.SIGMOID if columns == 1 else activations.IDENTITY, labels_of(config))


def columns_of(config: dict[str, Any]) -> int:
    """Return how many scores a classifier gives, by config.json."""
    labels = config.get("id2label")
    return len(labels) if labels else int(config.get("num_labels") or 2)


def labels_of(config: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the scores in their order; empty where they are transformers' own (LABEL_0, ...)."""
    named = {int(place): str(name) for place, name in (config.get("id2label") or {}).items()}
    names = tuple(named.get(place, f"LABEL_{place}") for place in range(len(named)))
    return names if any(name != f"LABEL_{place}" for place, name in enumerate(names)) else ()
