"""Trials at and beyond the edges of every input: where the source raises, no variant may answer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from tailcut.builder.bounds import lengths
from tailcut.builder.bounds.categories import UNKNOWN
from tailcut.builder.bounds.ranges import FLOAT32
from tailcut.builder.bounds.trials import (
    MOST_COLUMNS,
    PATIENCE_S,
    Call,
    OutOfTime,
    Patience,
    Trials,
    Value,
    each_row,
    fits,
    sample,
)
from tailcut.builder.calling import said
from tailcut.builder.quality import export_check
from tailcut.common.bounds import Bound, Limits
from tailcut.common.tensors import NUMPY_OF, Array, Arrays
from tailcut.errors import BadRequest
from tailcut.manifest import TensorSpec
from tailcut.models.value_limits import bounds_of

_FREE_COLUMNS = 3
"""Positions that are tried of an input whose rows may have any length."""

_MOST_SIZES = 8
_WHOLE = (-1, 0, 2**24 + 1, 2**31, 2**53 + 1)
"""The last three are no float32, no int32 and no float64."""


Kind = Literal["answers", "differs", "raises", "untried"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A value at which a variant does something else than the source.

    Attributes:
        kind: answers: the source raises and the variant answers; differs: both answer, another number; raises: the
            source answers, the variant raises or gives NaN or infinity; untried: there was no time for this value.
        input: name of the tensor.
        column: position in the flattened row; None where ``value`` is the size of the free dimension.
        value: what was tried.
        source: what the source raises; empty where it answers.
        variant: what the variant raises, or how far it is off; empty where it simply answers.
        more: number of further values that were not tried.
    """

    kind: Kind
    input: str
    column: int | None
    value: Value
    source: str = ""
    variant: str = ""
    more: int = 0

    @property
    def text(self) -> str:
        """The finding as a sentence."""
        where = f"input {self.input!r}" + (f" column {self.column}" if self.column is not None else "")
        at = f"{where} = {self.value!r}" if self.column is not None else f"{where} of length {self.value}"
        if self.kind == "untried":
            more = f" and {self.more} other values" if self.more else ""
            return f"{at}{more} not tried: the trials exceeded {PATIENCE_S:g} s"
        if self.kind == "answers":
            return f"the source refuses {at} ({self.source}), this variant answers"
        if self.kind == "raises":
            return f"the source answers {at}, this variant does not: {self.variant}"
        return f"the source and this variant both answer {at}, but differently: {self.variant}"


class _Case(msgspec.Struct, frozen=True):
    """One row to try."""

    input: str
    column: int | None
    value: Value
    row: Arrays


