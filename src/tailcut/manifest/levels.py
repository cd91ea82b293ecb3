"""In which order feature groups can be fetched: a group waits for the groups whose columns are in its key."""

from __future__ import annotations

from tailcut.errors import ManifestError
from tailcut.manifest.schema import FeatureGroup, Features


def groups_in_levels(features: Features) -> tuple[tuple[FeatureGroup, ...], ...]:
    """Sort the groups into levels; all groups of one level can be fetched at once.

    Level 0 holds the groups keyed by entity fields only; any other group stands one level above the highest group
    that yields a column of its key. Within a level the manifest's order stays.

    Raises:
        ManifestError: a key column that nothing yields, or groups that wait for one another.
    """
    owner = {column: group for group in features.groups for column in group.columns}
    waits_for = {group.name: _owners(group, features, owner) for group in features.groups}
    levels: list[tuple[FeatureGroup, ...]] = []
    placed: set[str] = set()
    waiting = list(features.groups)
    while waiting:
        ready = tuple(group for group in waiting if waits_for[group.name] <= placed)
        if not ready:
            names = ", ".join(_in_cycles({group.name: waits_for[group.name] - placed for group in waiting}))
            raise ManifestError(
                f"features.groups: {names} depend on each other: the key of each has a column of another",
                hint="give one of them a key of entity fields only",
            )
        levels.append(ready)
        placed.update(group.name for group in ready)
        waiting = [group for group in waiting if group.name not in placed]
    return tuple(levels)


def _in_cycles(waits_for: dict[str, set[str]]) -> list[str]:
    """The names without those that nothing waits for: what merely stands above a cycle is not to blame."""
    names = dict(waits_for)
    while idle := [name for name in names if not any(name in others for others in names.values())]:
        for name in idle:
            del names[name]
    return list(names)


def _owners(group: FeatureGroup, features: Features, owner: dict[str, FeatureGroup]) -> set[str]:
    owners: set[str] = set()
    for column in group.key:
        if column in features.entity:
            continue
        if column not in owner:
            known = ", ".join((*features.entity, *owner))
            raise ManifestError(
                f"features.groups.{group.name}.key: {column} is neither a field of the entity nor a column of a group",
                hint=f"known are: {known or 'none'}",
            )
        if owner[column].name == group.name:
            raise ManifestError(
                f"features.groups.{group.name}.key: {column} is a column of this group itself",
                hint="use fields of the entity or columns of other groups in the key",
            )
        owners.add(owner[column].name)
    return owners
