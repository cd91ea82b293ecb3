"""Limits of the values of a path's requests: the manifest's, and those of the variant's version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import inf, isnan
from reprlib import repr as shown
from types import NoneType
from typing import Any, Literal

from tailcut.common.bounds import Bound, allowed, as_held, in_datatype, too_long
from tailcut.common.scalars import is_exact_whole
from tailcut.common.tensors import Arrays
from tailcut.common.validation import InputSpec, limits_of
from tailcut.errors import BadRequest, FeatureUnavailable, HookError, TailcutError
from tailcut.features import EntityKey
from tailcut.manifest import Deployment, Model, TensorSpec

_HINT = "send an allowed value; /openapi.json lists the limits of every field"


def input_specs(model: Model, bounds: Sequence[Bound] = ()) -> tuple[InputSpec, ...]:
    """Return what each input of the manifest must be.

    Args:
        bounds: of the variant's version, beside the manifest's own.
    """
    return tuple(
        InputSpec(t.name, t.datatype, t.shape, allow_nan=t.allow_nan, bounds=bounds_of(t, bounds)) for t in model.inputs
    )


def bounds_of(tensor: TensorSpec, bounds: Sequence[Bound]) -> tuple[Bound, ...]:
    """Return the bounds of an input: the manifest's, and those of ``bounds`` that are about it."""
    declared = Bound(
        input=tensor.name,
        min=tensor.min,
        max=tensor.max,
        values=tensor.values or None,
        max_length=tensor.max_length,
    )
    own = () if declared == Bound(input=tensor.name) else (declared,)
    return (*own, *(bound for bound in bounds if bound.input == tensor.name))


def fields_of(tensor: TensorSpec) -> tuple[str, ...]:
    """Return the fields that fill an input one value each, in order, where no hook does; none where one has a list."""
    return tensor.columns or ((tensor.name,) if len(tensor.shape) == 1 else ())


def limits_said(bound: Bound) -> str:
    """Say what a bound allows, without any value."""
    return FieldRule(
        low=bound.min, high=bound.max, values=bound.values, max_length=bound.max_length, why=bound.why
    ).limits()


def field_rules(model: Model, bounds: Sequence[Bound], *, hook: bool) -> Rules:
    """Return the rules of each field: ``model.fields``, and without a hook the limits of the inputs that it fills.

    Args:
        hook: whether a preprocess hook fills the inputs: only it knows from which fields.
    """
    found: dict[str, list[FieldRule]] = {}
    for field in model.fields:
        values = field.values or None
        rule = FieldRule(field.type, low=field.min, high=field.max, values=values, max_length=field.max_length)
        found.setdefault(field.name, []).append(rule)
    for tensor in () if hook else model.inputs:
        for bound in bounds_of(tensor, bounds):
            of_value = _of_bound(tensor, bound)
            for position, name in enumerate(fields_of(tensor)):
                if of_value is not None and (not bound.columns or position in bound.columns):
                    found.setdefault(name, []).append(of_value)
    return {name: tuple(rules) for name, rules in found.items()}


class PathLimits:
    """The limits of one path.

    Args:
        bounds: of the variant's version.
        hook: whether a preprocess hook fills the inputs.

    Attributes:
        specs: what each input must be, bounds included.
    """

    def __init__(self, deployment: Deployment, bounds: Sequence[Bound], *, hook: bool) -> None:
        model, features = deployment.model, deployment.features
        self.specs = input_specs(model, bounds)
        self._inputs = limits_of(self.specs)
        self._rules = rules = field_rules(model, bounds, hook=hook)
        self._entity = [(at, name, rules[name]) for at, name in enumerate(features.entity) if name in rules]
        groups = [(group.name, column) for group in features.groups for column in group.columns]
        self._fetched = [(group, column, rules[column]) for group, column in groups if column in rules]
        self._group_of = {column: group for group, column in groups}
        self._tensors = {tensor.name: tensor for tensor in model.inputs}
        self._bounds = bounds
        self._most_rows = deployment.batching.max_queue_rows
        self._hook = hook

    @property
    def is_empty(self) -> bool:
        """True where every value is allowed."""
        return not (self._inputs or self._rules)

    def check_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Refuse a client's rows with a field beyond its limits.

        Raises:
            BadRequest: naming the row, the field, the value and what is allowed.
        """
        if len(rows) > self._most_rows:
            return  # refused for that, and reading them would hold the event loop up
        for place, row in enumerate(rows):
            for name, rules in self._rules.items():
                if name in row and (problem := first_problem(rules, row[name])):
                    raise BadRequest(f"row {place}: field {name!r} {problem}", hint=_HINT)

    def check_entities(self, keys: Sequence[EntityKey]) -> None:
        """Refuse entities with a field beyond its limits.

        Raises:
            BadRequest: naming the entity, the field, the value and what is allowed.
        """
        for at, name, rules in self._entity:
            for place, key in enumerate(keys):
                if problem := first_problem(rules, key[at]):
                    raise BadRequest(f"entity {place}: field {name!r} {problem}", hint=_HINT)

    def check_fetched(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Refuse fetched features beyond their limits.

        Raises:
            FeatureUnavailable: naming the group, the column and what is allowed; the value is in its detail.
        """
        for group, column, rules in self._fetched:
            for row in rows:
                for rule in rules:
                    if problem := rule.problem(row[column]):
                        raise _unfit_feature(group, column, rule.limits(), f"{column} {problem}")

    def check_inputs(self, inputs: Arrays, *, from_client: bool) -> None:
        """Refuse inputs that were made of rows and are beyond a bound.

        Args:
            from_client: whether the client sent the rows.

        Raises:
            HookError: the hook made them.
            BadRequest: the client's rows hold them.
            FeatureUnavailable: fetched features hold them.
        """
        for name, limits in self._inputs:
            try:
                limits.check(inputs[name])
            except BadRequest as error:
                if self._hook:
                    raise HookError(
                        f"preprocess: {error.message}",
                        hint="the hook must return what the model takes, or raise BadRequest for a row that it cannot "
                        "use",
                    ) from None
                if from_client:
                    raise
                raise self._unfit_features(name, error) from None

    def _unfit_features(self, name: str, error: BadRequest) -> TailcutError:
        """Return the error for fetched features of which an input was made, such as a list, that is beyond a bound."""
        tensor = self._tensors[name]
        column = next((each for each in tensor.columns or (name,) if each in self._group_of), None)
        if column is None:
            return error  # made of the entity, which the client sent
        limits = "; ".join(map(limits_said, bounds_of(tensor, self._bounds)))
        return _unfit_feature(self._group_of[column], column, limits, error.message)


