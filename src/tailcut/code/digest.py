"""The user's code that a deployment runs, as a list of hashes: what it is, and what differs between two. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Literal

import msgspec

Role = Literal["serving", "source"]
"""serving: reached from hooks and feature functions, so that every variant runs it; source: reached from
``model.source`` only, so that only a variant that runs the user's own object does."""

SOURCE_FILES = "model.source/"
"""How names of data files begin that lie in the folder that ``model.source`` names."""


class CodeFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One module of the user's code.

    Attributes:
        sha256: of the file.
        role: what runs it.
        file: where it lies, from the manifest's folder: for people, and no part of any hash.
    """

    sha256: str
    role: Role = "serving"
    file: str = ""


class Distribution(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An installed distribution that the user's code imports."""

    version: str
    role: Role = "serving"


class Code(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The user's code of a deployment. Nothing in it depends on the folder where it lies, ``CodeFile.file`` apart.

    Attributes:
        modules: by dotted name.
        data: SHA-256 of each file of ``model.files``, by its path from the manifest's folder, and of the small files
            of a folder that ``model.source`` names.
        distributions: by name.
        cut: whether there was more code than is looked through.
    """

    modules: dict[str, CodeFile] = {}
    data: dict[str, str] = {}
    distributions: dict[str, Distribution] = {}
    cut: bool = False

    def part(self, *, live: bool) -> Code:
        """What a variant runs.

        Args:
            live: whether it runs the user's own object; otherwise the code of ``model.source`` is left out.
        """
        if live:
            return self
        return msgspec.structs.replace(
            self,
            modules={name: each for name, each in self.modules.items() if each.role == "serving"},
            distributions={name: each for name, each in self.distributions.items() if each.role == "serving"},
        )


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


def differing(wanted: Code, there: Code) -> tuple[str, ...]:
    """Name the modules and data files that differ, as files where they are known to be; distributions do not count.

    Another version of a distribution cannot be had by a restart, and does not make a record unfit to be served.
    """
    ours = {name: each.sha256 for name, each in wanted.modules.items()}
    theirs = {name: each.sha256 for name, each in there.modules.items()}
    modules = _unlike(ours, theirs)
    return tuple([*(shown(name, wanted, there) for name in modules), *_unlike(wanted.data, there.data)])


def shown(name: str, *codes: Code) -> str:
    """Return the file of a module where it is known, else its name."""
    found = (code.modules[name].file for code in codes if name in code.modules)
    return next(filter(None, found), name)


def few(names: tuple[str, ...], most: int = 3) -> str:
    """Name the first few, and count the others."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def _unlike(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    return sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
