"""The user's code that a deployment runs, as a list of hashes: what it is, and what differs between two. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Set

import msgspec
from msgspec.structs import replace

SOURCE_FILES = "model.source/"
"""How names of data files begin that lie in the folder that ``model.source`` names."""


class CodeFile(msgspec.Struct, frozen=True, kw_only=True):
    """One Python file of the user's.

    Attributes:
        sha256: of the file.
        file: where it lies, from the manifest's folder: for people, and no part of any hash.
    """

    sha256: str
    file: str


class Distribution(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An installed distribution."""

    version: str


class Code(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The user's code of a deployment. Nothing in it depends on the folder where it lies, ``CodeFile.file`` apart.

    Attributes:
        modules: by dotted name.
        data: SHA-256 of each file of ``model.files``, by its path from the manifest's folder, and of the small files
            of a folder that ``model.source`` names.
        distributions: by name.
    """

    modules: dict[str, CodeFile] = {}
    data: dict[str, str] = {}
    distributions: dict[str, Distribution] = {}


def digest(code: Code) -> bytes:
    """Return 16 bytes that change with every module, data file and version of a distribution."""
    content = (
        sorted((name, each.sha256) for name, each in code.modules.items()),
        sorted(code.data.items()),
        sorted((name, each.version) for name, each in code.distributions.items()),
    )
    return hashlib.blake2b(msgspec.msgpack.encode(content), digest_size=16).digest()


def identity(code: Code) -> str:
    """Return the SHA-256 of modules and data: what tells two builds of the same artifacts apart."""
    content = (sorted((name, each.sha256) for name, each in code.modules.items()), sorted(code.data.items()))
    return hashlib.sha256(msgspec.msgpack.encode(content)).hexdigest()


def without_modules(code: Code) -> Code:
    """Return what a variant depends on that runs no Python code of the user's: data files."""
    return replace(code, modules={}, distributions={})


def differing(wanted: Code, there: Code, imported: Set[str] = frozenset()) -> tuple[str, ...]:
    """Name the files of the modules, and the data files, that differ; distributions do not count.

    Another version of a distribution cannot be had by a restart, and does not make a record unfit to be served. Other
    modules that only one has do not count: a server needs no training code.

    Args:
        imported: modules that differ where they are not there: ``try: import fast`` runs without them, otherwise.
    """
    named = sorted(wanted.modules.keys() & {*there.modules, *imported})
    hashes = {name: each.sha256 for name, each in there.modules.items()}
    modules = [wanted.modules[name].file for name in named if wanted.modules[name].sha256 != hashes.get(name)]
    data = [name for name in sorted({*wanted.data, *there.data}) if wanted.data.get(name) != there.data.get(name)]
    return (*modules, *data)


def few(names: tuple[str, ...], most: int = 3) -> str:
    """Name the first few, and count the others."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
