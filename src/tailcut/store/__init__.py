"""Durable rows in an embedded SQLite file: one writer thread, any number of processes, bounded size."""

from tailcut.store.sqlite_file import Schema, SqliteFile
from tailcut.store.writer import StoreWriter, WriterFigures

__all__ = ["Schema", "SqliteFile", "StoreWriter", "WriterFigures"]
