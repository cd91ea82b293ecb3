"""May this variant be opened on this machine? Its keys, and what its file really is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec.structs import replace

from tailcut.common.fingerprint import LEVELS, Machine, Trust, keys_of, packages_of, trust, uses_gpu
from tailcut.common.runtime_spec import spec_of
from tailcut.errors import ArtifactError, NotInRegistry, NotServable
from tailcut.registry.records import Variant, VariantRecord, Version

Check = Callable[[Version, str], None]
"""Refuses the variant of a version that is about to be promoted, by an ArtifactError."""

Trial = Callable[[Version, str], str]
"""Opens a variant and runs rows on it; says what it ran. An ArtifactError where it cannot be served."""

FROM_REGISTRY = "`tailcut build --from-registry` builds and judges the variants for this machine"


def nothing(version: Version, variant: str) -> None:
    """Check nothing."""


def trust_here(version: Version, name: str, machine: Machine) -> Trust:
    """Judge how far a variant's evidence holds on a machine; a pair's holds as far as that of its weaker part."""
    found = version.variants[name]
    if found.parts:
        if unknown := [part for part in found.parts if part not in version.variants]:
            return Trust(level="not openable", reason=f"its part {unknown[0]!r} is not in its version")
        judged = {part: trust_here(version, part, machine) for part in found.parts}
        worst = max(judged, key=lambda part: LEVELS.index(judged[part].level))
        reason = judged[worst].reason
        return replace(judged[worst], reason=f"its part {worst!r}: {reason}" if reason else "")
    here = keys_of(machine, found.runtime, gpu=uses_gpu(found.runtime, found.settings))
    return trust(found.keys, here, base=version.is_base(name))


def built(record: Version, name: str) -> VariantRecord:
    """Find a variant that has an artifact.

    Raises:
        NotInRegistry: there is none of that name.
        ArtifactError: it could not be built.
    """
    found = record.variants.get(name)
    if found is None:
        raise NotInRegistry(
            f"model {record.model!r} version {record.id} has no variant {name!r}",
            hint=f"it has: {', '.join(record.variants)}",
        )
    if not found.sha256:
        there = ", ".join(each for each, other in record.variants.items() if other.sha256)
        raise ArtifactError(
            f"variant {name!r} of model {record.model!r} version {record.id} was not built: {found.refused}",
            hint=f"fix the cause and run `tailcut build` again, or choose one of: {there}",
        )
    return found


def refuse(version: Version, name: str, check: Check, *, force: bool) -> None:
    """Refuse a variant that the gate refused, and what ``check`` refuses; both reasons are named.

    Args:
        force: allow what the gate refused.

    Raises:
        ArtifactError: it was refused, or ``check`` raises one.
    """
    reason = version.variants[name].refused
    if force or not reason:
        check(version, name)
        return
    try:
        check(version, name)
        more = ""
    except ArtifactError as error:
        more = f"; and {error.message}"
    raise ArtifactError(
        f"variant {name!r} of model {version.model!r} version {version.id} was refused: {reason}{more}",
        hint="promote another variant, fix the cause and build again, or give --force",
    )


def refuse_untrusted(version: Version, name: str, found: Trust, *, unverified: bool) -> None:
    """Refuse what cannot be opened here, and what was not judged here unless that is allowed.

    Raises:
        ArtifactError: with what differs, both values, and the way out.
    """
    what = f"variant {name!r} of model {version.model!r} version {version.id}"
    if found.level == "not openable":
        raise NotServable(f"{what} cannot be opened here: {found.reason}", hint=_way_out(version, name))
    if found.level == "unverified" and not unverified:
        raise NotServable(
            f"{what} is unverified here, because its quality verdict holds for other kernels: {found.reason}",
            hint=f"{FROM_REGISTRY}; meanwhile serve one of its base: {', '.join(base_names(version)) or 'none'}",
        )


def _way_out(version: Version, name: str) -> str:
    """Say how a variant that its runtime's package keeps from being opened can be, beside building anew."""
    keys = version.variants[name].keys
    if keys is not None and spec_of(keys.load.runtime).error:
        return f"fix or uninstall the package that registers it; {FROM_REGISTRY}"
    if keys is None or keys.load.binding != "version":
        return FROM_REGISTRY
    return f"pip install '{packages_of(keys.load.runtime)[0]}=={keys.load.version}'; {FROM_REGISTRY}"


def refuse_retired(version: Version) -> None:
    """Refuse a version that is not served any more.

    Raises:
        ArtifactError: it was retired.
    """
    if version.retired:
        raise NotServable(
            f"version {version.id} of model {version.model!r} was retired at {version.retired[:19]} UTC",
            hint="promote another version, or run `tailcut build` again",
        )


def refuse_pickle(variant: Variant) -> None:
    """Refuse an artifact that runs code when it is loaded.

    Raises:
        ArtifactError: it is a pickle.
    """
    paths = (variant.artifact, *variant.parts.values())
    bad = variant.artifact if variant.runtime == "pickle" else next((path for path in paths if is_pickle(path)), None)
    if bad is not None:
        raise NotServable(
            f"artifact {bad} (variant {variant.name!r} of model {variant.model!r}) is a pickle, "
            "and loading a pickle runs the code in it",
            hint="use another format (ONNX, a state dict); if you made the file yourself, give --trust",
        )


def outcome(
    what: str, check: Callable[[], object], trial: Callable[[], str] | None = None
) -> tuple[str, ArtifactError | None]:
    """Name what was checked, with what is wrong with it; None where nothing is.

    Args:
        what: is checked.
        check: raises where something is wrong.
        trial: the same after ``check``; what it returns is added to ``what``.
    """
    try:
        check()
        return (f"{what}: {trial()}" if trial is not None else what), None
    except ArtifactError as error:
        return what, error


def is_pickle(path: Path) -> bool:
    """Tell whether a file starts as pickles of protocol 2 and later do: the opcode PROTO and its number."""
    with path.open("rb") as file:
        start = file.read(2)
    return len(start) == 2 and start[0] == 0x80 and 2 <= start[1] <= 5


def base_names(version: Version) -> Iterable[str]:
    """Names of the portable base's variants."""
    return [name for name, each in version.variants.items() if each.sha256 and version.is_base(name)]
