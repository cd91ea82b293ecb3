"""What an application that cannot be profiled is told: what is wrong, and the way out."""

from __future__ import annotations

import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tailcut.errors import ProfileError
from tailcut.profiler.assembling import raised
from tailcut.profiler.child_channel import Route, Said
from tailcut.profiler.own_loop import stuck_import, way_out

_PLACE = re.compile(r'"loc":\s*\[\s*"(\w+)"')
"""Where in the request something is missing or wrong: the first of FastAPI's findings."""
_HIDDEN = frozenset({"/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"})
_SHOWN_ROUTES = 12
_BODY_CHARS = 300
_MISSING = re.compile(r"No module named '([\w.]+)'")
_DISTRIBUTIONS = {
    "PIL": "pillow", "bs4": "beautifulsoup4", "cv2": "opencv-python-headless", "dotenv": "python-dotenv",
    "jwt": "pyjwt", "psycopg2": "psycopg2-binary", "sklearn": "scikit-learn", "yaml": "pyyaml",
}  # fmt: skip
"""Packages that are installed by another name than they are imported by."""


def check_target(target: str) -> None:
    """Refuse what does not name an application.

    Raises:
        ProfileError: it is not "module:attribute".
    """
    module, colon, attribute = target.partition(":")
    names = [*module.split("."), *attribute.removesuffix("()").split(".")]
    if colon and not module.endswith(".py") and all(name.isidentifier() for name in names):
        return
    meant = "give module:attribute, as to uvicorn, such as app:app (or module:function() for a function that makes it)"
    if module.endswith(".py"):
        guess = module.removesuffix(".py").strip("./").replace("/", ".")
        meant = f"give a module's name, not a file's: {guess}:{attribute or 'app'}"
    raise ProfileError(f"{target!r} does not name an application", hint=meant)


def explain_failure(
    target: str, said: Said | None, code: int | None, log: str, directory: Path = Path()
) -> ProfileError:
    """Say why the application did not start.

    Args:
        target: its name.
        said: what the child said about it; None where it died without a word.
        code: its exit code; None where it still ran.
        log: the end of what it printed.
        directory: that it was to be imported from.
    """
    printed = f"it printed last:\n{log or '(nothing)'}"
    if said is None:
        what = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
        way = f"see why: {_by_hand(target, directory)}"
        if code == -signal.SIGKILL:
            way = "check that the model fits into memory"
        return ProfileError(f"{target} {what} before it was ready", hint=f"{way}; {printed}")
    if said.phase == "import":
        return _import_failed(target, said, directory)
    explain = {"attribute": _attribute_missing, "interface": _no_asgi}.get(said.phase)
    if explain is not None:
        return explain(target, said)
    if said.phase == "call":
        return ProfileError(f"{target} raised {said.error}", hint=_with("it is called without arguments", said))
    if said.phase == "server":
        way = 'put what starts the server below `if __name__ == "__main__":`'
        return ProfileError(f"{said.error}; the profile must serve it itself", hint=_with(way, said))
    way = way_out(log) or "check its environment (variables, files, databases)"
    return ProfileError(f"{target} failed at start-up", hint=f"{way}; {printed}")


def not_again(error: ProfileError) -> ProfileError:
    """Say that the application, which started once, does not start again.

    Args:
        error: with which it did not.
    """
    # Of an exception its name and place only: this stands in files that are passed on.
    why = f" ({raised(error.hint)})" if 'File "' in error.hint else ""
    return ProfileError(
        f"another process of it does not start{why}",
        hint="the cause is a resource for one process only: a port, a lock file, a GPU; leave out --thorough",
        detail=f"{error.explained}\n\n{error.hint}",
    )


def _by_hand(target: str, directory: Path) -> str:
    factory = "--factory " if target.endswith("()") else ""
    folder = "" if directory == Path() else f" --app-dir {directory}"
    return f"uvicorn {factory}{target.removesuffix('()')}{folder}"


def _import_failed(target: str, said: Said, directory: Path) -> ProfileError:
    module = target.partition(":")[0]
    missing = _MISSING.search(said.error)
    way = "make it import first" if missing is None else _where(missing[1].partition(".")[0], module, directory)
    return ProfileError(f"the module {module} does not import: {said.error}", hint=_with(way, said))


def _where(missing: str, module: str, directory: Path) -> str:
    """Say where a package that is missing is to be had."""
    files = [f"{missing}.py", f"{missing}/__init__.py"]
    wanted = missing == module.partition(".")[0]
    if wanted:
        files.append(f"{module.replace('.', '/')}.py")
    folder = next(_folders_of(files, directory), None)
    if folder is None and wanted and any((directory.resolve().parent / file).is_file() for file in files):
        folder = directory / ".."
    if folder is not None:
        return f"{missing} is in {folder}: --app-dir {folder}"
    if wanted:
        return "run it in the folder that holds the module, or name that folder: --app-dir FOLDER"
    package = _DISTRIBUTIONS.get(missing, missing)
    return (
        f"install it for the Python that runs tailcut: {sys.executable} -m pip install {package}; where the application"
        " has an environment of its own, install tailcut there"
    )


def _folders_of(files: Sequence[str], directory: Path) -> Iterator[Path]:
    """Folders below that hold one of these files."""
    for depth in ("*", "*/*"):
        for file in files:
            for found in sorted(directory.glob(f"{depth}/{file}")):
                folder = found.parents[file.count("/")]
                if not any(part[:1] == "." or part == "site-packages" for part in folder.relative_to(directory).parts):
                    yield folder


