"""Routes of the page.

GET  /ui, /ui/models/{model}, /ui/requests/{trace}         pages
GET  /ui/events, /ui/models/{model}/events                 what they show, as server-sent events
GET  /ui/data, /ui/requests/{trace}/data                   the same as JSON, of all models; of a kept request
GET  /ui/static/{file}                                     scripts and styles; open to all, they say nothing
POST /ui/login, /ui/logout                                 begin and end a session with a token for management

They are no requests to a model: neither counted nor queued as such.
"""

from __future__ import annotations

import re
from functools import partial
from urllib.parse import parse_qs

import msgspec

from tailcut.errors import BadRequest, Forbidden, NotFound, TailcutError, Unauthorized
from tailcut.protocol.auth import Guard
from tailcut.protocol.bodies import read_small
from tailcut.protocol.events import EVENT_STREAM
from tailcut.protocol.http import JSON, Body, HeaderMap, Reply, clipped
from tailcut.protocol.routing import Handler, Route
from tailcut.protocol.ui.access import Access, reason
from tailcut.protocol.ui.assets import asset, page, safe
from tailcut.protocol.ui.feed import Feed
from tailcut.serving.host import Host

_MOST_FIELDS = 8
_MAX_FORM_BYTES = 16 * 1024
_NEXT = re.compile(r"ui(/models/[A-Za-z0-9_.-]{1,200}|/requests/[0-9a-f]{32})?")
"""Pages that the form leads back to: of this server, and nothing else."""


class UI:
    """Answers requests for the page."""

    def __init__(self, host: Host, guard: Guard) -> None:
        self._live = host.observed.live
        self._feed = Feed(host.observed.live)
        self._access = Access(guard, is_secure=bool(host.server.tls_cert))
        self._fixed: dict[str, Handler] = {
            "": self._shown("host", "ui/", "ui"),
            "data": self._closed(self._data),
            "events": self._closed(partial(self._events, "")),
            "login": self._login,
            "logout": self._logout,
        }

    def find(self, method: str, path: str) -> Route | None:
        """Return the route of a path that begins with /ui; None where there is none."""
        kind, _, rest = path.removeprefix("/ui").removeprefix("/").partition("/")
        name, _, what = rest.partition("/")
        handler = self._fixed.get(kind) if not rest else self._named(kind, name, what)
        if handler is None:
            return None
        if method == "HEAD" and "events" in {kind, what}:
            handler = _no_events
        return "POST" if kind in {"login", "logout"} else "GET", handler

    def _named(self, kind: str, name: str, what: str) -> Handler | None:
        """Return what answers for a model, a request or a file; None where nothing does."""
        found: dict[tuple[str, str], Handler] = {
            ("models", ""): self._shown("model", "../", f"ui/models/{name}"),
            ("models", "events"): self._closed(partial(self._events, name)),
            ("requests", ""): self._shown("request", "../", f"ui/requests/{name}"),
            ("requests", "data"): self._closed(partial(self._request, name)),
            ("static", ""): partial(self._asset, name),
        }
        return found.get((kind, what))

    def _shown(self, kind: str, root: str, back: str) -> Handler:
        """Return what answers with a page, or with the form or the reason where it may not be seen."""

        async def answer(headers: HeaderMap, body: Body) -> Reply:
            try:
                self._access.check(headers)
            except (Unauthorized, Forbidden) as error:
                return self._refused(error, root, back)
            session = "yes" if self._access.is_session(headers) else ""
            return page("page", root, kind=kind, session=session)

        return answer

    def _refused(self, error: TailcutError, root: str, back: str) -> Reply:
        if isinstance(error, Forbidden):
            return page("closed", root, 403, reason=reason(error))
        return page("login", root, 401, back=back if _NEXT.fullmatch(back) else "ui", reason="")

    def _closed(self, handler: Handler) -> Handler:
        async def answer(headers: HeaderMap, body: Body) -> Reply:
            self._access.check(headers)
            return await handler(headers, body)

        return answer

    async def _data(self, headers: HeaderMap, body: Body) -> Reply:
        return _json(await self._feed.data())

    async def _events(self, model: str, headers: HeaderMap, body: Body) -> Reply:
        viewer = await self._feed.watch(model, partial(self._access.allows, headers))
        return Reply(200, safe(*EVENT_STREAM), b"", viewer)

    async def _request(self, trace: str, headers: HeaderMap, body: Body) -> Reply:
        found = self._live.request(trace) if self._live.request is not None else None
        if found is None:
            raise NotFound(
                f"request {clipped(trace)} is not kept (any more)",
                hint="slow, failed and sampled requests are kept, the latest some hundred of them",
            )
        return _json(msgspec.json.encode(found))

    async def _asset(self, name: str, headers: HeaderMap, body: Body) -> Reply:
        found = asset(name, headers)
        if found is None:
            raise NotFound(f"no such file: {clipped(name)}", hint="open /ui")
        return found

    async def _login(self, headers: HeaderMap, body: Body) -> Reply:
        sent = (await read_small(headers, body, _MAX_FORM_BYTES)).decode("utf-8", "replace")
        try:
            form = parse_qs(sent, max_num_fields=_MOST_FIELDS)
        except ValueError:
            raise BadRequest(
                f"the form has more than {_MOST_FIELDS} fields", hint="send the fields token and back"
            ) from None
        token, back = (form.get(name, [""])[0].strip() for name in ("token", "back"))
        back = back if _NEXT.fullmatch(back) else "ui"
        try:
            cookie = self._access.begin(token, headers)
        except Unauthorized:
            text = "This token is not valid for management."
            return page("login", "", 401, back=back, reason=text)
        return Reply(303, safe(("location", f"../{back}"), ("cache-control", "no-store"), *cookie), b"")

    async def _logout(self, headers: HeaderMap, body: Body) -> Reply:
        await read_small(headers, body, _MAX_FORM_BYTES)
        cookie = self._access.end(headers)
        return Reply(303, safe(("location", "../ui"), ("cache-control", "no-store"), *cookie), b"")


async def _no_events(headers: HeaderMap, body: Body) -> Reply:
    raise BadRequest("HEAD of a stream of events is not answered", hint="send GET")


def _json(raw: bytes) -> Reply:
    return Reply(200, safe(JSON, ("cache-control", "no-store")), raw)
