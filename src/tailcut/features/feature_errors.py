"""Errors of requests for features that could not be fetched."""

from __future__ import annotations

from tailcut.errors import (
    BadRequest,
    FeatureError,
    FeatureTimeout,
    FeatureUnavailable,
    Shed,
    TailcutError,
    UnknownEntity,
)
from tailcut.features.entry import Failure, Row
from tailcut.features.groups import Group, KeyProblem
from tailcut.features.outages import DATABASE
from tailcut.features.sources.base import Key


def key_of(group: Group, row: Row) -> Key:
    """The group's key in a request's row.

    Raises:
        BadRequest: a field of the entity is not of the key's type.
        FeatureUnavailable: a column of another group is not.
    """
    try:
        return group.key_of(row)
    except KeyProblem as problem:
        if group.by_entity:
            raise BadRequest(
                f'entity field {problem}, as feature group "{group.name}" has it', hint=problem.kind.takes
            ) from problem
        raise unavailable(group, f"its key {problem}") from problem


def error_of(group: Group, key: Key, failure: Failure) -> TailcutError:
    """The error for a key that a source could not answer."""
    if failure.key_type and group.by_entity:
        return BadRequest(
            f'entity {describe(group, key)} does not fit feature group "{group.name}": {failure.message}',
            hint="send the entity's fields with the types of the source (numbers as numbers, text as text)",
        )
    if failure.retry_s is not None:
        return Shed(
            f'feature group "{group.name}" has no value: {failure.message}',
            hint="retry after Retry-After seconds; the model behind the group is overloaded",
            retry_after_s=failure.retry_s,
        )
    if failure.misfit:
        return FeatureError(
            f'feature group "{group.name}" does not fit its source: {failure.message}',
            hint=failure.hint,
            group=group.name,
        )
    if failure.kind:
        error = unavailable(group, f"its source failed ({failure.kind})", failure.message)
    else:
        error = unavailable(group, failure.message, hint=failure.hint)
    if failure.unreachable:
        error.source = DATABASE  # one cause, whichever of its groups met it
    return error


def describe(group: Group, key: Key) -> str:
    """A key with the names of its columns."""
    return ", ".join(f"{column}={value!r}" for column, value in zip(group.spec.key, key, strict=True))


def unknown(group: Group, key: Key) -> UnknownEntity:
    """The error for a key without a row."""
    return UnknownEntity(
        f'feature group "{group.name}" has no row for {describe(group, key)}',
        hint="check the entity, or give the group defaults for entities without a row",
    )


def unavailable(group: Group, reason: str, detail: str = "", hint: str = "") -> FeatureUnavailable:
    """The error for a group that could not be fetched."""
    return FeatureUnavailable(
        f'feature group "{group.name}" is unavailable and has no value within its stale limit of '
        f"{group.spec.stale_for_s:g} s: {reason}",
        hint=hint or "check the group's source; a longer stale_for serves older values during an outage",
        detail=detail,
        group=group.name,
    )


def timed_out(group: Group) -> FeatureTimeout:
    """The error for a deadline that passed."""
    return FeatureTimeout(
        f'the request\'s deadline passed while feature group "{group.name}" was being fetched',
        hint="send a longer timeout, raise slo.timeout, or make the group's source faster",
    )
