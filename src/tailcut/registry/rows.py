"""Rows of the holdout that are kept with a version, as the model takes them: to warm up, to check and to verify with.

The file is a .npz without pickle. It holds an array per input, named as the input is; text is UTF-8 in one run of
bytes, with the place where each text ends. It holds no labels and no keys of entities.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile

import numpy as np

from tailcut.common.tensors import Array, Arrays
from tailcut.errors import ArtifactError
from tailcut.registry.padding import trimmed

if TYPE_CHECKING:
    from tailcut.registry.records import Variant, Version
    from tailcut.registry.store import Registry

ROWS = "rows"
"""Name of the file beside a version's artifacts; see ``Registry.file``."""

_INPUT, _TEXT, _ENDS, _PADDING = "input/", "text/", "ends/", "padding"
_LOST = "surrogatepass"
"""Half a surrogate pair is no UTF-8, and a text of the holdout may hold it: it comes back as it was."""


@dataclass(frozen=True)
class KeptRows:
    """Rows as the model takes them.

    Attributes:
        inputs: input name -> (rows, ...), at least one row; BYTES as objects of text.
        padding: name of the input that is 0 where there is padding; empty: nothing is padding.
    """

    inputs: Arrays
    padding: str = ""

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(next(iter(self.inputs.values())))

    def at(self, places: Iterable[int]) -> Arrays:
        """Return the rows at ``places`` as a batch, without what is padding in all of them."""
        wanted = np.fromiter(places, np.intp)
        return trimmed({name: array[wanted] for name, array in self.inputs.items()}, self.padding)

    def save(self, path: Path) -> None:
        """Write the rows; the same rows give the same bytes."""
        arrays: Arrays = {}
        for name, array in self.inputs.items():
            if array.dtype.hasobject:
                texts = [str(value).encode(errors=_LOST) for value in array.ravel().tolist()]
                arrays[f"{_TEXT}{name}"] = np.frombuffer(b"".join(texts), np.uint8)
                arrays[f"{_ENDS}{name}"] = np.cumsum([len(text) for text in texts], dtype=np.int64).reshape(array.shape)
            else:
                arrays[f"{_INPUT}{name}"] = array
        if self.padding:
            arrays[_PADDING] = np.array(self.padding)
        with path.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # the stub takes any keyword for allow_pickle

    @staticmethod
    def load(path: Path) -> KeptRows:
        """Read what ``save`` wrote.

        Raises:
            ArtifactError: the file holds something else.
        """
        try:
            with np.load(path, allow_pickle=False) as arrays:
                found = {name: arrays[name] for name in arrays.files}
            inputs = dict(_inputs(found))
            if len({len(array) for array in inputs.values()}) != 1:
                raise ValueError(f"its inputs have {[len(array) for array in inputs.values()]} rows")
        except (OSError, EOFError, ValueError, TypeError, KeyError, BadZipFile) as error:
            raise ArtifactError(
                f"the kept rows in {path} cannot be read: {error}",
                hint="run `tailcut build` again; a later tailcut may have written the file",
            ) from error
        return KeptRows(inputs, str(found.get(_PADDING, "")))


def kept_rows(registry: Registry, of: Version | Variant) -> KeptRows | None:
    """Return the rows that a version keeps; None where it keeps none (``holdout.keep = 0``).

    Args:
        of: the version, or a variant of it.

    Raises:
        ArtifactError: their file is missing, truncated or corrupt, or cannot be read.
    """
    path = registry.file(of, ROWS)
    return None if path is None else KeptRows.load(path)


def _inputs(arrays: Arrays) -> Iterator[tuple[str, Array]]:
    for name, array in arrays.items():
        kind, _, of = name.partition("/")
        if f"{kind}/" == _INPUT:
            yield of, array
        elif f"{kind}/" == _TEXT:
            yield of, _texts(array.tobytes(), arrays[f"{_ENDS}{of}"])


def _texts(content: bytes, ends: Array) -> Array:
    places = [0, *ends.ravel().tolist()]
    found: Array = np.empty(ends.size, object)
    found[:] = [content[at:end].decode(errors=_LOST) for at, end in pairwise(places)]
    return found.reshape(ends.shape)
