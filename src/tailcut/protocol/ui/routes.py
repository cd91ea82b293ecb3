"""Routes of the page.

GET  /ui, /ui/models/{model}, /ui/requests/{trace}         pages
GET  /ui/events, /ui/models/{model}/events                 what they show, as server-sent events
GET  /ui/data, /ui/requests/{trace}/data                   the same as JSON, of all models; of a kept request
GET  /ui/static/{file}                                     scripts and styles; open to all, they say nothing
POST /ui/login, /ui/logout                                 begin and end a session with a token for management

They are no requests to a model: neither counted nor queued as such.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import cache, partial
from html import escape
from importlib.resources import files
from secrets import token_urlsafe
from urllib.parse import parse_qs, urlsplit

import msgspec
from msgspec.structs import replace

from tailcut.common.timings import STAGE_NAMES
from tailcut.errors import BadRequest, Forbidden, NotFound, Shed, Unauthorized
from tailcut.observe.live.figures import ModelFigures, Snapshot
from tailcut.observe.live.live import LiveFigures
from tailcut.observe.live.model_figures import POINT
from tailcut.protocol.auth import Guard
from tailcut.protocol.http import EVENT_STREAM, JSON, Body, HeaderMap, Headers, Reply, clipped, read_small
from tailcut.protocol.routing import Handler, Route
from tailcut.serving.host import Host

# Access to the page: as for management, and for browsers by a session that a form with a token begins.
#
# A browser cannot send a bearer token with a link or an EventSource. The form posts it once; the reply sets a cookie
# that scripts cannot read and other sites cannot send (HttpOnly, SameSite=Strict). The cookie is a random name for the
# token, which stays here and is checked anew with each request: withdrawn from the file of tokens, it ends the
# session.
#
# Source: RFC 6265bis (cookies), 5.7 (SameSite); https://www.w3.org/TR/fetch-metadata/ (Sec-Fetch-Site).

COOKIE = "tailcut_ui"
SESSION_S = 12 * 3600.0
_MOST_SESSIONS = 256


class Access:
    """Decides who may see the page. Owned by the event loop.

    Args:
        guard: of the server; who may manage it may see the page.
        is_secure: whether browsers reach it by TLS only, so that the cookie is never sent without.
        clock_s: never goes back.
    """

    def __init__(self, guard: Guard, *, is_secure: bool = False, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._guard = guard
        self._is_secure = is_secure
        self._clock_s = clock_s
        self._sessions: dict[str, tuple[str, float]] = {}

    def check(self, headers: HeaderMap) -> None:
        """Let a request pass.

        Raises:
            Unauthorized: it has neither a session nor a token for management.
            Forbidden: there are no such tokens, and it may not come from this machine.
        """
        if not self._guard.has_management_tokens:
            self._guard.management(headers)
            return
        token = self._token(headers)
        self._guard.management(headers if token is None else {"authorization": f"Bearer {token}"})

    def allows(self, headers: HeaderMap) -> bool:
        """Whether ``check`` lets a request pass."""
        try:
            self.check(headers)
        except (Unauthorized, Forbidden):
            return False
        return True

    def begin(self, token: str, headers: HeaderMap) -> Headers:
        """Begin a session; return the header that sets its cookie.

        Raises:
            Unauthorized: the token is not one for management.
            Forbidden: another site's page sent the form.
        """
        _refuse_cross_site(headers)
        self._guard.management({"authorization": f"Bearer {token}"})
        now_s = self._clock_s()
        self._sessions = {name: each for name, each in self._sessions.items() if each[1] > now_s}
        while len(self._sessions) >= _MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        name = token_urlsafe(32)
        self._sessions[name] = token, now_s + SESSION_S
        return [("set-cookie", f"{COOKIE}={name}; Max-Age={SESSION_S:.0f}{self._attributes(headers)}")]

    def end(self, headers: HeaderMap) -> Headers:
        """End a session; return the header that deletes its cookie."""
        _refuse_cross_site(headers)
        self._sessions.pop(_cookie(headers), None)
        return [("set-cookie", f"{COOKIE}=; Max-Age=0{self._attributes(headers)}")]

    def is_session(self, headers: HeaderMap) -> bool:
        """Whether a request belongs to a session, which can be ended."""
        return self._token(headers) is not None

    def _attributes(self, headers: HeaderMap) -> str:
        # Without a path the cookie is for the folder of the form: /ui, wherever tailcut is mounted.
        secure = self._is_secure or headers.get("x-forwarded-proto") == "https"
        return "; HttpOnly; SameSite=Strict" + ("; Secure" if secure else "")

    def _token(self, headers: HeaderMap) -> str | None:
        if "authorization" in headers:
            return None
        token, until_s = self._sessions.get(_cookie(headers), ("", 0.0))
        return token if token and self._clock_s() < until_s else None


def _cookie(headers: HeaderMap) -> str:
    for each in (headers.get("cookie") or "").split(";"):
        name, _, value = each.strip().partition("=")
        if name == COOKIE:
            return value
    return ""


def _refuse_cross_site(headers: HeaderMap) -> None:
    """Refuse a form that another site's page sent; what is no browser says nothing of either."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        is_own = site in {"same-origin", "none"}
    else:
        is_own = origin is None or urlsplit(origin).netloc == headers.get("host")
    if not is_own:
        raise Forbidden("the form was sent by a page of another site", hint="open /ui on this server")


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
        return Route("POST" if kind in {"login", "logout"} else "GET", handler)

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
                if isinstance(error, Unauthorized):
                    return page("login", root, 401, back=back if _NEXT.fullmatch(back) else "ui", reason="")
                said = f"{error.message}; {error.hint}" if error.hint else error.message
                return page("closed", root, 403, reason=said)
            session = "yes" if self._access.is_session(headers) else ""
            return page("page", root, kind=kind, session=session)

        return answer

    def _closed(self, handler: Handler) -> Handler:
        async def answer(headers: HeaderMap, body: Body) -> Reply:
            self._access.check(headers)
            return await handler(headers, body)

        return answer

    async def _data(self, headers: HeaderMap, body: Body) -> Reply:
        return _json(_encode(await self._live.asked()))

    async def _events(self, model: str, headers: HeaderMap, body: Body) -> Reply:
        viewer = await self._feed.watch(model, partial(self._access.allows, headers))
        return Reply(200, safe(*EVENT_STREAM), b"", viewer)

    async def _request(self, trace: str, headers: HeaderMap, body: Body) -> Reply:
        found = self._live.request(trace)
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


