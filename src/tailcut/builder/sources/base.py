"""What a source is: a kind of model that a build can start from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tailcut.builder.bounds import FoundBounds
from tailcut.builder.holdouts.holdout import Holdout
from tailcut.builder.recipes.base import Result
from tailcut.manifest import Manifest
from tailcut.registry.evidence import RecipeEvidence, Settings


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What ``make`` of a source tells the builder: enough to choose recipes and to open the source variant.

    Attributes:
        kind: key of ``sources.SOURCES``.
        variant: name of the variant that it is: the reference of every quality verdict.
        runtime: key of ``open_runtime``.
        trees: whether the model is an ensemble of trees.
        path: the artifact.
        settings: of the runtime.
        found: how it was made.
        limits: that it proves of its inputs.
        live_code: references to code that it cannot be opened without; empty where the artifact is enough.
    """

    kind: str
    variant: str
    runtime: str
    trees: bool = False
    path: str
    settings: Settings = {}
    found: RecipeEvidence = RecipeEvidence()
    limits: FoundBounds = FoundBounds()
    live_code: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourceWork:
    """What a source works with, inside a child process.

    Attributes:
        manifest: the deployment's.
        model: what ``model.source`` gave where it is a callable (a module, an estimator), else None.
        path: of ``model.source`` where it is a file or folder, else None.
        folder: where the artifact goes.
        selection: the holdout's selection split.
    """

    manifest: Manifest
    model: Any
    path: Path | None
    folder: Path
    selection: Holdout


class SourceKind(ABC):
    """A kind of source model.

    Attributes:
        kind: its name, unique.
        variant: name of the variant that runs it as it is.
        runtime: key of ``open_runtime``.
        suffix: of the artifact's file.
    """

    kind: str
    variant: str
    runtime: str
    suffix: str

    @abstractmethod
    def matches(self, model: Any, path: Path | None) -> bool:
        """Tell whether this is the kind of ``model`` (or of the file at ``path``); imports no package for it."""

    def trees(self, model: Any) -> bool:
        """Tell whether the model is an ensemble of trees: not so of most kinds."""
        return False

    @abstractmethod
    def make(self, work: SourceWork, artifact: Path) -> Result:
        """Write the artifact that the source variant is opened from."""
