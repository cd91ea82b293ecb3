"""Errors for an application that cannot be profiled: what is wrong, and the way out."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

from tailcut.errors import ProfileError
from tailcut.profiler.child_channel import ChildEvent, Route

_HIDDEN = frozenset({"/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"})
_SHOWN_ROUTES = 12
_BODY_CHARS = 300
_FAILURES = {
    "import": (
        "the module {module} does not import: {error}",
        "run it in the folder that holds the module, or name that folder (--app-dir FOLDER); tailcut must be installed "
        f"in the application's environment, and runs in {sys.executable}",
    ),
    "attribute": ("the module {module} has no {error!r}", "name the variable that holds the application"),
    "call": ("{target} raised {error}", "it is called without arguments"),
    "interface": (
        "{target} is not an ASGI application: {error}",
        "give a FastAPI, Starlette or Litestar application, or another that takes (scope, receive, send); name a "
        "function that makes one as module:function(), and wrap a WSGI application with a2wsgi.WSGIMiddleware",
    ),
    "server": (
        "{error}; the profile must serve it itself",
        'put what starts the server below `if __name__ == "__main__":`',
    ),
}
"""Message and way out by the phase of a start that failed; of any other phase, the log says more."""

_ANSWERS = {
    401: "send what it asks for: --header 'Authorization: Bearer TOKEN'",
    403: "send what it asks for: --header 'Authorization: Bearer TOKEN'",
    415: "set the type of the bodies: --header 'Content-Type: application/json'",
    422: "send what it validates: each line of --payloads is one body, a header is --header 'NAME: VALUE', a parameter "
    "of the query belongs to --path '/predict?NAME=VALUE'",
    429: "the application limits the rate: switch its limit off for the profile, or lower --rate",
}


def check_target(target: str) -> None:
    """Refuse what does not name an application.

    Raises:
        ProfileError: it is not "module:attribute".
    """
    module, colon, attribute = target.partition(":")
    names = [*module.split("."), *attribute.removesuffix("()").split(".")]
    if not colon or module.endswith(".py") or not all(name.isidentifier() for name in names):
        raise ProfileError(
            f"{target!r} does not name an application",
            hint="give module:attribute, as to uvicorn, such as app:app for the variable app in app.py (or "
            "module:function() for a function that makes it)",
        )


def explain_failure(target: str, said: ChildEvent | None, code: int | None, log: str) -> ProfileError:
    """Say why the application did not start.

    Args:
        target: its name.
        said: what the child said about it; None where it died without a word.
        code: its exit code; None where it still ran.
        log: the end of what it printed.
    """
    printed = f"it printed last:\n{log or '(nothing)'}"
    if said is None:
        what = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
        return ProfileError(
            f"{target} {what} before it was ready",
            hint=f"check that uvicorn starts it, and that the model fits into memory; {printed}",
        )
    if said.phase not in _FAILURES:
        return ProfileError(
            f"{target} failed at start-up",
            hint=f"check its environment (variables, files, databases); {printed}",
        )
    message, way = _FAILURES[said.phase]
    text = message.format(target=target, module=target.partition(":")[0], error=said.error)
    return ProfileError(text, hint=f"{way}\n\n{said.text}" if said.text else way)


def explain_silence(target: str, timeout_s: float, log: str) -> ProfileError:
    """Say that the application did not get ready, and where it was at the end.

    Args:
        target: its name.
        timeout_s: for how long it was waited for.
        log: the end of what it printed, its main thread's stack with it.
    """
    return ProfileError(
        f"{target} was not ready after {timeout_s:g} s",
        hint=f"allow more time, such as --ready {2 * timeout_s:g}s; a server or an event loop of its own belongs below "
        f'`if __name__ == "__main__":`; it waits here (innermost call first):\n{log or "(nothing)"}',
    )


def explain_answers(
    statuses: Mapping[int, int],
    bodies: Mapping[str, str],
    failures: Sequence[str],
    routes: Sequence[Route],
    *,
    asked: str,
    log: str = "",
) -> ProfileError | None:
    """Say why most requests failed; None where at least half were answered 2xx or 3xx.

    Args:
        statuses: how many requests by status; negative: no answer.
        bodies: the first body by failing status.
        failures: ends of the tracebacks that the application raised.
        routes: what it serves, as far as the framework says.
        asked: method and path.
        log: the end of what it printed.
    """
    failing = Counter({status: count for status, count in statuses.items() if not 200 <= status < 400})
    total = sum(statuses.values())
    if failing.total() * 2 <= total:
        return None
    status, count = failing.most_common(1)[0]
    body = bodies.get(str(status), "")[:_BODY_CHARS]
    said = f"{count} of {total} requests ({asked}) " + (f"were answered {status}" if status >= 0 else "got no answer")
    if status in {404, 405}:
        way = _serves(routes)
    elif status >= 500 and failures:
        way = (
            "uvicorn serves it on asyncio; if it needs another server or loop, profile it from outside (tailcut "
            f"profile http://127.0.0.1:PORT/PATH); the application raised:\n\n{failures[0]}"
        )
    elif status < 0 or status >= 500:
        way = f"it printed last:\n{log or '(nothing)'}"
    else:
        way = _ANSWERS.get(status, "send bodies that it answers: --payloads bodies.jsonl")
    return ProfileError(f"{said}: {body}" if body else said, hint=way)


def choose_path(routes: Sequence[Route], method: str) -> str:
    """Find the only path that a method can go to.

    Raises:
        ProfileError: there is none, or more than one.
    """
    found = [one.path for one in routes if method in one.methods and one.path not in _HIDDEN and "{" not in one.path]
    if len(found) == 1:
        return found[0]
    problem = "more than one route takes" if found else "no route is known to take"
    raise ProfileError(f"{problem} {method} requests", hint=_serves(routes))


def _serves(routes: Sequence[Route]) -> str:
    """Return what the application serves, and the flags that choose a route."""
    shown = [f"{'/'.join(one.methods)} {one.path}" for one in routes if one.path not in _HIDDEN]
    more = f" and {len(shown) - _SHOWN_ROUTES} more" if len(shown) > _SHOWN_ROUTES else ""
    listed = ", ".join(shown[:_SHOWN_ROUTES]) or "no routes that its framework tells of"
    return f"the application serves {listed}{more}; choose one, such as --path /predict --method POST"