# -- Files of the page -------------------------------------------------------------------------------------------------


_KINDS = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}

_SAFE: Headers = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
]
"""Of everything under /ui: scripts and styles come from files of the server, never from a text in the page."""


def safe(*more: tuple[str, str]) -> Headers:
    """Return the headers of a reply of the page."""
    return [*more, *_SAFE]


def page(name: str, root: str, status: int = 200, **texts: str) -> Reply:
    """Return a page.

    Args:
        name: of its file, without the ending.
        root: relative path from the page's address to the files of the page.
        texts: put in place of ``{{name}}``, escaped.
    """
    html = _files()[f"{name}.html"].decode()
    for key, text in {"root": root, "stages": " ".join(STAGE_NAMES), **texts}.items():
        html = html.replace("{{" + key + "}}", escape(text))
    headers = safe(("content-type", "text/html; charset=utf-8"), ("cache-control", "no-store"))
    return Reply(status, headers, html.encode())


def asset(name: str, headers: HeaderMap) -> Reply | None:
    """Return a script, style or picture; None where there is none of that name."""
    content = _files().get(name)
    kind = _KINDS.get(name[name.rfind(".") :])
    if content is None or kind is None:
        return None
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    told = safe(("content-type", kind), ("cache-control", "no-cache"), ("etag", tag))
    if headers.get("if-none-match") == tag:
        return Reply(304, told, b"")
    return Reply(200, told, content)


@cache
def _files() -> dict[str, bytes]:
    folder = files("tailcut.protocol.ui") / "static"
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}


# -- Feed --------------------------------------------------------------------------------------------------------------


# Server-sent events of the page: each snapshot is encoded once for all who watch the same.
# A viewer that does not read gets the latest snapshot when it does, and no queue grows for it; after ``_PATIENCE_S``
# without reading its connection is closed.

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

    def __init__(self, live: LiveFigures, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._live = live
        self._clock_s = clock_s
        self._viewers: dict[str, set[Viewer]] = {}
        self.is_stopping = False
        live.on_snapshot.append(self._send)
        live.on_stop.append(self._stop)

    async def watch(self, model: str = "", may: Callable[[], bool] = _always) -> Viewer:
        """Return the events of the host, or those of one model.

        Args:
            may: whether the viewer may still watch; asked before each event.

        Raises:
            Shed: too many watch already.
            NotFound: there is no such model.
            NotReady: see ``LiveFigures.asked``.
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
            # Not taken for so long, the connection is given up.
            if not event or self._clock_s() - self._sent_s >= _PATIENCE_S or not self._may():
                return
            self._sent_s = self._clock_s()
            yield event


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
