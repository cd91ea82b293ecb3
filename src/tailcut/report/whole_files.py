"""Writes the files of reports whole or not at all."""

from __future__ import annotations

from pathlib import Path

from tailcut.errors import LoadTestError


def write_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; its folders are made.

    Raises:
        LoadTestError: it cannot be written.
    """
    scratch = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_bytes(content)
        scratch.replace(path)
    except OSError as error:
        raise LoadTestError(f"cannot write {path}: {error.strerror}", hint="choose a writable folder") from error
