"""Follows input values through one run of a torch module: which of them reach a table as they came in.

Beside every tensor that holds input values unchanged stands a tensor of their origins: for each element the number of
the input column that it came from, or NONE. Operators that move values move origins alike; arithmetic has none.
Imports torch: imported by ``tailcut.build.bounds.torch`` only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

NONE = -1

_aten: Any = torch.ops.aten

_MOVES = frozenset(
    {
        _aten.alias.default,
        _aten.as_strided.default,
        _aten.cat.default,
        _aten.clone.default,
        _aten.constant_pad_nd.default,
        _aten.detach.default,
        _aten.diagonal.default,
        _aten.expand.default,
        _aten.flip.default,
        _aten.lift_fresh.default,
        _aten.permute.default,
        _aten.repeat.default,
        _aten.roll.default,
        _aten.select.int,
        _aten.slice.Tensor,
        _aten.split.Tensor,
        _aten.split_with_sizes.default,
        _aten.squeeze.default,
        _aten.squeeze.dim,
        _aten.squeeze.dims,
        _aten.stack.default,
        _aten.t.default,
        _aten.transpose.int,
        _aten.unbind.int,
        _aten.unfold.default,
        _aten.unsqueeze.default,
        _aten._unsafe_view.default,
        _aten.view.default,
        _aten._reshape_alias.default,
    }
)
"""Operators whose result holds values of their tensors, moved or repeated."""

_PICKS = frozenset({_aten.index.Tensor, _aten.index_select.default, _aten.gather.default, _aten.take.default})
"""Operators whose result holds values of their first tensor, at the places that an index says."""


_EMBEDDINGS = frozenset(
    {_aten.embedding.default, _aten._embedding_bag.default, _aten._embedding_bag_forward_only.default}
)


class Reached:
    """A tensor that was used as an index.

    Attributes:
        origins: columns, sorted; empty where the index holds no unchanged input value.
        size: of the indexed dimension.
        table: the operator and the name of the table; ``named`` tells whether the table is a parameter or buffer.
        wraps: whether negative indices count from the end.
    """

    def __init__(self, origins: Sequence[int], size: int, table: str, *, named: bool, wraps: bool) -> None:
        self.origins = tuple(origins)
        self.size = size
        self.table = table
        self.named = named
        self.wraps = wraps


class Tracking(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every index into a table while it is entered.

    Args:
        named: parameters and buffers of the module by name.
    """

    def __init__(self, named: Mapping[str, torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reached: list[Reached] = []
        self.sliced: set[int] = set()
        """Sizes of dimensions of constants that the module takes a part of."""
        self._names: Any = WeakIdKeyDictionary({tensor: name for name, tensor in reversed(list(named.items()))})
        self._origins: Any = WeakIdKeyDictionary()
        self._derived: Any = WeakIdKeyDictionary()

    def follow(self, tensor: torch.Tensor, origins: torch.Tensor) -> None:
        """Follow a tensor from here on; ``origins`` has its shape, int64."""
        self._origins[tensor] = origins

    def index(self, operator: str, table: torch.Tensor | None, index: Any, size: int, *, wraps: bool = False) -> None:
        """Record that ``index`` points into a dimension of ``size``."""
        origins = self._origins.get(index)
        columns = [] if origins is None else torch.unique(origins[origins != NONE]).tolist()
        name = self._names.get(table) if table is not None else None
        what = f"{operator} {name}" if name else operator
        self.reached.append(Reached(columns, size, what, named=name is not None, wraps=wraps))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator and carry the origins on."""
        kwargs = kwargs or {}
        with self:
            # In inference mode an operator may arrive whole that is made of others.
            parts = func.decompose(*args, **kwargs) if func._can_decompose() else NotImplemented
        if parts is not NotImplemented:
            return parts
        given = func(*args, **kwargs)
        self._note_index(func, args)
        if func._schema.is_mutable:
            self._forget(func, args, kwargs)
        self._carry(func, args, kwargs, _tensors(given))
        return given

    def _note_index(self, func: Any, args: tuple[Any, ...]) -> None:
        if func in _EMBEDDINGS:
            self.index("embedding", args[0], args[1], args[0].shape[0])
        elif func in {_aten.index_select.default, _aten.gather.default} and args[0].dim():
            self.index("table", args[0], args[2], args[0].shape[args[1]])
        elif func is _aten.take.default:
            self.index("table", args[0], args[1], args[0].numel(), wraps=True)
        elif func is _aten.index.Tensor:
            place = 0
            for index in args[1]:
                mask = index is not None and index.dtype in {torch.bool, torch.uint8}
                if index is not None and not mask:
                    self.index("table", args[0], index, args[0].shape[place], wraps=True)
                place += index.dim() if mask else 1
        elif func is _aten.slice.Tensor and not self._touched(args[0]):
            self.sliced.add(args[0].shape[args[1] if len(args) > 1 else 0])

    def _touched(self, value: Any) -> bool:
        return value in self._origins or value in self._derived

    def _forget(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Stop following whatever shares memory with a tensor that the operator writes to."""
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            for written in _tensors(args[place] if place < len(args) else kwargs.get(argument.name)):
                memory = written.untyped_storage().data_ptr()
                for tensor in list(self._origins):
                    if tensor.untyped_storage().data_ptr() == memory:
                        del self._origins[tensor]
                        self._derived[tensor] = True

    def _carry(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: Sequence[torch.Tensor]) -> None:
        everything = [*_tensors(args), *_tensors(list(kwargs.values()))]
        if not any(self._touched(tensor) for tensor in everything):
            return
        moved = self._moved(func, args)
        for place, tensor in enumerate(given):
            if moved is None:
                if tensor not in self._origins:
                    self._derived[tensor] = True
            else:
                self._origins[tensor] = moved[place]

    def _moved(self, func: Any, args: tuple[Any, ...]) -> list[torch.Tensor] | None:
        """Return the origins of an operator's results; None where they hold no unchanged input values."""
        if func is _aten._to_copy.default:
            return self._cast(args[0])
        if func in _PICKS:
            return self._picked(func, args)
        if func not in _MOVES or any(tensor in self._derived for tensor in _tensors(args)):
            return None
        arguments = [self._replaced(argument) for argument in args]
        if func is _aten.constant_pad_nd.default:
            arguments[2:] = [NONE]
        return _tensors(func(*arguments))

    def _cast(self, tensor: torch.Tensor) -> list[torch.Tensor] | None:
        origins = self._origins.get(tensor)
        return None if origins is None else [origins.clone()]

    def _picked(self, func: Any, args: tuple[Any, ...]) -> list[torch.Tensor] | None:
        if args[0] not in self._origins or any(self._touched(tensor) for tensor in _tensors(args[1:])):
            return None
        return _tensors(func(self._origins[args[0]], *args[1:]))

    def _replaced(self, argument: Any) -> Any:
        if isinstance(argument, torch.Tensor):
            if argument in self._origins:
                return self._origins[argument]
            return torch.full(argument.shape, NONE, dtype=torch.int64)
        if isinstance(argument, (list, tuple)):
            return [self._replaced(each) for each in argument]
        return argument


class OneHot(TorchFunctionMode):
    """Records one_hot, which reaches no dispatch mode as one operator."""

    def __init__(self, tracking: Tracking) -> None:
        super().__init__()
        self._tracking = tracking

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function."""
        kwargs = kwargs or {}
        if func is torch.nn.functional.one_hot:
            classes = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
            if classes > 0:
                self._tracking.index("one_hot", None, args[0] if args else kwargs["tensor"], classes)
        return func(*args, **kwargs)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for each in value for tensor in _tensors(each)] if isinstance(value, (list, tuple)) else []
