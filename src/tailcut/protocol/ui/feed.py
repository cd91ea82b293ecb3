"""Server-sent events of the page: each snapshot is encoded once for all who watch the same.

A viewer that does not read gets the latest snapshot when it does, and no queue grows for it; after ``_PATIENCE_S``
without reading its connection is closed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping

import msgspec
from msgspec.structs import replace

from tailcut.errors import NotFound, Shed
from tailcut.observe.live.figures import ModelFigures, Snapshot
from tailcut.observe.live.live import Live
from tailcut.observe.live.model_figures import POINT

MOST_VIEWERS = 64
_PATIENCE_S = 10.0
_RETRY_MS = 2000
_KEPT_ON_HOST = 3
"""Answered requests of each model on the page of the host, and as many failed ones."""

_encode = msgspec.json.Encoder().encode


def _always() -> bool:
    return True


class Feed:
    """Sends snapshots to those who watch. Owned by the event loop.

    Args:
        clock_s: never goes back.
    """

    def __init__(self, live: Live, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._live = live
        self._clock_s = clock_s
        self._viewers: dict[str, set[Viewer]] = {}
        self._whole: tuple[Snapshot | None, bytes] = (None, b"")
        self.is_stopping = False
        live.on_snapshot.append(self._send)
        live.on_stop.append(self._stop)

    async def data(self) -> bytes:
        """Return the latest snapshot as JSON; raises NotReady as ``Live.asked``."""
        snapshot = await self._live.asked()
        if self._whole[0] is not snapshot:
            self._whole = snapshot, _encode(snapshot)
        return self._whole[1]

    async def watch(self, model: str = "", may: Callable[[], bool] = _always) -> Viewer:
        """Return the events of the host, or those of one model.

        Args:
            may: whether the viewer may still watch; asked before each event.

        Raises:
            Shed: too many watch already.
            NotFound: there is no such model.
            NotReady: see ``Live.asked``.
        """
        if self._live.viewers >= MOST_VIEWERS:
            raise Shed(
                f"{MOST_VIEWERS} viewers watch already, the limit of a server",
                hint="close other tabs with the page, or read /ui/data",
                retry_after_s=5.0,
            )
        self._live.watch()
        self._live.viewers += 1
        try:
            snapshot = await self._live.asked()
            first = self._first(snapshot, model)
        except BaseException:
            self._live.viewers -= 1
            raise
        viewer = Viewer(self, model, first, may, self._clock_s)
        self._viewers.setdefault(model, set()).add(viewer)
        return viewer

    def left(self, viewer: Viewer, model: str) -> None:
        """Forget a viewer."""
        viewers = self._viewers.get(model, set())
        if viewer in viewers:
            viewers.remove(viewer)
            self._live.viewers -= 1
        if not viewers:
            self._viewers.pop(model, None)

    # -- Inside ------------------------------------------------------------------------------------------------------

    def _first(self, snapshot: Snapshot, model: str) -> bytes:
        shown = _of_model(snapshot, model) if model else _of_host(snapshot)
        if model and not shown.models:
            raise NotFound(f"model {model!r} is unknown", hint="see /ui for the models of this server")
        begin: dict[str, object] = {"snapshot": shown}
        if model:
            begin |= {"names": POINT, "points": msgspec.Raw(self._live.points(model))}
        else:
            begin["sparks"] = {each.name: msgspec.Raw(self._live.sparks(each.name)) for each in snapshot.models}
        return b"retry: %d\n%b" % (_RETRY_MS, _event(b"begin", _encode(begin)))

    def _send(self, snapshot: Snapshot) -> None:
        for model, viewers in self._viewers.items():
            if model:
                shown, raw = _of_model(snapshot, model), msgspec.Raw(self._live.last_point(model))
                event = _event(b"snapshot", _encode({"snapshot": shown, "point": raw}))
            else:
                event = _event(b"snapshot", _encode({"snapshot": _of_host(snapshot)}))
            for viewer in viewers:
                viewer.put(event)

    def _stop(self) -> None:
        self.is_stopping = True
        for viewers in self._viewers.values():
            for viewer in viewers:
                viewer.put(b"")


class Viewer:
    """One who watches: yields events; see ``http.Chunks``."""

    failure: Mapping[str, str] | None = None

    def __init__(
        self, feed: Feed, model: str, first: bytes, may: Callable[[], bool], clock_s: Callable[[], float]
    ) -> None:
        self._feed = feed
        self._may = may
        self._model = model
        self._next: bytes | None = first
        self._has_next = asyncio.Event()
        self._has_next.set()
        self._clock_s = clock_s
        self._sent_s = clock_s()

    def put(self, event: bytes) -> None:
        """Have an event sent in place of one that was not sent yet; but the first goes out in any case."""
        if self._next is None or not self._next.startswith(b"retry"):
            self._next = event
            self._has_next.set()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._events()

    def left_s(self) -> float:
        """Return for how long it may go on not reading; 0 where all streams end now."""
        return 0.0 if self._feed.is_stopping else self._sent_s + _PATIENCE_S - self._clock_s()

    async def aclose(self) -> None:
        """Watch no more."""
        self._feed.left(self, self._model)

    async def _events(self) -> AsyncIterator[bytes]:
        while not self._feed.is_stopping:
            await self._has_next.wait()
            self._has_next.clear()
            event, self._next = self._next, None
            if not event or self._is_late() or not self._may():
                return
            self._sent_s = self._clock_s()
            yield event

    def _is_late(self) -> bool:
        """Whether the last event was not taken for so long that the connection is given up."""
        return self._clock_s() - self._sent_s >= _PATIENCE_S


def _of_model(snapshot: Snapshot, model: str) -> Snapshot:
    alerts = snapshot.alerts
    if alerts is not None:
        alerts = [each for each in alerts if each.model in {"", model}]
    return replace(snapshot, models=[each for each in snapshot.models if each.name == model], alerts=alerts)


def _of_host(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, models=[_briefly(each) for each in snapshot.models])


def _briefly(model: ModelFigures) -> ModelFigures:
    """Return what the page of the host shows of a model."""
    kept = model.kept
    if kept is not None:
        answered, failed = ([each for each in kept if (each.code == "ok") is ok] for ok in (True, False))
        kept = [*answered[:_KEPT_ON_HOST], *failed[:_KEPT_ON_HOST]]
    return replace(model, stages=model.stages[-1:], features=(), caches=(), variants=(), drift=None, kept=kept)


def _event(kind: bytes, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind, data)
