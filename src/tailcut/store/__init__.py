"""Durable rows in an embedded SQLite file: one writer thread of one process, bounded size."""

from tailcut.store.sqlite_file import Schema, SqliteFile
from tailcut.store.writer import StoreWriter, WriterFigures

__all__ = ["Schema", "SqliteFile", "StoreWriter", "WriterFigures"]
