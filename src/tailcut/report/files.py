"""Results as JSON files: every table, page and picture of a result is made from its file alone."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from tailcut.errors import LoadTestError
from tailcut.system.atomic_files import write_file

R = TypeVar("R", bound=msgspec.Struct)


class _Numbered(msgspec.Struct):
    schema: int


def write_json(path: Path, value: object) -> None:
    """Write a result whole or not at all; a value that JSON does not have becomes its text.

    Raises:
        LoadTestError: the file cannot be written.
    """
    write_file(path, msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=1) + b"\n")


def read_result(path: Path, kind: type[R], schema: int, command: str) -> R:
    """Read what ``write_json`` wrote.

    Args:
        kind: of the result; it has the number of its form as ``schema``.
        schema: the number that is read.
        command: that writes such files.

    Raises:
        LoadTestError: the file is missing, holds something else, or has another number.
    """
    try:
        content = path.read_bytes()
        found = msgspec.json.decode(content, type=_Numbered).schema
        if found == schema:
            return msgspec.json.decode(content, type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise LoadTestError(
            f"cannot read a result of `{command}` from {path}: {error}", hint=f"give a file written by `{command}`"
        ) from error
    raise LoadTestError(f"{path} has schema {found}, but this tailcut reads {schema}", hint=f"run `{command}` again")
