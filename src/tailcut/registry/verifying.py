"""Checks everything that a registry holds: records, artifacts, kept files and pointers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tailcut.errors import ArtifactError, NotServable
from tailcut.registry import checking
from tailcut.registry.checking import Trial
from tailcut.registry.documents import POINTER
from tailcut.registry.reading import Reader


class Verifier(Reader):
    """Verifies a registry; use ``Registry``."""

    def verify(self, trial: Trial | None = None) -> Iterator[tuple[str, ArtifactError | None]]:
        """Check every record, artifact and pointer; yield what was checked, and what is wrong with it.

        A variant that is whole and cannot be served here has a NotServable; one that is promoted, another error.

        Args:
            trial: opens a variant whose artifact is whole; None: none is opened.
        """
        for model in self.models():
            served: tuple[str, str] | None = None
            try:
                served = self._served(model)
            except ArtifactError as error:
                yield f"{model} {POINTER}", _broken_promise(error)
            for each in self._ids(model):
                try:
                    record = self.version(model, each)
                except ArtifactError as error:
                    yield f"{model} {each}", error
                    continue
                for name, kept in record.files.items():
                    yield checking.outcome(
                        f"{model} {each} file {name} {kept.sha256}", partial(self.file, record, name)
                    )
                for name, found in record.variants.items():
                    if found.sha256:
                        what, problem = checking.outcome(
                            f"{model} {each} {name} {found.sha256}",
                            partial(self._checked, record, name),
                            trial and partial(trial, record, name),
                        )
                        yield what, _broken_promise(problem) if problem and served == (each, name) else problem

    def _served(self, model: str) -> tuple[str, str] | None:
        """Return version and variant of what is promoted, which is there; None where nothing is.

        Raises:
            ArtifactError: the pointer is corrupt, or leads to what is not there or is not served any more.
        """
        promotion = self.promotion(model)
        if promotion is None:
            return None
        record = self.version(model, promotion.version)
        checking.refuse_retired(record)
        checking.built(record, promotion.variant)
        return promotion.version, promotion.variant


def _broken_promise(error: ArtifactError) -> ArtifactError:
    """Return the error of what is promoted: that it cannot be served is a fault of the registry then."""
    if not isinstance(error, NotServable):
        return error
    return ArtifactError(f"{error.message}; it is promoted", hint=error.hint, detail=error.detail)
