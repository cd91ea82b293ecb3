"""An application of a framework without a hook, whose handlers nap and trace themselves with OpenTelemetry."""

from __future__ import annotations

from dozing import doze, nap, naps  # noqa: F401  (naps is asked for from outside)
from litestar import Litestar, post
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind

provider = TracerProvider()
of_aiohttp = provider.get_tracer("opentelemetry.instrumentation.aiohttp_client")
of_asgi = provider.get_tracer("opentelemetry.instrumentation.asgi")
mine = provider.get_tracer("app")


@post("/plain")
async def plain() -> str:
    await doze()
    return "plain"


@post("/thread", sync_to_thread=True)
def in_thread() -> str:
    nap()
    return "thread"


@post("/mine")
async def traced() -> str:
    with mine.start_as_current_span("features"):
        await doze()
    return "mine"


@post("/called")
async def called() -> str:
    attributes = {"http.method": "GET", "http.url": "http://else.example/x?key=1"}
    with of_aiohttp.start_as_current_span("GET", kind=SpanKind.CLIENT, attributes=attributes):
        await doze()
    with of_asgi.start_as_current_span("POST /called http send"):
        pass
    return "called"


app = Litestar([plain, in_thread, traced, called], openapi_config=None)
