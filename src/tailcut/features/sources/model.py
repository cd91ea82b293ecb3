"""Feature groups whose columns another model of the same server computes: an embedding of a text, say."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tailcut.errors import (
    BadRequest,
    DeadlineExceeded,
    ExecutorLost,
    FeatureError,
    FeatureUnavailable,
    NotReady,
    OutputsError,
    Shed,
    TailcutError,
    UnknownEntity,
    WrongFields,
)
from tailcut.features.key_types import ANY, KeyType
from tailcut.features.sources.base import (
    Answer,
    Key,
    KeyRefused,
    ModelDown,
    ModelFailed,
    ModelMisfit,
    SourceContext,
    SourceDown,
    SourceError,
    SourceShed,
    StaleValues,
    Values,
    exact_values,
)
from tailcut.observe.traces.trace_context import CallerSpan

_OF_ALL_ROWS = (Shed, WrongFields, OutputsError, FeatureError, NotReady, ExecutorLost, DeadlineExceeded)
"""Errors that have nothing to do with the rows. Any other one may be that of a single row."""


class ServedModel(Protocol):
    """Another model of the server, as a feature group sees it."""

    @property
    def version(self) -> bytes:
        """Of what answers now, or answered last; empty where nothing has yet. Another version has other answers."""
        ...

    @property
    def timeout_s(self) -> float:
        """Longest time that it takes for an answer."""
        ...

    @property
    def most_rows(self) -> int:
        """Rows that one call should have at most: those of a full batch."""
        ...

    async def predict(
        self, rows: Sequence[dict[str, Any]], deadline_s: float, tenant: str, caller: CallerSpan | None
    ) -> tuple[list[Any], bool]:
        """Answer rows by the model's own scheduler and caches.

        Args:
            deadline_s: by the monotonic clock.
            caller: the span that asks; None where it is not traced.

        Returns:
            one value per row, and whether one was made from features past their TTL.

        Raises:
            TailcutError: why there is no answer.
        """
        ...


class ModelSource:
    """One feature group's model: each key is a row, whose fields are the key's columns.

    A column is an output of the model, or a field of what its postprocess answers. A model that answers with one value
    per row fills a group of one column with it. Lists and arrays are vectors.

    Args:
        name: of the model.
    """

    table_types: tuple[KeyType, ...] = ()

    def __init__(self, model: ServedModel, key: tuple[str, ...], columns: tuple[str, ...], name: str) -> None:
        self._model = model
        self._key = key
        self._columns = columns
        self._where = f"model {name!r}"
        self.key_types: tuple[KeyType, ...] = (ANY,) * len(key)

    @property
    def version(self) -> bytes:
        """See ``ServedModel.version``."""
        return self._model.version

    async def fetch(self, keys: Sequence[Key], context: SourceContext) -> list[Answer]:
        """Answer for all keys with one call of the model per full batch.

        The model admits or sheds each call by itself, so that many keys at once get as many answers as it has room for.
        """
        rows = [dict(zip(self._key, key, strict=True)) for key in keys]
        most = self._model.most_rows
        parts = [rows[start : start + most] for start in range(0, len(rows), most)]
        return await self._ask(rows, context) if len(parts) == 1 else await self._ask_each(parts, context)

    async def _ask_each(self, parts: Sequence[Sequence[dict[str, Any]]], context: SourceContext) -> list[Answer]:
        """Ask for all parts at once. An error is that of its part alone, unless no part is answered."""
        found = await asyncio.gather(*(self._ask(part, context) for part in parts), return_exceptions=True)
        errors = [each for each in found if isinstance(each, BaseException)]
        for error in errors:
            if len(errors) == len(parts) or not isinstance(error, SourceError):
                raise error
        answers: list[Answer] = []
        for part, each in zip(parts, found, strict=True):
            answers += each if isinstance(each, list) else [each] * len(part)  # type: ignore[list-item]  # see above
        return answers

    async def _ask(self, rows: Sequence[dict[str, Any]], context: SourceContext) -> list[Answer]:
        """Ask for rows together; where that fails and one of them may be the cause, for each alone.

        The model puts rows that are asked for alone into batches again.
        """
        try:
            answers, is_stale = await self._model.predict(rows, context.deadline_s, context.tenant, context.caller)
        except _OF_ALL_ROWS as error:
            raise self._down(error) from error
        except TailcutError as error:
            if len(rows) == 1:
                return [self._of_row(error)]
        else:
            found = [self._values(answer) for answer in answers]
            return [StaleValues(each) if is_stale and isinstance(each, tuple) else each for each in found]
        return await self._ask_each([[row] for row in rows], context)

    def _down(self, error: TailcutError) -> SourceDown:
        """Return the error of all rows."""
        if isinstance(error, Shed):
            return SourceShed(f"{self._where}: {error.message}", error.retry_after_s)
        if isinstance(error, WrongFields):
            said = f"{self._where} does not take the key {list(self._key)}: {error.message}"
            return ModelMisfit(said, f"correct the group's key, and load this model again; {error.hint}")
        if isinstance(error, DeadlineExceeded):
            return ModelDown(f"{self._where} did not answer in time: {error.message}", self._late_hint())
        return ModelDown(f"{self._where}: {error.message}", error.hint)

    def _of_row(self, error: TailcutError) -> Answer:
        """Return the answer for a row that was asked for alone.

        Raises:
            ModelDown: the model's own source failed, most likely for all rows.
        """
        if isinstance(error, UnknownEntity):
            return None
        if isinstance(error, FeatureUnavailable):
            raise self._down(error) from error
        said = f"{self._where}: {error.message}"
        answer = KeyRefused(said) if isinstance(error, BadRequest) else ModelFailed(said, error.hint)
        answer.__cause__ = error
        return answer

    async def fetch_all(self, context: SourceContext) -> list[tuple[Key, Values]]:
        """Refuse: a model has no table."""
        raise SourceDown(f"{self._where} cannot be preloaded")

    def _late_hint(self) -> str:
        limits = f"features.timeout and slo.timeout of {self._where} ({self._model.timeout_s:g} s)"
        return f"raise the shorter one of {limits}, or make {self._where} faster"

    def _values(self, answer: Any) -> Answer:
        hint = "correct the group's columns, and load this model again"
        if not isinstance(answer, Mapping):
            if len(self._columns) > 1:
                named = list(self._columns)
                return ModelMisfit(f"{self._where} answers with one value per row, the columns are {named}", hint)
            answer = {self._columns[0]: answer}
        missing = [column for column in self._columns if column not in answer]
        if missing:
            said = f"{self._where} does not answer with the columns {missing}, but with {list(answer)}"
            return ModelMisfit(said, hint)
        try:
            return exact_values([answer[column] for column in self._columns], self._columns)
        except SourceError as error:
            return error
