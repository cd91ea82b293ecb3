"""Limits that a model proves, as ``init`` writes them into a manifest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tailcut.common.bounds import Bound
from tailcut.manifest.keys import to_toml
from tailcut.manifest.template import Filled, ListElement

if TYPE_CHECKING:
    from tailcut.builder.describing import Described
    from tailcut.manifest import TensorSpec

_KEYS = ("min", "max", "values", "max_length")
_MOST_PLACES = 8


def filled(model: Described, source: str, holdout: str) -> Filled:
    """Return the keys of a manifest that follow from a described model.

    Args:
        model: its tensors and limits.
        source: as ``model.source`` has it.
        holdout: as ``holdout.source`` has it; empty: none.
    """
    inputs = [_block(tensor, model.bounds) for tensor in model.inputs]
    outputs = [_block(tensor, ()) for tensor in model.outputs]
    found: dict[str, Any] = {"model.source": source, "model.inputs": inputs, "model.outputs": outputs}
    return found | ({"holdout.source": holdout} if holdout else {})


def keys_of(bound: Bound) -> dict[str, Any]:
    """Return a bound's limits by the manifest's keys."""
    found = {key: getattr(bound, key) for key in _KEYS}
    return {key: value for key, value in found.items() if value is not None}


def text(bound: Bound) -> str:
    """Return a bound as a person reads it, with what proves it."""
    limits = ", ".join(f"{key} = {to_toml(value)}" for key, value in keys_of(bound).items())
    return f"{limits} ({bound.why})"


def where(bound: Bound) -> str:
    """Return the columns of a bound for people; empty where it is about all of them."""
    places = [str(place) for place in bound.columns]
    more = ", ..." if len(places) > _MOST_PLACES else ""
    named = f"column {places[0]}" if len(places) == 1 else f"columns {', '.join(places[:_MOST_PLACES])}{more}"
    return named if places else ""


def _block(tensor: TensorSpec, bounds: Sequence[Bound]) -> ListElement:
    own = [bound for bound in bounds if bound.input == tensor.name]
    values: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
    values |= {"allow_nan": True} if tensor.allow_nan else {}
    for bound in own:
        values |= keys_of(bound) if not bound.columns else {}
    return ListElement(values, list(_comments(own)))


def _comments(bounds: Sequence[Bound]) -> Iterator[str]:
    for bound in bounds:
        if bound.columns:
            # A key of a tensor is about all of its columns.
            yield f"{where(bound)}: {text(bound)}; found by the build, enforced in serving"
        else:
            yield f"limits below: {bound.why}"
