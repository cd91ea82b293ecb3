"""A deployment in the caller's own process, without a server: ``tailcut.open``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from reprlib import repr as shown
from time import perf_counter_ns
from types import TracebackType
from typing import Any

import msgspec

from tailcut.common.json_values import decode, to_builtins
from tailcut.common.tensors import Array, Arrays
from tailcut.common.timings import Stage
from tailcut.errors import BadRequest, NotReady, StartError, TailcutError
from tailcut.manifest import Manifest
from tailcut.manifest.host import HostManifest
from tailcut.manifest.loading import FILE_NAME
from tailcut.manifest.subject import find_subject
from tailcut.pipeline.request_context import RequestContext
from tailcut.pipeline.row_transform import encode_answer
from tailcut.protocol.data_plane import DataPlane
from tailcut.protocol.http import HeaderMap
from tailcut.protocol.local_model import LOCAL_DOOR, NO_HEADERS
from tailcut.protocol.open_inference.codec import InferenceCodec
from tailcut.protocol.routing import Codecs
from tailcut.serving.host import Host
from tailcut.serving.tracing import with_current_span

ROUTES = ("local_predict", "local_infer")
"""Names of the requests in metrics."""

_STOP_S = 5.0
_ANY = msgspec.json.Decoder()

_Ask = tuple[float | None, str, Any, Any]
"""Deadline and tenant, then what is asked: rows and entities, or inputs and outputs."""


_Work = Callable[[RequestContext, HeaderMap, _Ask], Awaitable[Any]]


class InProcessModel:
    """One deployment, asked by function calls on the event loop that opened it; open it with ``async with``.

    A request goes the way of every other one: admission, features, caches, batches, deadline and metrics are the same.

    Args:
        manifest: of the deployment; or of several models, those that compute its features.
        name: of the deployment, where there are several.
    """

    def __init__(self, manifest: Manifest | HostManifest, name: str = "") -> None:
        self.host = Host.of(manifest) if isinstance(manifest, Manifest) else Host(manifest)
        self.host.observed.begin(in_application=True)
        self.host.observed.drift.arrays_are_lent = True
        self._plane = DataPlane(self.host).model(name or self.host.only.deployment.name)
        self._engine = self._plane.engine
        self._codecs = Codecs(InferenceCodec, self._engine)
        self._opened = False
        self._loop: asyncio.AbstractEventLoop | None = None
        """Where it is open; None before and after."""
        for route in ROUTES:
            self._engine.recorder.expect(route)

    async def __aenter__(self) -> InProcessModel:
        """Load and warm up.

        Raises:
            TailcutError: what could not be loaded.
        """
        if self._opened:
            raise StartError("the model was opened before", hint="call tailcut.open again")
        self._opened = True
        try:
            await self.host.start()
            for engine in self.host.engines.values():  # of several, one that failed may compute features
                if engine.failure is not None:
                    raise engine.failure
        except BaseException:
            await self.close()
            raise
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Fail the requests that wait, let running batches end for at most five seconds, and free the model."""
        self._loop = None
        await self.host.stop(_STOP_S)

    @property
    def is_ready(self) -> bool:
        """Whether requests should be sent: the model is warm, and not all executors are stuck."""
        return self.host.is_ready

    def predict(
        self,
        rows: Sequence[Mapping[str, Any]] | None = None,
        *,
        entities: Sequence[Any] | None = None,
        deadline_s: float | None = None,
        tenant: str = "",
    ) -> Coroutine[Any, Any, list[Any]]:
        """Predict feature rows, or entities whose features the deployment looks up.

        Args:
            deadline_s: seconds within which the answer is wanted, at most ``server.max_timeout``; by default
                ``slo.timeout``.
            tenant: whose request it is.

        Returns:
            one prediction per row or entity, as ``POST /predict`` answers in JSON.

        Raises:
            BadRequest: the rows or entities are malformed, or the tenant is missing.
            Shed: there is no room, or the deadline would be missed.
            DeadlineExceeded: the deadline passed.
            NotReady: the model is not open.
            TailcutError: any other error of ``tailcut.errors`` that the model or its features end with.
        """
        ask = deadline_s, tenant, rows, entities
        return self._answer(ROUTES[0], self._predict, ask)

    def infer(
        self,
        inputs: Mapping[str, Array],
        *,
        outputs: Sequence[str] | None = None,
        deadline_s: float | None = None,
        tenant: str = "",
    ) -> Coroutine[Any, Any, Arrays]:
        """Run the model on arrays; arguments and errors as ``predict``.

        Args:
            inputs: arrays by input name, first dimension the rows, each of its input's datatype. Leave them as they
                are until the answer is there.
            outputs: names wanted; by default all.

        Returns:
            arrays by output name, the caller's own.
        """
        ask = deadline_s, tenant, inputs, outputs
        return self._answer(ROUTES[1], self._infer, ask)

    def metrics(self) -> bytes:
        """Return what ``GET /metrics`` of a server shows, as Prometheus reads it; call it on the event loop."""
        return self.host.observed.exposition.render()

    # -- Inside ------------------------------------------------------------------------------------------------------

    async def _answer(self, route: str, work: _Work, ask: _Ask) -> Any:
        if self._loop is not asyncio.get_running_loop():
            raise self._misused()
        headers = dict(with_current_span([])) if self.host.observed.traces.has_provider else NO_HEADERS
        return await self._plane.answer(LOCAL_DOOR, route, work, headers, ask)

    def _misused(self) -> TailcutError:
        """Return the error for a call that is not awaited where the model is open."""
        name = self._engine.deployment.name
        if self._loop is not None:
            return TailcutError(
                f"model {name!r} was opened on another event loop",
                hint="await it there; from another thread: asyncio.run_coroutine_threadsafe(model.predict(rows), loop)",
            )
        if self._opened:
            return NotReady(f"model {name!r} is not open any more, or not yet", hint="await it inside `async with`")
        return NotReady(f"model {name!r} is not open", hint="open it: async with tailcut.open(...) as model:")

    async def _predict(self, context: RequestContext, headers: HeaderMap, ask: _Ask) -> list[Any]:
        deadline_s, tenant, rows, entities = ask
        self._plane.carry(context, tenant, _nanoseconds(deadline_s))
        if (rows is None) is (entities is None):
            raise BadRequest(
                "predict takes either rows or entities", hint="call predict(rows=[{...}]) or predict(entities=[...])"
            )
        pipeline = self._engine.pipeline
        given = _plain_rows(rows) if rows is not None else _plain(_listed(entities, "entities"), "entities")
        if context.logged is not None:
            context.logged.take_values("rows" if rows is not None else "entities", given)
        if rows is not None:
            values = await pipeline.predict_rows(context, given)
        else:
            context.timings.lap(Stage.VALIDATE, perf_counter_ns())
            values = await pipeline.predict_entities(context, given)
        reply = encode_answer(values)
        if context.logged is not None:
            context.logged.reply = reply
        found: list[Any] = decode(_ANY, reply)
        return found

    async def _infer(self, context: RequestContext, headers: HeaderMap, ask: _Ask) -> Arrays:
        deadline_s, tenant, inputs, names = ask
        self._plane.carry(context, tenant, _nanoseconds(deadline_s))
        if not isinstance(inputs, Mapping):
            raise BadRequest(
                f"infer takes arrays by input name, not {type(inputs).__name__}", hint='call infer({"x": array})'
            )
        pipeline = self._engine.pipeline
        codec = self._codecs.of(pipeline.serving)
        inference = codec.check(inputs, names)
        if context.logged is not None:
            context.logged.take(inference.inputs, "local", inference.outputs)
        context.timings.lap(Stage.VALIDATE, perf_counter_ns())
        caches = pipeline.recalls_tensors
        pipeline.admit(context, inference.rows, recalls=caches)
        found = await pipeline.infer(context, inference.inputs, inference.rows, inference.outputs)
        if context.logged is not None:
            context.logged.answer(found)
        arrays = {name: codec.finite(name, found[name]) for name in inference.outputs}
        # The caller's own: no part of a batch or of a cache.
        return {name: array.copy() if caches or not array.flags.owndata else array for name, array in arrays.items()}


