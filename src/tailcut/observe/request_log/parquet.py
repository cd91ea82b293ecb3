"""Request logs as Parquet: a complete file of JSON lines is converted. Needs pyarrow.

A Parquet file is of no use without its end, which a kill would leave out. So lines are written first, and a file is
converted when it is complete; of a file that was not converted nothing is lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tailcut.observe.request_log.record import LoggedTensor, Record, decode_line

_GROUP_BYTES = 16 << 20
_AT_ONCE, _AT_ONCE_BYTES = 8, 1 << 14
"""Lines that are converted in one go, about a millisecond; the interpreter is then left to the event loop."""
_PAUSE_S = 0.002

_JSON = ("inputs", "rows", "entities", "outputs", "predictions")
"""Columns that are JSON, as in the lines: their form is the model's, and every value in it stays exact."""

_SCHEMA = pa.schema(
    [
        ("tailcut_log", pa.int32()), ("time", pa.string()), ("time_ns", pa.int64()), ("offset_ns", pa.int64()),
        ("run", pa.string()), ("model", pa.string()), ("route", pa.string()), ("code", pa.string()),
        ("status", pa.int32()), ("probability", pa.float64()), ("variant", pa.string()), ("version", pa.string()),
        ("cache", pa.string()), ("tenant", pa.string()), ("priority", pa.int64()), ("deadline_ms", pa.float64()),
        ("asked_ms", pa.float64()), ("request_id", pa.string()), ("trace", pa.string()), ("encoding", pa.string()),
        ("wanted", pa.list_(pa.string())), ("total_ns", pa.int64()), ("timings_ns", pa.map_(pa.string(), pa.int64())),
        *((name, pa.string()) for name in _JSON),
        ("hashed", pa.list_(pa.string())), ("dropped", pa.list_(pa.string())), ("redacted", pa.list_(pa.string())),
    ]
)  # fmt: skip


def convert(path: Path, pause: Callable[[float], object]) -> Path:
    """Turn a complete .jsonl file into a .parquet file, which appears whole, and delete it; a torn line is left out.

    Args:
        pause: called between parts of the work with the seconds to leave to others; what it raises ends the work, and
            the file stays as it was.

    Raises:
        OSError: it cannot be read, or the other one not be written.
    """
    target = path.with_suffix(".parquet")
    part = path.with_suffix(".part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file, pq.ParquetWriter(file, _SCHEMA, compression="zstd") as writer:
            batches: list[Any] = []
            size_bytes = 0
            for batch in _batches(path):
                pause(_PAUSE_S)
                batches.append(batch)
                size_bytes += batch.nbytes
                if size_bytes >= _GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(batches, _SCHEMA))
                    batches, size_bytes = [], 0
            if batches:
                writer.write_table(pa.Table.from_batches(batches, _SCHEMA))
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    path.unlink(missing_ok=True)
    return target


def read(path: Path) -> Iterator[Record]:
    """Yield the records of a file; raises OSError or pyarrow's own errors where it is none."""
    decoders: dict[str, Any] = {name: msgspec.json.Decoder(list[Any]) for name in _JSON}
    decoders |= {name: msgspec.json.Decoder(list[LoggedTensor]) for name in ("inputs", "outputs")}
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                row["timings_ns"] = dict(row["timings_ns"] or ())
                for name in _JSON:
                    if row[name] is not None:
                        row[name] = decoders[name].decode(row[name])
                yield Record(**row)


def _batches(path: Path) -> Iterator[Any]:
    """Yield a file's records in small batches of Arrow."""
    rows: list[dict[str, Any]] = []
    size_bytes = 0
    with path.open("rb") as file:
        for line in file:
            try:
                rows.append(_row(decode_line(line)))
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            size_bytes += len(line)
            if len(rows) == _AT_ONCE or size_bytes >= _AT_ONCE_BYTES:
                yield pa.RecordBatch.from_pylist(rows, _SCHEMA)
                rows, size_bytes = [], 0
    if rows:
        yield pa.RecordBatch.from_pylist(rows, _SCHEMA)


def _row(record: Record) -> dict[str, Any]:
    row = {name: getattr(record, name) for name in _SCHEMA.names}
    for name in _JSON:
        if row[name] is not None:
            row[name] = _encode(row[name]).decode()
    return row


_encode = msgspec.json.Encoder().encode
