"""Which field of the pilot's replies belongs to which output of the deployment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tailcut.errors import ManifestError
from tailcut.parity.analysis.paths import FieldPath, output_name, output_path, parse_path, plain_name


class FieldPair(NamedTuple):
    """Two fields that are compared.

    Attributes:
        theirs: path in the pilot's reply.
        ours: path in one prediction of the deployment.
        why: how the pair came about.
    """

    theirs: FieldPath
    ours: FieldPath
    why: str

    @property
    def name(self) -> str:
        """Name of the output."""
        return output_name(self.ours)


def parse_pair(text: str) -> FieldPair:
    """Read ``pilot.path=output``.

    Raises:
        ManifestError: it is no pair of paths.
    """
    theirs, equals, ours = text.rpartition("=")
    if not equals or not theirs or not ours:
        raise ManifestError(f"the mapping is {text!r}", hint="write PILOT.PATH=OUTPUT, such as scores[].late=risk")
    return FieldPair(parse_path(theirs), output_path(ours), "given")


def same_names(theirs: Sequence[FieldPath], ours: Sequence[FieldPath]) -> list[FieldPair]:
    """Pair the fields whose last keys are equal, apart from case and punctuation, and occur once on each side."""
    first, second = ([plain_name(path.name) for path in side] for side in (theirs, ours))
    return [
        FieldPair(theirs[first.index(name)], path, "same name")
        for path, name in zip(ours, second, strict=True)
        if name and first.count(name) == second.count(name) == 1
    ]


def within(outer: FieldPath, path: FieldPath) -> bool:
    """Whether one of two paths begins with the other."""
    length = min(len(outer.steps), len(path.steps))
    return outer.steps[:length] == path.steps[:length]
