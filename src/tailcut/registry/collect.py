"""Garbage collection: artifacts of retired versions that nothing else refers to, and what failed writes left."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import msgspec

from tailcut.errors import ArtifactError
from tailcut.registry.documents import blob_path, evidence_path, model_path, version_path
from tailcut.registry.history import earlier
from tailcut.registry.records import Promotion, Version
from tailcut.registry.storage import Storage

_TEMPORARY = re.compile(r"(^|/)[^/]+\.[0-9a-f]{12}\.tmp$")
_EVIDENCE = re.compile(r"/evidence-[0-9a-f]{12}\.json$")


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What was removed, or would be.

    Attributes:
        versions: "model/id" of each version that goes.
        files: every file, by its path in the registry.
        freed_bytes: their size.
        kept: "model/id" of retired versions that stay because they are promoted or the way back.
    """

    versions: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    freed_bytes: int = 0
    kept: tuple[str, ...] = ()


Promotions = Mapping[str, Promotion | None]
"""What is promoted, by model."""


@contextmanager
def locked(storage: Storage, models: Sequence[str]) -> Iterator[None]:
    """Hold the locks of collection: no build of these models runs, none is promoted, and nothing is added.

    Raises:
        BuildError: a build is under way.
    """
    with ExitStack() as stack:
        for model in models:
            stack.enter_context(storage.build_lock(model_path(model, "build.lock"), model))
            # What retires a version takes this one first and that of additions after it, as is done here.
            stack.enter_context(storage.changing(model_path(model, "pointers.lock")))
        stack.enter_context(storage.collecting())
        yield


def refuse_incomplete(storage: Storage, versions: Sequence[Version], promotions: Promotions) -> None:
    """Refuse where records are missing: what only they refer to would look like garbage.

    Args:
        versions: of all models.

    Raises:
        ArtifactError: a promoted version has no record, or there are artifacts and no models.
    """
    hint = "nothing was removed; check whether a part of the registry was moved or is not mounted."
    there = {(each.model, each.id) for each in versions}
    for model, promotion in promotions.items():
        if promotion is not None and (model, promotion.version) not in there:
            raise ArtifactError(
                f"version {promotion.version} of model {model!r} is promoted in {storage.url} but has no record",
                hint=f"{hint} If the record is lost, promote another version",
            )
    if not promotions and next(storage.files("blobs"), None) is not None:
        raise ArtifactError(f"{storage.url} holds artifacts, but no model that refers to them", hint=hint)


def plan(storage: Storage, versions: Sequence[Version], promotions: Promotions) -> Collected:
    """Say what can go, records first."""
    needed = {f"{model}/{version}" for model, promotion in promotions.items() for version in _needed(promotion)}
    retired = [each for each in versions if each.retired]
    going = [each for each in retired if f"{each.model}/{each.id}" not in needed]
    gone = {f"{each.model}/{each.id}" for each in going}
    staying = [each for each in versions if f"{each.model}/{each.id}" not in gone]
    records = [path for each in going for path in (version_path(each.model, each.id), evidence_path(each))]
    sizes = {path: storage.size_bytes(path) for path in (*records, *_orphans(storage, staying))}
    there = {path: size_bytes for path, size_bytes in sizes.items() if size_bytes is not None}
    return Collected(
        versions=tuple(sorted(gone)),
        files=tuple(there),
        freed_bytes=sum(there.values()),
        kept=tuple(f"{each.model}/{each.id}" for each in retired if f"{each.model}/{each.id}" in needed),
    )


def _needed(promotion: Promotion | None) -> set[str]:
    """Versions that are served or that the next rollback goes to."""
    if promotion is None:
        return set()
    back = next(earlier(promotion), None)
    return {promotion.version} | ({back.version} if back is not None else set())


def _orphans(storage: Storage, staying: Sequence[Version]) -> Iterator[str]:
    """Files that no staying version refers to and that no write under way can have made."""
    records = [each for version in staying for each in version.variants.values()]
    referred = {blob_path(sha) for each in records for sha in (each.sha256, *each.parts.values()) if sha}
    referred |= {blob_path(each.sha256) for version in staying for each in version.files.values()}
    referred |= {evidence_path(version) for version in staying}
    for folder in ("models", "blobs"):
        for path in storage.files(folder):
            loose = folder == "blobs" or _EVIDENCE.search(path) or _TEMPORARY.search(path)
            if loose and path not in referred:
                yield path
