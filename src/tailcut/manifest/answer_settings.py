"""What of a manifest answers depend on, and how the manifest that a version was built with differs from another in it.

Files count elsewhere: those of the user's code and of ``model.files`` are hashed. Limits of values say which requests
are refused, and change no answer. Nor does where a server runs: the database's address, the folders of ``python_path``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tailcut.manifest.keys import keys_of, to_plain
from tailcut.manifest.schema import Deployment, FeatureGroup, Features, Field, Model, TensorSpec
from tailcut.manifest.schema.model import LIMITS
from tailcut.manifest.section import Section

_FORM = ("name", "datatype", "shape")
"""Of a tensor: these are compared with the tensors of a version's record, which every version has."""

_LONGEST = 80
"""Characters of a value in an error: a query may be long."""


def other_tensors(deployment: Deployment, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> str:
    """Say which tensors of a version are not those of the manifest; empty where all are."""
    model = deployment.model
    for kind, here, there in (("inputs", model.inputs, inputs), ("outputs", model.outputs, outputs)):
        if _forms(here) != _forms(there):
            return f"its {kind} are {_forms(there)}, the manifest's are {_forms(here)}"
    return ""


def other_settings(deployment: Deployment, built: Mapping[str, Any], *, live: bool) -> tuple[str, ...]:
    """Name the settings that answers depend on and that are not those of a version's build, with both values.

    Args:
        built: the manifest that the version was built with, as plain values; keys that tailcut did not have yet have
            their defaults; empty where the version has no record of it, and then nothing differs.
        live: whether the variant runs the user's own object, so that ``model.source`` counts.
    """
    if "model" not in built:
        return ()
    # As the registry keeps it: JSON has no NaN, which stands there as null.
    here = dict(_settings(msgspec.json.decode(msgspec.json.encode(to_plain(deployment))), live=live))
    there = dict(_settings(built, live=live))
    return tuple(
        f"{key} was {_shown(there.get(key))} and is {_shown(here.get(key))}"
        for key in dict.fromkeys([*there, *here])
        if there.get(key) != here.get(key)
    )


def _settings(plain: Mapping[str, Any], *, live: bool) -> Iterator[tuple[str, Any]]:
    model = _completed(Model, plain["model"])
    features = _completed(Features, plain.get("features", {}))
    for name in ("preprocess", "postprocess", *(["source"] if live else [])):
        yield f"model.{name}", model[name]
    for name in ("entity", "clock"):
        yield f"features.{name}", features[name]
    yield from _of_each("model.inputs", TensorSpec, model["inputs"], (*_FORM, *LIMITS))
    yield from _of_each("model.outputs", TensorSpec, model["outputs"], (*_FORM, *LIMITS))
    yield from _of_each("model.fields", Field, model["fields"], LIMITS)
    yield from _of_each("features.groups", FeatureGroup, features["groups"], ())


def _of_each(
    path: str, kind: type[Section], elements: Sequence[Mapping[str, Any]], skipped: Sequence[str]
) -> Iterator[tuple[str, Any]]:
    for element in elements:
        for key, value in _completed(kind, element).items():
            if key not in skipped:
                yield f"{path}.{element.get('name')}.{key}", value


def _completed(kind: type[Section], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that this tailcut knows, with the default of each that was not given."""
    return {name: given.get(name, to_plain(key.default)) for name, key in keys_of(kind).items()}


def _shown(value: Any) -> str:
    if value is None:
        return "not there"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _forms(tensors: Sequence[TensorSpec]) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(tensor.name, tensor.datatype, tuple(tensor.shape)) for tensor in tensors]
