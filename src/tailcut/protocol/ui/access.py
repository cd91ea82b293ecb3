"""Access to the page: as for management, and for browsers by a session that a form with a token begins.

A browser cannot send a bearer token with a link or an EventSource. The form posts it once; the reply sets a cookie that
scripts cannot read and other sites cannot send (HttpOnly, SameSite=Strict). The cookie is a random name for the token,
which stays here and is checked anew with each request: withdrawn from the file of tokens, it ends the session.

Source: RFC 6265bis (cookies), 5.7 (SameSite); https://www.w3.org/TR/fetch-metadata/ (Sec-Fetch-Site).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from secrets import token_urlsafe
from urllib.parse import urlsplit

from tailcut.errors import Forbidden, TailcutError, Unauthorized
from tailcut.protocol.auth import Guard
from tailcut.protocol.http import HeaderMap, Headers

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


def reason(error: TailcutError) -> str:
    """Return why a form was refused, for the page."""
    return f"{error.message}; {error.hint}" if error.hint else error.message


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
