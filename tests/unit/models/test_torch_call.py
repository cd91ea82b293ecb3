"""Inputs reach a module's forward by name where it has those names, else by position, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tailcut.errors import ArtifactError
from tailcut.models.runtimes.torch_call import in_order


class Module:
    """What torch.nn.Module is to the caller: it is called, and has a forward."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward = forward

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.forward(*given, **named)


def called(forward: Callable[..., Any], names: str) -> Any:
    """What forward answers where each input has its own name as its value."""
    inputs = names.split()
    return in_order(Module(forward), inputs)(*inputs)


@pytest.mark.parametrize(
    ("forward", "names", "answer"),
    [
        (lambda a, b: (a, b), "a b", ("a", "b")),
        (lambda a, b: (a, b), "b a", ("a", "b")),
        (lambda a, b: (a, b), "x y", ("x", "y")),
        (lambda a, scale=2, b=None: (a, scale, b), "a b", ("a", 2, "b")),
        (lambda a, scale=2: (a, scale), "a", ("a", 2)),
        (lambda a, scale=2: (a, scale), "x", ("x", 2)),
        (lambda a, scale=2: (a, scale), "x y", ("x", "y")),
        (lambda a, b, mask=None: (a, b, mask), "a y", ("a", "y", None)),
        (lambda *, a, b=3: (a, b), "a", ("a", 3)),
        (lambda *, a, b: (a, b), "b a", ("a", "b")),
        (lambda a, *, mask: (a, mask), "mask a", ("a", "mask")),
        (lambda *given: given, "y x", ("y", "x")),
        (lambda *args, **kwargs: (args, kwargs), "args kwargs", (("args", "kwargs"), {})),
        (lambda **named: named, "b a", {"b": "b", "a": "a"}),
        (lambda a, **named: (a, named), "extra a", ("a", {"extra": "extra"})),
        (lambda a, **named: (a, named), "x", ("x", {})),
        (lambda a, /, b: (a, b), "x y", ("x", "y")),
        (lambda a, *rest: (a, rest), "x y z", ("x", ("y", "z"))),
        (partial(lambda scale, a, b: (scale, a, b), 5), "b a", (5, "a", "b")),
        (max, "x y", "y"),
    ],
)
def test_each_argument_gets_its_input(forward: Callable[..., Any], names: str, answer: Any) -> None:
    assert called(forward, names) == answer


@pytest.mark.parametrize(
    ("forward", "names", "why"),
    [
        (lambda a, b: 0, "b x", "input 'b' is passed by position, but the argument there is a"),
        (lambda a, b, /: 0, "b a", "input 'b' is passed by position, but the argument there is a"),
        (lambda a, mask=None: 0, "x y mask", "input 'mask' is passed by position, but the argument there is none"),
        (
            lambda input_ids, token_type_ids=None, attention_mask=None: 0,
            "input_ids mask",
            "input 'mask' is passed by position, but the argument there, token_type_ids, has a default",
        ),
        (
            lambda a, scale=1.0, b=None: 0,
            "x scale y",
            "input 'y' is passed by position, but the argument there, b, has a default",
        ),
        (lambda a, b: 0, "x", "'b' gets no input and has no default"),
        (lambda a, b: 0, "a", "'b' of forward has no default, and no input has this name"),
        (lambda a: 0, "x y", "forward takes 1 arguments by position, not 2"),
        (lambda a, *, mask: 0, "x y", "forward takes 1 arguments by position, not 2"),
        (lambda a, *, mask: 0, "x", "'mask' gets no input and has no default"),
        (lambda *, a: 0, "x", "forward takes 0 arguments by position, not 1"),
    ],
)
def test_what_cannot_be_called_names_the_arguments_and_the_way_out(
    forward: Callable[..., Any], names: str, why: str
) -> None:
    with pytest.raises(ArtifactError) as caught:
        called(forward, names)
    assert caught.value.message.startswith("forward(")
    assert caught.value.message.endswith(why)
    assert f"model.inputs {', '.join(map(repr, names.split()))}" in caught.value.message
    assert "like the arguments of forward" in caught.value.hint


def test_in_its_own_order_the_module_itself_is_called() -> None:
    """A request then costs nothing more."""
    module = Module(lambda a, b=1, c=2: 0)
    assert in_order(module, ["a", "b"]) is module
    assert in_order(module, ["x"]) is module


def test_a_compiled_module_is_called_by_the_names_of_the_module_it_was_made_from() -> None:
    compiled = Module(lambda *given, **named: (given, named))
    assert in_order(Module(lambda a, b: 0), ["b", "a"], compiled=compiled)(1, 2) == ((), {"b": 1, "a": 2})
    assert in_order(Module(lambda a, b: 0), ["a", "b"], compiled=compiled) is compiled