class Edges:
    """The cases of a model, and what its source does with each. The source runs once, variants as often as wanted.

    Args:
        source: runs the user's object: input arrays by name -> output arrays by name; raises where the object raises.
        inputs: the tensors of ``model.inputs``; limits that they declare count as enforced.
        outputs: the tensors of ``model.outputs``.
        rows: a few holdout rows; the first is changed.
        bounds: that will be enforced beside those that the tensors declare: no value beyond them is tried.
        sizes: of tables in the model, see ``Found``.
        expected: what another such object found as ``expected``; None: the source runs now.
    """

    def __init__(
        self,
        source: Call,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        rows: Arrays,
        bounds: Sequence[Bound],
        sizes: Iterable[int] = (),
        expected: list[Arrays | str | None] | None = None,
    ) -> None:
        self._source = source
        self._outputs = tuple(outputs)
        self._trials = Trials(source, inputs, rows)
        self._bounds = {tensor.name: bounds_of(tensor, bounds) for tensor in inputs}
        self._sizes = sorted(set(sizes))[:_MOST_SIZES]
        self._cases = [case for tensor in inputs for case in self._of_values(tensor)] + list(self._of_lengths())
        if expected is None or len(expected) != len(self._cases):
            expected = each_row(source, [case.row for case in self._cases], Patience())
        self.expected = expected

    def compare(self, variant: Call, *, numbers: bool = True) -> list[Finding]:
        """Return where a variant does something else than the source.

        Args:
            variant: as ``source``.
            numbers: whether to compare what both answer, within the tolerance of an exported model; of variants in
                lower precision the quality gate judges numbers.

        Returns:
            the findings in the order of the cases; last, where the time was too short, one of kind "untried".
        """
        patience = Patience()
        given = each_row(variant, [case.row for case in self._cases], patience)
        found: list[Finding] = []
        untried: list[_Case] = []
        for case, ours, theirs in zip(self._cases, self.expected, given, strict=True):
            if ours is None or theirs is None:
                untried.append(case)
                continue
            try:
                finding = self._finding(variant, case, ours, theirs, patience if numbers else None)
            except OutOfTime:
                untried.append(case)
                continue
            found += [finding] if finding is not None else []
        if untried:
            found.append(msgspec.structs.replace(self._note("untried", untried[0]), more=len(untried) - 1))
        return found

    def _finding(
        self, variant: Call, case: _Case, expected: Arrays | str, given: Arrays | str, patience: Patience | None
    ) -> Finding | None:
        """Compare one case; numbers only where there is ``patience`` to run them again, alone."""
        answer = given if isinstance(given, str) else self._served(given)
        if isinstance(expected, str):
            return None if isinstance(answer, str) else self._note("answers", case, source=expected)
        if isinstance(self._served(expected), str):
            return None
        if isinstance(answer, str):
            return self._note("raises", case, variant=answer)
        if patience is None or not self._difference(expected, answer):
            return None
        # Other rows of a batch may have moved the numbers, of the source or of the variant.
        try:
            alone = self._difference(patience.run(self._source, case.row), patience.run(variant, case.row))
        except OutOfTime:
            raise
        except Exception as error:
            return self._note("raises", case, variant=said(error))
        return self._note("differs", case, variant=alone) if alone else None

    def _note(self, kind: Kind, case: _Case, *, source: str = "", variant: str = "") -> Finding:
        return Finding(
            kind=kind, input=case.input, column=case.column, value=case.value, source=source, variant=variant
        )

    def _served(self, outputs: Arrays) -> Arrays | str:
        """Return the answer, or why serving refuses it."""
        for tensor in self._outputs:
            array = outputs[tensor.name]
            if array.dtype.kind == "f" and not tensor.allow_nan and not np.isfinite(array).all():
                return f"output {tensor.name!r} is NaN or infinite"
        return outputs

    def _difference(self, expected: Arrays, given: Arrays) -> str:
        """Tell how far numbers are apart; empty within the tolerance."""
        for tensor in self._outputs:
            ours, theirs = expected[tensor.name], given[tensor.name]
            if ours.dtype.kind not in "biuf" or theirs.dtype.kind not in "biuf":
                if ours.tolist() != theirs.tolist():
                    return f"output {tensor.name!r} is {theirs.tolist()} instead of {ours.tolist()}"
                continue
            with np.errstate(all="ignore"):
                source, other = ours.astype(np.float64), theirs.astype(np.float64)
                near = np.isclose(other, source, rtol=export_check.RELATIVE, atol=export_check.ABSOLUTE, equal_nan=True)
            if source.shape != other.shape or not near.all():
                return f"output {tensor.name!r} is {theirs.ravel()[:1].tolist()} instead of {ours.ravel()[:1].tolist()}"
        return ""

    def _of_values(self, tensor: TensorSpec) -> Iterator[_Case]:
        bounds = self._bounds[tensor.name]
        for column in sample(self._trials.columns(tensor), _FREE_COLUMNS if -1 in tensor.shape[1:] else MOST_COLUMNS):
            own = [replace(bound, columns=()) for bound in bounds if not bound.columns or column in bound.columns]
            # Of the value alone: the holdout's row around it may be beyond a limit, and longer than one.
            limits = Limits(tensor.name, tensor.datatype, (-1,), own, allow_nan=tensor.allow_nan)
            for value in _values(tensor, own, self._sizes):
                row = self._trials.changed(tensor.name, [column], [value])
                if _is_allowed(limits, row[tensor.name].reshape(-1)[column : column + 1]):
                    yield _Case(tensor.name, column, value, row)

    def _of_lengths(self) -> Iterator[_Case]:
        for group in lengths.together(self._trials.inputs, self._trials.rows):
            bounds = [bound for tensor in group for bound in self._bounds[tensor.name]]
            most = [bound.max_length for bound in bounds if bound.max_length is not None]
            for wanted in sorted({length for size in self._sizes for length in (size, size + 1)} | {1}):
                if wanted <= min([*most, lengths.LONGEST + 1]):
                    row = lengths.lengthened(self._trials.rows, group, wanted, 0)
                    yield _Case(group[0].name, None, wanted, row)


def _values(tensor: TensorSpec, bounds: Sequence[Bound], sizes: Sequence[int]) -> list[Any]:
    """Return the values to try in a column, each once."""
    kind = NUMPY_OF[tensor.datatype].kind
    if kind == "O":
        return [UNKNOWN, ""]
    if kind not in "iuf":
        return []
    around = [size + step for size in sizes for step in (-1, 0, 1)]
    limits = [limit for bound in bounds for limit in (bound.min, bound.max) if limit is not None]
    if kind == "f":
        largest = float(np.finfo(NUMPY_OF[tensor.datatype].str).max)
        ends = [sign * value for value in (FLOAT32, 1e300, largest) for sign in (1.0, -1.0)]
        ends += [math.inf, -math.inf] if tensor.allow_nan else []
        values = [float(value) for value in (*_WHOLE, *around, *limits, *ends) if fits(tensor, value)]
        return [*dict.fromkeys(values), *([math.nan] if tensor.allow_nan else [])]
    whole = np.iinfo(NUMPY_OF[tensor.datatype].str)
    values = [*_WHOLE, *around, *limits, int(whole.min), int(whole.max)]
    return [int(value) for value in dict.fromkeys(values) if fits(tensor, value)]


def _is_allowed(limits: Limits, array: Array) -> bool:
    try:
        limits.check(array)
    except BadRequest:
        return False
    return True
