"""A model as a source: which error is of one row, of one call, and of all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tailcut.errors import (
    BadRequest,
    DeadlineExceeded,
    ExecutorLost,
    FeatureUnavailable,
    HookError,
    InferenceError,
    NotReady,
    OutputsError,
    Shed,
    TailcutError,
    UnknownEntity,
)
from tailcut.features.sources.base import (
    Answer,
    KeyRefused,
    ModelDown,
    ModelFailed,
    SourceContext,
    SourceDown,
    SourceShed,
)
from tailcut.features.sources.model import ModelSource


class FakeModel:
    """Answers with each row's id, and fails every call that has a row of ``errors``.

    Attributes:
        calls: ids of each call.
        waiting: calls that wait for ``held``, where that is set.
    """

    version, timeout_s, most_rows = b"1", 1.0, 4

    def __init__(self, **errors: TailcutError) -> None:
        self.errors = errors
        self.calls: list[list[str]] = []
        self.held: asyncio.Event | None = None
        self.waiting = 0

    async def predict(self, rows: Sequence[dict[str, Any]], *_: Any) -> tuple[list[Any], bool]:
        ids = [row["id"] for row in rows]
        self.calls.append(ids)
        if self.held is not None and len(ids) == 1:
            self.waiting += 1
            try:
                await self.held.wait()
            finally:
                self.waiting -= 1
        for each in ids:
            if each in self.errors:
                raise self.errors[each]
        return ids, False


async def fetch(model: FakeModel, keys: str) -> list[Answer]:
    source = ModelSource(model, ("id",), ("value",), "child")
    return await source.fetch([(key,) for key in keys], SourceContext(0.0, "", 1.0))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadRequest("no"), KeyRefused),
        (InferenceError("no"), ModelFailed),
        (HookError("no"), ModelFailed),
        (TailcutError("unexpected KeyError"), ModelFailed),
        (FeatureUnavailable("no"), ModelDown),
        (UnknownEntity("no"), type(None)),
    ],
)
def test_an_error_that_may_be_of_one_row_is_that_rows(error: TailcutError, kind: type[Any]) -> None:
    model = FakeModel(b=error)
    found = asyncio.run(fetch(model, "abc"))
    assert type(found[1]) is kind
    assert found[::2] == [("a",), ("c",)]
    assert model.calls == [["a", "b", "c"], ["a"], ["b"], ["c"]]


@pytest.mark.parametrize(
    "error", [NotReady("no"), ExecutorLost("no"), DeadlineExceeded("no"), OutputsError("no"), Shed("no")]
)
def test_any_other_error_is_of_the_whole_call(error: TailcutError) -> None:
    model = FakeModel(b=error)
    with pytest.raises(SourceDown):
        asyncio.run(fetch(model, "abc"))
    assert len(model.calls) == 1


@pytest.mark.parametrize(("error", "kind"), [(Shed("no"), SourceShed), (NotReady("no"), ModelDown)])
def test_a_call_that_fails_leaves_the_others_their_answers(error: TailcutError, kind: type[Any]) -> None:
    found = asyncio.run(fetch(FakeModel(f=error), "abcdefgh"))
    assert found[:4] == [("a",), ("b",), ("c",), ("d",)]
    assert [type(each) for each in found[4:]] == [kind] * 4


def test_a_source_of_the_model_that_fails_for_all_rows_is_down() -> None:
    with pytest.raises(ModelDown):
        asyncio.run(fetch(FakeModel(**dict.fromkeys("abc", FeatureUnavailable("no"))), "abc"))


def test_a_fetch_that_is_cancelled_asks_for_no_row_any_more() -> None:
    async def test() -> None:
        model = FakeModel(b=HookError("no"))
        model.held = asyncio.Event()
        task = asyncio.create_task(fetch(model, "abc"))
        while model.waiting < 3:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert model.waiting == 0

    asyncio.run(test())
