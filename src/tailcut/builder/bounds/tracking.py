"""Follows input values through one run of a torch module: which of them reach a table as they came in.

Beside every tensor that holds input values stands a tensor of their origins, for each element the number of the input
column that it came from, or NONE; and one of shifts, what was added to the value on the way: columns that share one
table each begin at an offset of their own in it. Operators that move values move both alike; other arithmetic has none.
Imports torch: imported by ``tailcut.builder.bounds.source`` only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from tailcut.builder.bounds.indices import Index, Seen

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


_SHIFTS = {_aten.add.Tensor: 1.0, _aten.add.Scalar: 1.0, _aten.sub.Tensor: -1.0, _aten.sub.Scalar: -1.0}
"""Operators that add a constant to values, or take it away."""

_EMBEDDINGS = frozenset(
    {_aten.embedding.default, _aten._embedding_bag.default, _aten._embedding_bag_forward_only.default}
)


_Followed = tuple[torch.Tensor, torch.Tensor]
"""Origins and shifts of one tensor, of its shape."""


class Tracking(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every index into a table while it is entered.

    Args:
        named: parameters and buffers of the module by name.
        free: whether an input has a free dimension.
        rows: number of rows of the run.

    Attributes:
        seen: what was found so far.
    """

    def __init__(self, named: Mapping[str, torch.Tensor], *, free: bool, rows: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = Seen()
        self._free = free
        self._rows = rows
        self._places: list[tuple[str, int]] = []
        """Input and column of each origin."""
        self._names: Any = WeakIdKeyDictionary({tensor: name for name, tensor in reversed(list(named.items()))})
        self._origins: Any = WeakIdKeyDictionary()
        self._shifts: Any = WeakIdKeyDictionary()
        """Of tensors that have origins, float64; those without an entry were not shifted."""
        self._derived: Any = WeakIdKeyDictionary()
        self._written: set[int] = set()
        """Addresses of memory that something derived from input values was written to."""

    def follow(self, name: str, tensor: torch.Tensor) -> None:
        """Follow an input from here on, (rows, ...)."""
        first, columns = len(self._places), tensor[0].numel()
        self._places += [(name, column) for column in range(columns)]
        origins = torch.arange(first, first + columns).reshape((1, *tensor.shape[1:]))
        self._origins[tensor] = origins.expand(tensor.shape).clone()

    def index(self, operator: str, table: torch.Tensor | None, index: Any, size: int, *, wraps: bool = False) -> None:
        """Record that ``index`` points into a dimension of ``size``."""
        columns = self._columns(index)
        name = self._names.get(table) if table is not None else None
        self.seen.sizes.add(size)
        if not columns:
            self.seen.lengths.add(size)
        elif name is not None or not (self._free or size == self._rows):
            # Of a table that the module makes anew, the size may be that of a free dimension.
            what = f"{operator} {name}" if name else operator
            for origin, shift in columns.items():
                tensor, column = self._places[origin]
                self.seen.indices.append(
                    Index(input=tensor, column=column, size=size, table=what, wraps=wraps, shift=shift)
                )

    def _columns(self, index: Any) -> dict[int, int]:
        """Return the columns that an index holds values of, with what was added to all values of each."""
        origins = self._origins.get(index)
        if origins is None:
            return {}
        shifts = self._shift_of(index)
        found = {}
        for origin in torch.unique(origins[origins != NONE]).tolist():
            added = torch.unique(shifts[origins == origin]).tolist()
            if len(added) == 1:
                found[origin] = int(added[0])
        return found

    def _shift_of(self, tensor: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor | None = self._shifts.get(tensor)
        return torch.zeros(tensor.shape, dtype=torch.float64) if found is None else found

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
        touched = any(self._touched(tensor) for tensor in [*_tensors(args), *_tensors(list(kwargs.values()))])
        if func._schema.is_mutable:
            self._forget(func, args, kwargs, touched)
        if touched:
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
            self.seen.lengths.add(args[0].shape[args[1] if len(args) > 1 else 0])

    def _touched(self, value: Any) -> bool:
        if value in self._origins or value in self._derived:
            return True
        return bool(self._written) and isinstance(value, torch.Tensor) and _memory(value) in self._written

    def _forget(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], touched: bool) -> None:
        """Stop following whatever shares memory with a tensor that the operator writes to."""
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            for written in _tensors(args[place] if place < len(args) else kwargs.get(argument.name)):
                memory = _memory(written)
                if touched:
                    self._written.add(memory)
                for tensor in list(self._origins):
                    if _memory(tensor) == memory:
                        del self._origins[tensor]
                        self._shifts.pop(tensor, None)
                        self._derived[tensor] = True

    def _carry(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: Sequence[torch.Tensor]) -> None:
        moved = self._moved(func, args, kwargs)
        for place, tensor in enumerate(given):
            if moved is None:
                if tensor not in self._origins:
                    self._derived[tensor] = True
            else:
                self._origins[tensor], shifts = moved[place]
                if bool(shifts.any()):
                    self._shifts[tensor] = shifts

    def _moved(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[_Followed] | None:
        """Return origins and shifts of an operator's results; None where they hold no values of inputs."""
        if func is _aten._to_copy.default:
            origins = self._origins.get(args[0])
            return None if origins is None else [(origins.clone(), self._shift_of(args[0]).clone())]
        if func in _SHIFTS:
            return self._shifted(args, _SHIFTS[func] * kwargs.get("alpha", 1))
        if func in _PICKS:
            return self._picked(func, args)
        if func not in _MOVES or any(tensor in self._derived for tensor in _tensors(args)):
            return None
        origins, shifts = self._replaced(args, origins=True), self._replaced(args, origins=False)
        if func is _aten.constant_pad_nd.default:
            origins[2:], shifts[2:] = [NONE], [0.0]
        try:
            return list(zip(_tensors(func(*origins, **kwargs)), _tensors(func(*shifts, **kwargs)), strict=True))
        except RuntimeError:
            # A view of the values' own layout, which origins do not always share.
            return None

    def _shifted(self, args: tuple[Any, ...], sign: float) -> list[_Followed] | None:
        """Follow the sum of values and a constant that is whole."""
        followed, constant = args[0], args[1]
        if sign == 1.0 and isinstance(constant, torch.Tensor) and constant in self._origins:
            followed, constant = constant, followed
        if followed not in self._origins or any(self._touched(tensor) for tensor in _tensors(constant)):
            return None
        added = torch.as_tensor(constant).to(torch.float64) * sign
        if not bool((added == added.round()).all()):
            return None
        shifts = self._shift_of(followed) + added
        return [(self._origins[followed].expand(shifts.shape).clone(), shifts)]

    def _picked(self, func: Any, args: tuple[Any, ...]) -> list[_Followed] | None:
        if args[0] not in self._origins or any(self._touched(tensor) for tensor in _tensors(args[1:])):
            return None
        origins, shifts = (func(each, *args[1:]) for each in (self._origins[args[0]], self._shift_of(args[0])))
        return list(zip(_tensors(origins), _tensors(shifts), strict=True))

    def _replaced(self, argument: Any, *, origins: bool) -> Any:
        """Put origins, or shifts, where tensors are."""
        if isinstance(argument, torch.Tensor):
            if not origins:
                return self._shift_of(argument)
            found = self._origins.get(argument)
            return torch.full(argument.shape, NONE, dtype=torch.int64) if found is None else found
        if isinstance(argument, (list, tuple)):
            return [self._replaced(each, origins=origins) for each in argument]
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


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for each in value for tensor in _tensors(each)] if isinstance(value, (list, tuple)) else []
