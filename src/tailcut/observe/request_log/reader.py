"""Reads a request log: a file of it, or the folder, also while a server writes to it."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from tailcut.common.extras import install
from tailcut.errors import LoadTestError, MissingExtra
from tailcut.observe.request_log.record import FIRST, FORM, Record, decode_line
from tailcut.observe.request_log.sink import names_of

log = logging.getLogger("tailcut.request_log")


Tell = Callable[[str], object]


def is_request_log(path: Path) -> bool:
    """Tell whether a path is a request log: a folder with files of one, or one of its files."""
    if path.is_dir():
        return any(names_of().fullmatch(each.name) for each in path.iterdir())
    if not path.is_file():  # reading a pipe would take from it, and wait
        return False
    try:
        if path.suffix == ".parquet":
            return True
        with path.open("rb") as file:
            begin = file.read(1 << 16)
    except OSError:
        return False
    if path.suffix == ".gz":
        with suppress(zlib.error):
            begin = zlib.decompressobj(wbits=31).decompress(begin, len(FIRST))
    return begin.startswith(FIRST)


def read_log(path: Path, tell: Tell = log.warning) -> list[Record]:
    """Read all records of a log, in the order of arrival.

    Args:
        path: a file, or a folder; of a folder all models.
        tell: is told of what was left out: torn lines, and files that were deleted meanwhile.

    Raises:
        LoadTestError: it is no log, or a line in the middle of a file is none; MissingExtra: pyarrow is not installed.
    """
    found = [record for file in _files(path) for record in _read(file, tell)]
    if not found:
        raise LoadTestError(
            f"the request log {path} has no records", hint="name a folder or file that request_log.path of a server has"
        )
    found.sort(key=lambda record: record.time_ns)
    return found


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(each for each in path.iterdir() if names_of().fullmatch(each.name))
    whole = {each.with_suffix("") for each in found if each.suffix == ".parquet"}
    return [each for each in found if each.suffix == ".parquet" or each.with_suffix("") not in whole]


def _read(path: Path, tell: Tell) -> Iterator[Record]:
    try:
        if path.suffix == ".parquet":
            yield from _parquet(path)
            return
        raw = path.read_bytes()
    except FileNotFoundError:
        other = path.with_suffix(".parquet")
        if path.suffix == ".jsonl" and other.exists():  # converted since it was listed
            yield from _parquet(other)
        else:
            tell(f"{path} was deleted while the log was read")
        return
    except OSError as error:
        raise LoadTestError(f"cannot read the request log {path}: {error.strerror}") from error
    if path.suffix == ".gz":
        raw, is_torn = _inflated(raw)
        if is_torn:
            tell(f"the end of {path} is torn, as a kill leaves it: what came last is left out")
    yield from _lines(path, raw, tell)


def _lines(path: Path, raw: bytes, tell: Tell) -> Iterator[Record]:
    lines = raw.split(b"\n")
    torn = lines.pop()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = decode_line(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _no_record(number, path, error) from None
        if record.tailcut_log != FORM:
            raise LoadTestError(
                f"line {number} of {path} has the form {record.tailcut_log}, this tailcut reads {FORM}",
                hint="read it with the version that wrote it",
            )
        try:
            record.check()
        except ValueError as error:
            raise _no_record(number, path, error) from None
        yield record
    if torn:
        tell(f"the last line of {path} is torn, as a kill or a write in progress leaves it: it is left out")


def _no_record(number: int, path: Path, error: Exception) -> LoadTestError:
    return LoadTestError(
        f"line {number} of {path} is no record of a request log: {error}",
        hint="give files as `tailcut serve` writes them (request_log.path)",
    )


def _parquet(path: Path) -> Iterator[Record]:
    try:
        from tailcut.observe.request_log import parquet
    except ImportError as error:
        raise MissingExtra(f"{path} is Parquet, but pyarrow is not installed", hint=install("pyarrow")) from error
    try:
        for record in parquet.read(path):
            record.check()
            yield record
    except (OSError, ValueError, TypeError, KeyError, msgspec.DecodeError) as error:  # pyarrow's are among them
        raise LoadTestError(
            f"cannot read the request log {path}: {error}", hint="give files as `tailcut serve` writes them"
        ) from error


def _inflated(raw: bytes) -> tuple[bytes, bool]:
    """Return the content of the gzip members that are whole, and whether the last one is not."""
    parts: list[bytes] = []
    while raw:
        member = zlib.decompressobj(wbits=31)
        try:
            part = member.decompress(raw)
        except zlib.error:
            return b"".join(parts), True
        if not member.eof:
            return b"".join(parts), True
        parts.append(part)
        raw = member.unused_data
    return b"".join(parts), False
