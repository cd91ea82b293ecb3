"""Room on disks: where a build keeps its files until the registry has them, and whether there is room for both."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tailcut.errors import BuildError
from tailcut.registry import Registry

WAY_OUT = "free space there, or set TMPDIR to a folder on another disk; the registry is unchanged"
LEAST_BYTES = 1 << 20
"""Below this a disk counts as full: libraries in C++ do not say why a file could not be written."""

_RECORDS_BYTES = 4 << 20
"""For the record of a build with its evidence, and the logs and payloads of the load rounds."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def folder() -> Iterator[Path]:
    """Yield a new folder for temporary files, which is removed at the end, however that comes.

    Raises:
        BuildError: no such folder can be made, or what was to be written in it found no room.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="tailcut-build-") as name:
            try:
                yield Path(name)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                raise none_left("the build", Path(name), error) from error
    except FileNotFoundError as error:
        if "temporary directory" not in str(error):
            raise
        raise BuildError(
            f"there is no folder for temporary files: {error.strerror}", hint="set TMPDIR to a folder with free space"
        ) from error


def check(folder: Path, registry: Registry, artifacts: Sequence[Path], kept: Iterable[Path] = ()) -> None:
    """Check that what is still to be written has room, before minutes are spent on load rounds.

    The servers that get load open copies of the artifacts in the build's folder, and the registry then takes those that
    it does not have. A registry behind a URL is not looked at.

    Args:
        folder: of the build.
        artifacts: of the variants that were made.
        kept: other files that the registry will take.

    Raises:
        BuildError: a disk has too little, with what is needed and what is free.
    """
    sizes = {path: path.stat().st_size for path in artifacts}
    needs = [(folder, "the load rounds", sum(sizes.values()) + _RECORDS_BYTES)]
    if registry.folder is not None:
        new = sum(size for path, size in sizes.items() if not registry.holds(path))
        size_bytes = new + sum(path.stat().st_size for path in kept) + _RECORDS_BYTES
        needs.append((_existing(registry.folder), f"the registry {registry.url}", size_bytes))
    disks: dict[int, list[tuple[Path, str, int]]] = {}
    for need in needs:
        disks.setdefault(need[0].stat().st_dev, []).append(need)
    for wanted in disks.values():
        needed, free = sum(size_bytes for *_, size_bytes in wanted), free_bytes(wanted[0][0])
        if free < needed:
            each = " and ".join(f"{_mib(size_bytes)} for {what}" for _, what, size_bytes in wanted)
            raise BuildError(
                f"the disk of {wanted[0][0]} has too little free space: {each} are needed, {_mib(free)} are free",
                hint=f"free {_mib(needed - free)} there, set TMPDIR or registry.path to a folder on another disk, or "
                "build fewer variants with --recipes; the registry is unchanged",
            )


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return folder if folder.is_dir() else _existing(folder.parent)


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f} MiB"


def none_left(what: str, folder: Path, error: BaseException) -> BuildError:
    """Return the error for ``what``, which could not write to ``folder``."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error).strip().partition("\n")[0]
    return BuildError(f"{what} cannot write to {folder}: {why}; {free_bytes(folder)} bytes are free", hint=WAY_OUT)


def is_full(error: BaseException, folder: Path) -> bool:
    """Tell whether an exception comes from a disk without room, or may well do."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _FULL
    return free_bytes(folder) < LEAST_BYTES


def free_bytes(folder: Path) -> int:
    """Room on the disk of a folder."""
    return shutil.disk_usage(folder).free
