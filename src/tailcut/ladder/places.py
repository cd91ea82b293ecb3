"""What a ladder's file calls the folders of the machine: a result that is shown elsewhere names none of them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from tailcut.report.ladder.file import LadderRecord

# A path begins where nothing of a path stands before it, or after the slashes of a URL without a host.
_BEFORE = r"(?:(?<![\w./~-])|(?<=:///))"
# It goes on below the folder, or ends there.
_AFTER = r"(?:(?P<below>/)(?=[^\s/'\"`,;:)\]}>])|/?(?![\w/-]|\.\w))"


def machine_places(directory: Path) -> dict[str, str]:
    """Names for this machine's folders, and for the interpreter where it is elsewhere.

    Args:
        directory: the manifest's.

    Returns:
        absolute paths to what stands for them: paths below the working directory become relative to it, those below
        the manifest's directory too, those at home begin with "~".
    """
    here = os.getcwd()
    found = {os.path.expanduser("~"): "~", str(directory): os.path.relpath(directory, here), here: "."}
    if not Path(sys.executable).is_relative_to(here):
        found[sys.executable] = "python"
    return {path: name for path, name in found.items() if len(path) > 1}


def renamed(text: str, places: Mapping[str, str]) -> str:
    """Put names in place of paths, the innermost first.

    Args:
        text: a command line, a list of variables, a message.
        places: as ``machine_places`` has them.
    """
    for path in sorted(places, key=len, reverse=True):
        name = places[path]
        below = "" if name == "." else f"{name}/"
        text = re.sub(
            f"{_BEFORE}{re.escape(path)}{_AFTER}",
            lambda found, name=name, below=below: below if found["below"] else name,  # type: ignore[misc]
            text,
        )
    return text


def without_places(record: LadderRecord, places: Mapping[str, str]) -> LadderRecord:
    """Rename in every text of a record."""
    return msgspec.convert(_walked(msgspec.to_builtins(record), places), LadderRecord)


def _walked(value: Any, places: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return renamed(value, places)
    if isinstance(value, dict):
        return {key: _walked(one, places) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_walked(one, places) for one in value]
    return value


class FileNames:
    """Names of files for names of rungs: two that differ in punctuation only get different ones."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def of(self, name: str) -> str:
        """The name without punctuation, and with a number where another one has taken that; the same every time."""
        if name not in self._names:
            plain = "".join(char if char.isalnum() else "-" for char in name).strip("-") or "rung"
            taken = {each.casefold() for each in self._names.values()}
            numbers = (f"{plain}{f'-{number}' if number > 1 else ''}" for number in count(1))
            self._names[name] = next(each for each in numbers if each.casefold() not in taken)
        return self._names[name]
