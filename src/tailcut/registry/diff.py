"""What changed between two versions of a model. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tailcut.registry.records import VariantRecord, Version


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One value that differs; None where a side has none."""

    what: str
    old: Any = None
    new: Any = None


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """Two versions side by side.

    Attributes:
        added: variants that only the new version has an artifact of.
        removed: variants that only the old one has.
        changed: per variant that both have, what differs in artifact, settings, state, machine and metrics.
        version: what differs outside the variants: source, tensors, origins.
        manifest: keys of the manifest that differ, by dotted path.
        code: modules, data files and distributions of the user's code that differ.
    """

    old: str
    new: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: dict[str, tuple[Change, ...]] = {}
    version: tuple[Change, ...] = ()
    manifest: tuple[Change, ...] = ()
    code: tuple[Change, ...] = ()

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.added or self.removed or self.changed or self.version or self.manifest or self.code)


def diff_versions(old: Version, new: Version) -> Diff:
    """Compare two versions, read with their evidence."""
    before = {name: each for name, each in old.variants.items() if each.sha256}
    after = {name: each for name, each in new.variants.items() if each.sha256}
    changed = {name: _changes(_facts(before[name]), _facts(each)) for name, each in after.items() if name in before}
    return Diff(
        old=old.id,
        new=new.id,
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed={name: changes for name, changes in changed.items() if changes},
        version=_changes(_outside(old), _outside(new)),
        manifest=_changes(flatten(old.manifest), flatten(new.manifest)),
        code=_changes(_code(old), _code(new)),
    )


def flatten(tree: Any, path: str = "") -> dict[str, object]:
    """Leaves of a plain tree by dotted path; elements of a list are named by their "name", or by their place."""
    if isinstance(tree, Mapping):
        pairs = list(tree.items())
    elif isinstance(tree, list | tuple) and any(isinstance(each, Mapping) for each in tree):
        pairs = [
            (each["name"] if isinstance(each, Mapping) and "name" in each else place, each)
            for place, each in enumerate(tree)
        ]
    else:
        return {path: tree}
    found: dict[str, object] = {}
    for name, below in pairs:
        found |= flatten(below, f"{path}.{name}" if path else str(name))
    return found


def _facts(variant: VariantRecord) -> dict[str, object]:
    kept = {
        "sha256": variant.sha256,
        "size_bytes": variant.size_bytes,
        "runtime": variant.runtime,
        "state": variant.state,
        "refused": variant.refused,
    }
    keys = flatten(msgspec.to_builtins(variant.keys), "keys") if variant.keys is not None else {}
    metrics = flatten(variant.evidence.metrics, "metrics")
    return kept | flatten(variant.settings, "settings") | metrics | keys


def _outside(version: Version) -> dict[str, str]:
    tensors = {
        f"{side}.{tensor.name}": f"{tensor.datatype} {list(tensor.shape)}"
        for side in ("inputs", "outputs")
        for tensor in getattr(version, side)
    }
    return {"source": version.source} | tensors | {f"origins.{name}": sha for name, sha in version.origins.items()}


def _code(version: Version) -> dict[str, str]:
    """Hashes and versions of the user's code; nothing where it was not listed."""
    code = version.evidence.code
    if code is None:
        return {}
    files = {each.file or name: each.sha256[:12] for name, each in code.modules.items()}
    data = {name: sha[:12] for name, sha in code.data.items()}
    return files | data | {name: each.version for name, each in code.distributions.items()}


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Change, ...]:
    names = dict.fromkeys((*old, *new))
    return tuple(
        Change(what=name, old=old.get(name), new=new.get(name)) for name in names if old.get(name) != new.get(name)
    )
