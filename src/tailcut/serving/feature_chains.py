"""Checks, by the manifests, that a model takes and gives what another model's feature groups ask it for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod

from tailcut import text
from tailcut.code.digest import few
from tailcut.errors import StartError, TailcutError
from tailcut.manifest import Deployment, Manifest
from tailcut.manifest.keys import nearest
from tailcut.manifest.references import source_path
from tailcut.manifest.schema import FeatureGroup, TensorSpec
from tailcut.pipeline.row_transform import columns_of


def refuse_misfits(manifest: Manifest, models: Mapping[str, Manifest]) -> Manifest:
    """Return a manifest whose feature groups their models can answer. What hooks take and give is not known here.

    Args:
        models: manifests of the other models that are loaded, or are being loaded, by name.

    Raises:
        StartError: a key, a column or a width that does not fit, or values per tenant in a group that has none; it
            names the group and the model. It may read files.
    """
    for group in manifest.deployment.features.groups:
        model = models.get(group.model)
        if model is not None:
            _check_key(group, model)
            _check_tenant(group, model)
            _check_columns(group, model)
    if not _has_preprocess(manifest):
        for tensor in manifest.deployment.model.inputs:
            _check_width(tensor, manifest, models)
    return manifest


def by_entity(key: Sequence[str], model: Deployment) -> bool:
    """Whether the keys of a group are the entities of its model, which is then asked by entity."""
    return sorted(key) == sorted(model.features.entity)


def _check_key(group: FeatureGroup, model: Manifest) -> None:
    deployment = model.deployment
    if by_entity(group.key, deployment) or deployment.model.preprocess:
        return
    folder = source_path(model)
    if folder is not None and folder.is_dir():
        needed: tuple[str, ...] = (text.FIELD,)
        known: tuple[str, ...] = (text.FIELD, text.PAIR)
    else:
        needed = columns_of(deployment.model)
        known = (*needed, *(field.name for field in deployment.model.fields))
    strange = [name for name in group.key if name not in known]
    missing = [name for name in needed if name not in group.key]
    if not strange and not missing:
        return
    what = f"has {_few(strange)}" if strange else f"lacks {_few(missing)}"
    entity = deployment.features.entity
    raise StartError(
        f"{_where(group)}: the key {what}, but a row of model {group.model!r} has {_few(needed)}",
        hint=f"write key = {_list(needed)}" + (f", or {_list(entity)} to ask it by entity" if entity else ""),
    )


def _check_tenant(group: FeatureGroup, model: Manifest) -> None:
    """Refuse a group of all tenants whose model has values per tenant: it would be asked for those of no tenant.

    Models behind that one are checked with its own groups.
    """
    if group.per_tenant or not by_entity(group.key, model.deployment):
        return
    for own in model.deployment.features.groups:
        if own.per_tenant:
            raise StartError(
                f"{_where(group)}: its values are shared by all tenants, but those of model {group.model!r} are of one "
                f'tenant each, because of its group "{own.name}"',
                hint=f'set per_tenant = true on group "{group.name}"',
            )


def _check_columns(group: FeatureGroup, model: Manifest) -> None:
    names = [tensor.name for tensor in model.deployment.model.outputs]
    if _has_postprocess(model) or not names:
        return
    for column in group.columns:
        if column not in names:
            close = nearest(column, names)
            raise StartError(
                f"{_where(group)}: model {group.model!r} answers with {_few(names)}, not with column {column!r}",
                hint=f"did you mean {close!r}?" if close else "correct columns, or give that model a postprocess",
            )


def _check_width(tensor: TensorSpec, manifest: Manifest, models: Mapping[str, Manifest]) -> None:
    """Compare the values that an input takes per row with those of its columns, as far as both are fixed."""
    tail = tensor.shape[1:]
    if any(size < 0 for size in tail):
        return
    columns = tensor.columns or (tensor.name,)
    widths = {column: width for column in columns if (width := _width(column, manifest, models)) is not None}
    rest = len(columns) - len(widths)  # each has one value or more
    given, takes = sum(widths[column] for column in columns if column in widths), prod(tail)
    if not widths or (given + rest <= takes if rest else given == takes):
        return
    first = next(iter(widths))
    group = next(group for group in manifest.deployment.features.groups if first in group.columns)
    seen = ", ".join(f"{column!r} of model {_model_of(column, manifest)!r} has {widths[column]}" for column in widths)
    raise StartError(
        f"{_where(group)}: input {tensor.name!r} takes {takes} values per row, its columns have "
        f"{given + rest}{' or more' if rest else ''}: {seen}",
        hint="correct the shape or the columns of the input, or the group's columns",
    )


def _width(column: str, manifest: Manifest, models: Mapping[str, Manifest]) -> int | None:
    """Return how many values a column has that another model computes; None where that is not known."""
    model = models.get(_model_of(column, manifest))
    if model is None or _has_postprocess(model):
        return None
    for tensor in model.deployment.model.outputs:
        if tensor.name == column:
            return None if any(size < 0 for size in tensor.shape[1:]) else prod(tensor.shape[1:])
    return None


def _model_of(column: str, manifest: Manifest) -> str:
    groups = manifest.deployment.features.groups
    return next((group.model for group in groups if column in group.columns), "")


def _has_preprocess(manifest: Manifest) -> bool:
    folder = source_path(manifest)
    return bool(manifest.deployment.model.preprocess) or (folder is not None and folder.is_dir())


def _has_postprocess(manifest: Manifest) -> bool:
    if manifest.deployment.model.postprocess:
        return True
    with suppress(TailcutError):  # what is wrong with it, its own start says
        return text.postprocess_of(manifest) is not None
    return True


def _where(group: FeatureGroup) -> str:
    return f'features.groups "{group.name}"'


def _few(names: list[str] | tuple[str, ...]) -> str:
    return few(tuple(map(repr, names)), 8)


def _list(names: tuple[str, ...]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"
