"""The profiled application as the server sees it: entry, body, reply and exit of each request of the load."""

from __future__ import annotations

import traceback
from asyncio import current_task
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from tailcut.profiler.recording.blocking import settle
from tailcut.profiler.recording.clocks import now
from tailcut.profiler.recording.places import code_of, users_lines
from tailcut.profiler.recording.tracing import DROPPED_NS, OpenSpan, Trace, add_span, current, open_root, tracer
from tailcut.profiler.records import Stage

HEADER = b"x-tailcut-profile"
_MAX_FAILURES = 3
_LINES = 12
_RECEIVE, _ENCODE = Stage.RECEIVE, Stage.ENCODE
_FRAMEWORKS = ("fastapi", "starlette", "tailcut")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class Profiled:
    """Wraps an ASGI application; requests without the load's number pass through untouched.

    Args:
        application: the user's.
    """

    def __init__(self, application: Application) -> None:
        self._application = application
        self._stage, self._label, self._place = describe_application(application)
        if self._stage is Stage.UNATTRIBUTED:
            tracer.note(
                f"{self._label} has no hook: its own work, and your code that it runs on the event loop, are shown"
                " together as unattributed. Threads, hooked calls and OpenTelemetry spans in it are seen"
            )

    def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one request."""
        number = _number(scope) if scope["type"] == "http" else -1
        if number < 0:
            return self._application(scope, receive, send)
        return self._traced(number, scope, receive, send)

    async def _traced(self, number: int, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        trace = tracer.enter(number, scope["method"], scope["path"])
        if trace is None:
            await self._application(scope, receive, send)
            return
        trace.task = id(current_task())
        root = open_root(trace, self._stage, self._label, self._place)
        tracer.touched, tracer.touched_ns = trace, trace.entered_ns
        try:
            await self._application(scope, _receiving(receive), _sending(trace, send))
        except Exception as error:
            failed(error)
            raise
        finally:
            root.end_ns = end_ns = now()
            trace.over = True
            if trace.steps:
                settle(trace)
            tracer.touched, tracer.touched_ns = trace, end_ns
            current.set(None)


def failed(error: BaseException) -> None:
    """Keep the end of an exception's traceback; only of the first exceptions, which say what is wrong."""
    if len(tracer.failures) < _MAX_FAILURES:
        tracer.failures.append(users_lines(traceback.format_exception(error), _LINES))


def describe_application(application: Any) -> tuple[Stage, str, str]:
    """Return the stage, label and place of the application's own call: the framework's, the user's, or unattributed."""
    package = type(application).__module__.partition(".")[0]
    packages = {one.__module__.partition(".")[0] for one in type(application).__mro__}
    if known := next((name for name in _FRAMEWORKS if name in packages), ""):
        return Stage.FRAMEWORK, known, ""
    code = code_of(application)
    if code is not None and tracer.places.is_user(code.co_filename):
        label, place, _ = tracer.places.describe(application)
        return Stage.CODE, label, place
    return Stage.UNATTRIBUTED, package, ""


def _number(scope: MutableMapping[str, Any]) -> int:
    value = next((value for name, value in scope["headers"] if name == HEADER), b"")
    return int(value) if value.isdigit() else -1


def _receiving(receive: Receive) -> Receive:
    async def received() -> Message:
        parent = current.get()
        start_ns = now()
        message = await receive()
        # A reply that is streamed listens all the while for a client that goes away: that is no wait for a body.
        if message["type"] == "http.request":
            _keep(parent, _RECEIVE, "body", start_ns)
        return message

    return received


def _sending(trace: Trace, send: Send) -> Send:
    async def sent(message: Message) -> None:
        parent = current.get()
        start_ns = now()
        try:
            await send(message)
        finally:
            _keep(parent, _ENCODE, "send", start_ns)
            if message["type"] == "http.response.start":
                trace.status = message["status"]
            elif message["type"] == "http.response.body" and not message.get("more_body", False):
                trace.left_ns = now()

    return sent


def _keep(parent: OpenSpan | None, stage: Stage, label: str, start_ns: int) -> None:
    # Nothing of the user's runs inside, so there is no need for a span to be open meanwhile.
    end_ns = now()
    if parent is not None and end_ns - start_ns >= DROPPED_NS:
        add_span(parent, stage, label, start_ns, end_ns)
