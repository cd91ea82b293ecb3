"""Limits of the values of a path's requests: the manifest's, and those of the variant's version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tailcut.common.bounds import Bound
from tailcut.common.tensors import Arrays
from tailcut.common.validation import InputSpec, limits_of
from tailcut.errors import BadRequest, FeatureUnavailable, HookError, TailcutError
from tailcut.features import EntityKey
from tailcut.manifest import Deployment, Field, Model, Tensor
from tailcut.models.field_limits import FieldRule, Rules, first_problem

_HINT = "send an allowed value; /openapi.json lists the limits of every field"


def input_specs(model: Model, bounds: Sequence[Bound] = ()) -> tuple[InputSpec, ...]:
    """Return what each input of the manifest must be.

    Args:
        bounds: of the variant's version, beside the manifest's own.
    """
    return tuple(
        InputSpec(t.name, t.datatype, t.shape, allow_nan=t.allow_nan, bounds=bounds_of(t, bounds)) for t in model.inputs
    )


def bounds_of(tensor: Tensor, bounds: Sequence[Bound]) -> tuple[Bound, ...]:
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


def fields_of(tensor: Tensor) -> tuple[str, ...]:
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
        found.setdefault(field.name, []).append(_declared(field))
    for tensor in () if hook else model.inputs:
        for bound in bounds_of(tensor, bounds):
            rule = _of_bound(tensor, bound)
            for position, name in enumerate(fields_of(tensor)):
                if rule is not None and (not bound.columns or position in bound.columns):
                    found.setdefault(name, []).append(rule)
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


def _declared(field: Field) -> FieldRule:
    return FieldRule(
        field.type, low=field.min, high=field.max, values=field.values or None, max_length=field.max_length
    )


def _of_bound(tensor: Tensor, bound: Bound) -> FieldRule | None:
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