def _attribute_missing(target: str, said: Said) -> ProfileError:
    module, _, attribute = target.partition(":")
    way = f"it has {said.text}" if said.text else "name the variable that holds the application"
    return ProfileError(f"the module {module} has no {attribute!r}", hint=way)


def _no_asgi(target: str, said: Said) -> ProfileError:
    way = "give a FastAPI, Starlette or Litestar application, or another that takes (scope, receive, send)"
    if "WSGI" in said.error:
        way = "wrap it, such as with a2wsgi.WSGIMiddleware, and give the wrapped one"
    elif "makes an application" in said.error:
        way = f"to call it, give {target}()"
    return ProfileError(f"{target} is not an ASGI application: {said.error}", hint=way)


def _with(way: str, said: Said) -> str:
    return f"{way}\n\n{said.text}" if said.text else way


def explain_silence(target: str, timeout_s: float, log: str) -> ProfileError:
    """Say that the application did not get ready, and where it was at the end.

    Args:
        target: its name.
        timeout_s: for how long it was waited for.
        log: the end of what it printed, its main thread's stack with it.
    """
    stuck = stuck_import(log)
    if stuck is not None and stuck.looping:
        place = f", at {stuck.place}" if stuck.place else ""
        return ProfileError(
            f"the module {target.partition(':')[0]} runs an event loop or a server of its own when the application is"
            f" made{place}: that had not ended after {timeout_s:g} s; the profile must serve it itself",
            hint='move serving code below `if __name__ == "__main__":` and preparation into its lifespan; or allow '
            "more "
            f"time, such as --ready {2 * timeout_s:g}s\n\n{log}",
        )
    return ProfileError(
        f"{target} was not ready after {timeout_s:g} s",
        hint=f"allow more time, such as --ready {2 * timeout_s:g}s, or see where it waits (innermost call "
        f"first):\n{log or '(nothing)'}",
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
    said = f"{count} of {total} requests ({asked}) were answered {status}" + (f": {body}" if body else "")
    if status < 0:
        return ProfileError(
            f"{count} of {total} requests ({asked}) got no answer",
            hint=f"the application hangs or closes connections; it printed last:\n{log or '(nothing)'}",
        )
    if status in {404, 405}:
        return ProfileError(said, hint=_serves(routes, asked))
    if status >= 500:
        if not failures:
            return ProfileError(said, hint=f"it printed last:\n{log or '(nothing)'}")
        way = way_out(failures[0])
        return ProfileError(said, hint=f"{way + '; ' if way else ''}the application raised:\n\n{failures[0]}")
    ways = {
        401: "send what it asks for: --header 'Authorization: Bearer TOKEN'",
        403: "send what it asks for: --header 'Authorization: Bearer TOKEN'",
        415: "set the type of the bodies: --header 'Content-Type: application/json'",
        422: _unprocessable(body),
        429: "the application limits the rate: switch its limit off for the profile, or lower --rate",
    }
    return ProfileError(said, hint=ways.get(status, "send bodies that it answers: --payloads bodies.jsonl"))


def _unprocessable(body: str) -> str:
    """Say what a body that names the place of the mistake asks for, as FastAPI's do."""
    found = _PLACE.search(body)
    if found and found[1] == "header":
        return "send the header that it asks for: --header 'NAME: VALUE'"
    if found and found[1] == "query":
        return "send the parameter that it asks for in the path: --path '/predict?NAME=VALUE'"
    return "the payloads do not have the form that it validates; each line of --payloads is one body"


def choose_path(routes: Sequence[Route], method: str) -> str:
    """Find the only path that a method can go to.

    Raises:
        ProfileError: there is none, or more than one.
    """
    found = [one.path for one in routes if method in one.methods and one.path not in _HIDDEN and "{" not in one.path]
    if len(found) == 1:
        return found[0]
    problem = "more than one route takes" if found else "no route is known to take"
    raise ProfileError(f"{problem} {method} requests", hint=_serves(routes, f"{method} "))


def _serves(routes: Sequence[Route], asked: str) -> str:
    """Say what the application serves, and the flags with which one of it is asked for."""
    method, _, path = asked.partition(" ")
    shown = [one for one in routes if one.path not in _HIDDEN]
    here = [one for one in shown if one.path == path]
    taking = [one for one in shown if method in one.methods]
    flags = "; name the path, such as --path /predict" if not path else ""
    for one in (here or taking or shown)[:1]:
        flags = f" --path {re.sub('{[^}]*}', '1', one.path)}" if one.path != path else ""
        flags += f" --method {one.methods[0]}" if method not in one.methods else ""
        flags = f"; such as{flags}" if flags else ""
    return f"the application serves {_list_routes(routes)}{flags}"


def _list_routes(routes: Sequence[Route]) -> str:
    shown = [f"{'/'.join(one.methods)} {one.path}" for one in routes if one.path not in _HIDDEN]
    if not shown:
        return "no routes that its framework tells of; check the path and the method"
    more = f" and {len(shown) - _SHOWN_ROUTES} more" if len(shown) > _SHOWN_ROUTES else ""
    return ", ".join(shown[:_SHOWN_ROUTES]) + more