def _unfit_feature(group: str, column: str, limits: str, detail: str) -> FeatureUnavailable:
    return FeatureUnavailable(
        f'feature group "{group}" has a value in column "{column}" that the model cannot take: {limits}',
        hint="correct the value in the group's source, or the limit in the manifest",
        detail=detail,
        group=group,
    )


def _of_bound(tensor: TensorSpec, bound: Bound) -> FieldRule | None:
    """Return a bound as a rule of a field that fills a value of the input; None where it is about no value."""
    longest = bound.max_length if tensor.datatype == "BYTES" else None
    if bound.min is None and bound.max is None and bound.values is None and longest is None:
        return None
    return FieldRule(
        low=bound.min,
        high=bound.max,
        values=bound.values,
        max_length=longest,
        datatype=tensor.datatype,
        takes_lists=False,
        why=bound.why,
    )


# -- Limits of fields --------------------------------------------------------------------------------------------------


# Limits of the fields of entities and rows, which come as plain values, and the check of a value against them.

Kind = Literal["any", "integer", "number", "text", "boolean"]

_NUMBERS = (int, float, bool)

MOST_ELEMENTS = 2**18
"""Most elements of a list, where ``max_length`` does not say: a limit to how long one request holds others up."""


class FieldRule:
    """The limits of the values of one field.

    A missing value (null, NaN) passes: whether the model takes it is for its input's ``allow_nan``, or the hook, to
    say. Each element of a list is held to the rule, nested or not, and the length of each list to ``max_length``.
    Without one, a list has at most 262,144 elements, those of nested lists included.

    Args:
        kind: what values must be. A whole float is an integer where it is exact, a boolean is no number.
        low, high: smallest and largest number allowed, both included; None: no limit.
        values: the only values allowed; None: any.
        max_length: most characters of a text, or most elements of a list; None: any.
        datatype: of the input that the field fills, which numbers and limits are rounded to before they are compared,
            as in a tensor; empty: none.
        takes_lists: whether a list is taken; an input that takes one value of each field takes none.
        why: what has this limit; for errors.
    """

    def __init__(
        self,
        kind: Kind = "any",
        *,
        low: float | None = None,
        high: float | None = None,
        values: Sequence[Any] | None = None,
        max_length: int | None = None,
        datatype: str = "",
        takes_lists: bool = True,
        why: str = "",
    ) -> None:
        self._kind = kind
        self._datatype = datatype
        least, greatest = -inf if low is None else self._limit(low), inf if high is None else self._limit(high)
        self._range = None if low is None and high is None else (least, greatest)
        self._values = None if values is None else frozenset(map(self._limit, values))
        self._said = allowed(low, high, values, why) if self._range or values is not None else ""
        self._max_length = max_length
        self._takes_lists = takes_lists
        self.why = why

    def problem(self, value: Any) -> str:
        """Say what is wrong with a value, to follow the field's name; empty where nothing is."""
        if value is None or (isinstance(value, float) and isnan(value)):
            return ""
        if isinstance(value, list | tuple):
            return self._problem_of_list(value)
        if isinstance(value, bytes):  # a feature source's text
            value = value.decode("utf-8", "replace")
        if not isinstance(value, str | int | float):
            return f"is of type {type(value).__name__}, which is {self._not_taken}"
        if self._kind != "any" and not _is_kind(value, self._kind):
            return f"is {shown(value)}, which is no {self._kind}"
        return self._problem_of_text(value) if isinstance(value, str) else self._problem_of_number(value)

    def limits(self) -> str:
        """Say what is allowed, without any value."""
        said = [self._said] if self._said else []
        if self._max_length is not None:
            said.append(f"its length is at most {self._max_length}{f' ({self.why})' if self.why else ''}")
        return "; ".join(said) or f"it is {self._not_taken}"

    def _problem_of_text(self, value: str) -> str:
        if self._range is not None:
            return f"is {shown(value)}, which is no number"
        if self._max_length is not None and len(value) > self._max_length:
            return too_long(f"has {len(value)} characters", self._max_length, self.why)
        return self._refused(value) if self._values is not None and value not in self._values else ""

    def _problem_of_number(self, value: float) -> str:
        within, values = self._range, self._values
        if (within is None or within[0] <= value <= within[1]) and (values is None or value in values):
            return ""  # as it is, and so as the datatype holds it, which the limits are rounded to
        held = as_held(value, self._datatype) if self._datatype else value
        return "" if held != value and not self._problem_of_number(held) else self._refused(value)

    def _limit(self, limit: Any) -> Any:
        return limit if self._datatype in {"", "BYTES"} else in_datatype(limit, self._datatype)

    @property
    def _not_taken(self) -> str:
        return "neither number, text nor boolean" if self._kind == "any" else f"no {self._kind}"

    def _problem_of_list(self, value: Sequence[Any]) -> str:
        """Say what is wrong with a list.

        A client chooses its length and depth, so that the lists of one depth are taken together, and values one by one
        only where one of them may be wrong.
        """
        if not self._takes_lists:
            return "is a list, but the input takes one value"
        lists, elements = [value], 0
        while lists:
            longest = max(map(len, lists))
            if self._max_length is not None and longest > self._max_length:
                verb = "is" if longest == len(value) else "has"
                return too_long(f"{verb} a list of {longest} elements", self._max_length, self.why)
            elements += sum(map(len, lists))
            if self._max_length is None and elements > MOST_ELEMENTS:
                return too_long(f"is a list of {elements} elements", MOST_ELEMENTS)
            by_type = _by_type(list(chain.from_iterable(lists)))
            lists = by_type.pop(list, []) + by_type.pop(tuple, [])
            for kind, values in by_type.items():
                if found := self._first_problem(kind, values):
                    return f"has an element that {found}"
        return ""

    def _first_problem(self, kind: type, values: list[Any]) -> str:
        """Say what is wrong with the first value of those of one type that the rule refuses; empty where it takes all.

        Of what passes nothing is called: values are compared within one expression.
        """
        suspects: Iterable[Any] = values
        if kind is NoneType:
            return ""
        if kind is str and self._range is None and self._kind in {"any", "text"}:
            longest, listed = self._max_length, self._values
            suspects = [] if longest is None else [each for each in values if len(each) > longest]
            suspects += [] if listed is None else [each for each in values if each not in listed]
        elif kind in _NUMBERS and _may_be(kind, self._kind):
            suspects = self._numbers_beyond(kind, values)
        return next(filter(None, map(self.problem, suspects)), "")

    def _numbers_beyond(self, kind: type, values: list[float]) -> Iterable[float]:
        """Return the numbers that are beyond a limit, NaN left out."""
        low, high = self._range or (-inf, inf)
        beyond = [each for each in values if each < low or each > high]
        if kind is float and self._kind == "integer":
            beyond += [each for each in values if not (is_exact_whole(each) or isnan(each))]
        if self._values is not None:
            listed = self._values
            beyond += [each for each in values if each not in listed and not isnan(each)]
        return beyond

    def _refused(self, value: object) -> str:
        return f"is {shown(value)}, {self._said}"


Rules = dict[str, tuple[FieldRule, ...]]
"""The rules of each field that has any, by its name."""


def first_problem(rules: Iterable[FieldRule], value: Any) -> str:
    """Say what is wrong with a value by the first rule that it breaks; empty where it breaks none."""
    for rule in rules:
        if found := rule.problem(value):
            return found
    return ""


def _by_type(values: list[Any]) -> dict[type, list[Any]]:
    """Return values by their types; most lists have one type."""
    kinds = set(map(type, values))
    if len(kinds) == 1:
        return {kinds.pop(): values}
    return {kind: [each for each in values if type(each) is kind] for kind in kinds}


def _may_be(kind: type, wanted: Kind) -> bool:
    """Return whether values of a type of numbers may be of a kind."""
    return wanted == "any" or (wanted != "text" and (wanted == "boolean") is (kind is bool))


def _is_kind(value: str | float, kind: Kind) -> bool:
    if kind == "text":
        return isinstance(value, str)
    if kind == "boolean" or isinstance(value, bool):
        return kind == "boolean" and isinstance(value, bool)
    if kind == "integer" and isinstance(value, float):
        return is_exact_whole(value)
    return isinstance(value, int | float)
