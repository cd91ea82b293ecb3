"""Calls of a torch module with the manifest's inputs: by name where forward has those names, else by position."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Any

from tailcut.errors import ArtifactError

_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def in_order(module: Any, names: Sequence[str], *, compiled: Any = None) -> Callable[..., Any]:
    """Return what calls a module with tensors in the order of ``names``; the module itself if forward has that order.

    Args:
        module: a torch.nn.Module.
        names: of ``model.inputs``, in their order.
        compiled: the module as torch.compile gives it, which is called then.

    Raises:
        ArtifactError: forward cannot be called with these inputs, or one of them has the name of another argument.
    """
    called: Callable[..., Any] = module if compiled is None else compiled
    try:
        parameters = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        return called  # code without a signature
    known = [each.name for each in parameters if each.kind in _BY_NAME]
    any_name = {each.kind for each in parameters} & {Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL}
    if not set(names) <= set(known) and not (any_name == {Parameter.VAR_KEYWORD} and not _lacking(parameters, names)):
        _check_places(parameters, names)
        return called
    if missing := _lacking(parameters, names):
        raise _refused(parameters, names, f"{_listed(missing)} of forward has no default, and no input has this name")
    if [each.name for each in parameters if each.kind in _BY_POSITION][: len(names)] == list(names):
        return called
    return lambda *given: called(**dict(zip(names, given, strict=True)))


def _lacking(parameters: Sequence[Parameter], names: Sequence[str]) -> list[str]:
    """Return the arguments without a default that no name gives."""
    single = (*_BY_POSITION, Parameter.KEYWORD_ONLY)
    return [
        each.name
        for each in parameters
        if each.kind in single and each.default is Parameter.empty and each.name not in names
    ]


def _check_places(parameters: Sequence[Parameter], names: Sequence[str]) -> None:
    """Refuse inputs that forward cannot take by their positions, or whose names say that another position is meant."""
    places = [each for each in parameters if each.kind in _BY_POSITION]
    own = [each.name for each in parameters if each.kind in (*_BY_POSITION, Parameter.KEYWORD_ONLY)]
    for place, name in enumerate(names):
        there = places[place].name if place < len(places) else "none"
        if name in own and there != name:
            raise _refused(
                parameters, names, f"input {name!r} is passed by position, but the argument there is {there}"
            )
    if set(own) & set(names):
        # Beside inputs that have arguments' names, its position does not tell which of the optional ones it means.
        for argument, name in zip(places, names, strict=False):
            if argument.name != name and argument.default is not Parameter.empty:
                said = f"input {name!r} is passed by position, but the argument there, {argument.name}, has a default"
                raise _refused(parameters, names, said)
    if len(names) > len(places) and all(each.kind is not Parameter.VAR_POSITIONAL for each in parameters):
        raise _refused(parameters, names, f"forward takes {len(places)} arguments by position, not {len(names)}")
    given = {each.name for each in places[: len(names)]}
    if missing := _lacking(parameters, list(given)):
        raise _refused(parameters, names, f"{_listed(missing)} gets no input and has no default")


def _refused(parameters: Sequence[Parameter], names: Sequence[str], why: str) -> ArtifactError:
    arguments = ", ".join(str(each.replace(annotation=Parameter.empty)) for each in parameters)
    return ArtifactError(
        f"forward({arguments}) cannot be called with model.inputs {_listed(names)}: {why}",
        hint="name all model.inputs like the arguments of forward; their order then does not matter",
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
