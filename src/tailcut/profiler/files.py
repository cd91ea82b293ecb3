"""Recordings as files."""

from __future__ import annotations

from pathlib import Path

from tailcut.errors import ProfileError
from tailcut.profiler.records import Recording, decode_recording, encode_recording


def save_recording(recording: Recording, path: Path) -> None:
    """Write a recording as one file.

    Raises:
        ProfileError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_recording(recording))
    except OSError as error:
        raise ProfileError(f"cannot write {path}: {error.strerror}", hint="choose a writable folder") from error


def load_recording(path: Path) -> Recording:
    """Read what ``save_recording`` wrote.

    Raises:
        ProfileError: the file is missing, holds something else, or is another version's.
    """
    try:
        return decode_recording(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ProfileError(
            f"cannot read a recording from {path}: {error}", hint="give a file written by tailcut profile"
        ) from error
