"""Names that cannot be told apart, or that have another meaning where they would be used. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from unicodedata import category

from tailcut.errors import ManifestError
from tailcut.manifest.keys import dotted
from tailcut.manifest.schema import Deployment

LONGEST_NAME = 200
"""Of a deployment: folders of the registry are called like it, and file systems end at 255 bytes."""

_TAKEN = frozenset({"stats"})
"""Deployments of these names would have a path of the protocol: /v2/models/stats has the statistics of all models."""


def name_problems(deployment: Deployment) -> Iterator[ManifestError]:
    """Yield names that cannot be used."""
    name = deployment.name
    if name in _TAKEN:
        yield ManifestError(
            f'name: "{name}" is reserved: /v2/models/{name} is a path of the protocol', hint=f'name it "{name}-model"'
        )
    if len(name) > LONGEST_NAME:
        yield ManifestError(
            f"name: {len(name)} characters, the limit is {LONGEST_NAME}",
            hint="choose a shorter name; folders and paths contain it",
        )
    for path, one in _names(deployment):
        if not one:
            yield ManifestError(f"{path}: a name is empty", hint="give it a name")
        elif controls := [character for character in one if category(character) == "Cc"]:
            yield ManifestError(
                f"{path}: the name {one!r} holds the control character {controls[0]!r}",
                hint="names may hold letters, digits, spaces and punctuation of any script",
            )
    outputs = {tensor.name for tensor in deployment.model.outputs}
    for tensor in deployment.model.inputs:
        if tensor.name in outputs:
            yield ManifestError(
                f"{dotted(('model', 'outputs', tensor.name))}: an input has the same name; an ONNX file cannot have "
                "both",
                hint=f'rename the output, for example "{tensor.name}_out": a torch module or a table gives its '
                "outputs in the manifest's order; in an .onnx file rename it",
            )


def _names(deployment: Deployment) -> Iterator[tuple[str, str]]:
    """Yield the names that anything may be called, with where each stands."""
    model, features = deployment.model, deployment.features
    for path, tensors in (("model.inputs", model.inputs), ("model.outputs", model.outputs)):
        for tensor in tensors:
            yield path, tensor.name
            yield from ((f"{path}.{tensor.name}.columns", column) for column in tensor.columns)
    yield from (("model.fields", field.name) for field in model.fields)
    yield from (("features.entity", field) for field in features.entity)
    for group in features.groups:
        for key, columns in (("key", group.key), ("columns", group.columns)):
            yield from ((f"features.groups.{group.name}.{key}", column) for column in columns)
