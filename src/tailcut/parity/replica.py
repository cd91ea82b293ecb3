"""The deployment in this process: its feature rows and the model's inputs, one stage at a time."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from tailcut.common.tensors import Array
from tailcut.common.texts import MISSING_TEXT, texts_of
from tailcut.manifest.subject import Subject
from tailcut.parity.analysis.columns import Columns, split
from tailcut.pipeline.pipeline import Pipeline
from tailcut.protocol.data_plane import DataPlane
from tailcut.serving.deployment import Engine
from tailcut.serving.host import Host

Row = Mapping[str, Any]
_STOP_S = 2.0
_PATIENCE_S = 30.0


class Replica:
    """An opened deployment whose stages can be called one by one."""

    def __init__(self, engine: Engine, runner: asyncio.Runner) -> None:
        self._engine = engine
        self._runner = runner
        self._pipeline: Pipeline = engine.opened.pipeline

    def feature_rows(self, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the rows of a request: those that it holds, or those of its entities.

        Raises:
            TailcutError: an entity is unknown, or a source failed.
        """
        if "rows" in asked:
            return [dict(row) for row in asked["rows"]]
        features = self._pipeline.features
        if features is None:
            return []
        keys = [features.parse_entity(entity) for entity in asked["entities"]]
        deadline_s = time.monotonic() + _PATIENCE_S
        return self._runner.run(features.fetch(keys, "", deadline_s)).rows

    def columns(self, rows: Sequence[Row]) -> dict[str, Columns]:
        """Return the model's inputs of rows, per tensor, column by column.

        Raises:
            TailcutError: the rows cannot be turned into inputs.
        """
        found = {}
        # Rows of feature groups hold the keys, too, which no input needs to read.
        arrays = self._pipeline.transform.inputs(rows, from_client=self._pipeline.features is None)
        for tensor in self._engine.deployment.model.inputs:
            array = arrays[tensor.name]
            fixed = array.ndim == 2 and -1 not in tensor.shape[1:]
            width = array.shape[1] if fixed else 0
            found[tensor.name] = split(tensor.name, _listed(array, tensor.allow_nan), width, tensor.columns)
        return found


def _listed(array: Array, allow_nan: bool) -> list[Any]:
    """Return an input as lists of plain values; of a text that stands for a missing one, NaN, as estimators get it."""
    if not array.dtype.hasobject:
        found: list[Any] = array.tolist()
        return found
    texts: list[str | float] = list(texts_of(array))
    if allow_nan:
        texts = [math.nan if text == MISSING_TEXT else text for text in texts]
    nested: list[Any] = np.array(texts, object).reshape(array.shape).tolist()
    return nested


@contextmanager
def open_replica(subject: Subject, variant: str) -> Iterator[Replica]:
    """Open a variant in this process, with the models that compute its features.

    Raises:
        TailcutError: one of them cannot be opened, or was not given.
    """
    subject.refuse_missing()
    manifest = subject.manifest
    serve = msgspec.structs.replace(manifest.deployment.serve, variant=variant, fallback=(), force=True)
    pool = msgspec.structs.replace(manifest.deployment.pool, executors=1, max_executors=0)
    opened = replace(manifest, deployment=msgspec.structs.replace(manifest.deployment, serve=serve, pool=pool))
    models = tuple(replace(one, manifest=opened) if one.file == subject.file else one for one in subject.host.models)
    host = Host(replace(subject.host, models=models))
    DataPlane(host)  # through which models ask each other for features
    with asyncio.Runner() as runner:
        try:
            for one in models:  # those that compute features come first
                runner.run(host.engine(one.name).start())
            yield Replica(host.engine(subject.name), runner)
        finally:
            runner.run(host.stop(_STOP_S))
