"""The downstream task: which topic is a passage of documentation about? Classes, and the modules they are read from."""

from __future__ import annotations

STANDARD_LIBRARY = "python"
"""Stands for the folder of Python's own modules."""

TOPICS: dict[str, tuple[str, ...]] = {
    "services": (
        *("python/email", "python/http", "python/urllib", "python/xmlrpc", "python/wsgiref", "python/imaplib"),
        *("python/smtplib", "python/ftplib", "python/mailbox", "python/ipaddress", "python/ssl", "python/socketserver"),
        *("python/asyncio", "python/multiprocessing", "python/threading", "python/concurrent", "python/subprocess"),
        *("python/queue", "python/selectors", "python/signal", "python/sched"),
    ),
    "graphics": (
        *("python/tkinter", "python/idlelib", "python/turtle", "matplotlib/widgets", "matplotlib/backend_bases"),
        *("matplotlib/axes", "matplotlib/figure", "matplotlib/colors", "matplotlib/ticker", "matplotlib/patches"),
    ),
    "language": (
        *("python/importlib", "python/inspect", "python/typing", "python/lib2to3", "python/enum", "python/ast"),
        *("python/dis", "python/pydoc", "python/functools", "python/types", "python/dataclasses", "python/abc"),
        *("python/unittest", "python/doctest", "python/pdb", "python/bdb", "numpy/testing", "pandas/_testing"),
    ),
    "data": (
        *("numpy/lib", "numpy/_core", "numpy/ma", "pandas/core", "pandas/io", "scipy/io"),
        *("python/csv", "python/json", "python/zipfile", "python/tarfile"),
    ),
    "mathematics": (
        *("numpy/polynomial", "scipy/interpolate", "scipy/stats", "scipy/optimize", "scipy/signal", "scipy/fft"),
        *("numpy/fft", "scipy/ndimage", "scipy/linalg", "numpy/linalg", "scipy/sparse"),
    ),
    "learning": ("sklearn",),
}
"""Topic -> modules or packages whose docstrings are about it."""

NAMES = tuple(TOPICS)
"""The classes, in the order of their numbers."""