def _nanoseconds(deadline_s: float | None) -> int:
    if deadline_s is None:
        return 0
    if not isinstance(deadline_s, Real) or not 0 < deadline_s < 1e6:
        raise BadRequest(
            f"deadline_s is {shown(deadline_s)}, expected a number above 0 and below 1000000",
            hint="pass seconds, or None for slo.timeout",
        )
    return max(int(deadline_s * 1e9), 1)


def _plain_rows(rows: Sequence[Any]) -> list[dict[str, Any]]:
    given = _listed(rows, "rows")
    for place, row in enumerate(given):
        if not isinstance(row, Mapping):
            raise BadRequest(
                f"row {place} is a {type(row).__name__}, expected a mapping of its fields",
                hint='pass dicts; the rows of a DataFrame are frame.to_dict("records")',
            )
    found: list[dict[str, Any]] = _plain([dict(row) for row in given], "rows")
    return found


def _listed(values: Iterable[Any], what: str) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise BadRequest(f"{what} is a {type(values).__name__}, expected a list", hint=f"pass a list of {what}")
    found = list(values)
    if not found:
        raise BadRequest(f"the list of {what} is empty", hint="at least one is needed")
    return found


def _plain(values: list[Any], what: str) -> Any:
    """Return rows or entities as values of Python's own types, as they come from JSON."""
    try:
        return to_builtins(values)
    except (TypeError, ValueError, NotImplementedError, RecursionError) as error:
        said = f"the {what} hold a value that JSON has not: {error}"
        raise BadRequest(said, hint="pass numbers, text and lists") from None


def open_model(*manifests: Manifest | Path | str, model: str = "", overrides: Sequence[str] = ()) -> InProcessModel:
    """Make the model of one deployment; see ``tailcut.open``."""
    if len(manifests) == 1 and isinstance(manifests[0], Manifest):
        return InProcessModel(manifests[0])
    subject = find_subject(paths_of(manifests), model=model, overrides=overrides)
    subject.refuse_missing('pass "{}" to tailcut.open as well')
    return InProcessModel(subject.host, subject.name)


def paths_of(manifests: Sequence[Manifest | Path | str]) -> list[Path]:
    """Return the paths of several manifests; the one in this folder where none is named."""
    paths = [Path(each) for each in manifests if not isinstance(each, Manifest)]
    if len(paths) < len(manifests):
        raise TypeError("several models are given as paths; a Manifest has a server of its own")
    return paths or [Path(FILE_NAME)]
