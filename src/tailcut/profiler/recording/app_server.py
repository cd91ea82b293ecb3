"""Imports the application with hooks around it, and serves it with uvicorn until SIGTERM."""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import socket
import sys
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Literal

from tailcut.profiler.child_channel import ChildEvent, Options, RecordedRun, Route, execute_commands, one_line
from tailcut.profiler.recording.background_calls import background_calls
from tailcut.profiler.recording.captured import captured
from tailcut.profiler.recording.middleware import Profiled
from tailcut.profiler.recording.model_inputs import install_input_hooks, model_inputs
from tailcut.profiler.recording.model_libraries import libraries
from tailcut.profiler.recording.places import users_lines
from tailcut.profiler.recording.spans import requests_of
from tailcut.profiler.recording.tracing import tracer
from tailcut.profiler.stack_sampler import allow_sampling

Say = Callable[[ChildEvent], None]

_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
_PACKAGES = (
    "fastapi", "starlette", "litestar", "uvicorn", "uvloop", "anyio", "pydantic", "sqlalchemy", "psycopg", "asyncpg",
    "aiosqlite", "redis", "httpx", "requests", "aiohttp", "torch", "onnxruntime", "scikit-learn", "transformers",
    "numpy",
)  # fmt: skip


def run_application(options: Options, say: Say, commands: int) -> int:
    """Serve until SIGTERM.

    Args:
        options: what to serve, and how.
        say: where what happens goes.
        commands: file descriptor that questions come from, one a line.

    Returns:
        the exit code: 0, or 3 where the application could not be served.
    """
    allow_sampling()
    answers = {"begin": _begin, "recorded": _recorded, "layers": captured.find, "inputs": model_inputs.take}
    execute_commands(answers, say, commands)
    # Only what is needed: a process that is not profiled loads no hooks.
    if options.profiled:
        from tailcut.profiler.hooks import install_hooks

        install_hooks()
    else:
        install_input_hooks()
    try:
        application = load_application(options.target)
        _serve(application, options, say)
    except Unusable as error:
        say(error.said)
        return 3
    return 0


def _begin() -> None:
    """Forget what was recorded so far."""
    tracer.clear()
    background_calls.clear()
    captured.clear()


def _recorded() -> RecordedRun:
    return RecordedRun(
        requests=requests_of(tracer),
        moments=tuple(tracer.moments),
        hooks=tuple(tracer.hooked),
        notes=(*tracer.notes, *tracer.lost(), *unhooked(sys.modules)),
        failures=tuple(tracer.failures),
        background_calls=background_calls.found(),
        libraries=libraries.found(),
    )


def _serve(application: Any, options: Options, say: Say) -> None:
    import uvicorn

    loop = _usual_loop() if options.loop == "auto" else options.loop
    served = application
    if options.profiled:
        from tailcut.profiler.recording.blocking import watch_collections, watch_loop

        watch_loop(loop)
        watch_collections()
        served = Profiled(_three(application))
    # asyncio switches Nagle's algorithm off only on sockets that say that they are TCP's; with it, each reply of two
    # writes would wait 40 ms for the client's acknowledgement.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        served,
        loop=loop,
        interface="asgi3" if options.profiled else "auto",
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=3,
        timeout_keep_alive=600,
    )

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            if self.started:
                say(_ready(application, listening.getsockname()[1]))

    server = Server(config)
    # uvicorn exits where the application's start-up fails.
    with suppress(SystemExit):
        server.run(sockets=[listening])
    if not server.started:
        raise Unusable("start", "the application failed to start")


def _three(application: Any) -> Any:
    """Give an application of ASGI's second version the third one's form, as uvicorn does."""
    if len(needed_parameters(application) or ()) == 1:
        from uvicorn.middleware.asgi2 import ASGI2Middleware

        return ASGI2Middleware(application)
    return application


def _ready(application: Any, port: int) -> ChildEvent:
    threads = 0
    try:
        import anyio.to_thread

        threads = int(anyio.to_thread.current_default_thread_limiter().total_tokens)
    except Exception:
        tracer.note("the size of the thread pool is not known")
    loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    return ChildEvent(
        kind="ready",
        port=port,
        loop=loop,
        threads=threads,
        routes=_routes(application),
        versions=_versions(),
        usual_loop=_usual_loop(),
    )


def _usual_loop() -> Literal["asyncio", "uvloop"]:
    """The event loop that uvicorn takes by default."""
    return "uvloop" if importlib.util.find_spec("uvloop") else "asyncio"


def _routes(application: Any) -> tuple[Route, ...]:
    found: dict[str, set[str]] = {}
    for route in getattr(application, "routes", ()) or ():
        path, methods = getattr(route, "path", None), getattr(route, "methods", None)
        if isinstance(path, str) and methods:
            found.setdefault(path, set()).update(str(one) for one in methods)
    for path, methods in _described(application).items():
        found.setdefault(path, set()).update(one.upper() for one in methods if one.upper() in _METHODS)
    return tuple(Route(path=path, methods=tuple(sorted(methods))) for path, methods in found.items() if methods)


def _described(application: Any) -> dict[str, Any]:
    """Paths of FastAPI's description: those of included routers are nowhere else in one list."""
    if not callable(getattr(application, "openapi", None)):
        return {}
    before = getattr(application, "openapi_schema", None)
    try:
        return dict(application.openapi().get("paths", {}))
    except Exception:
        return {}
    finally:
        application.openapi_schema = before


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        if name.replace("scikit-learn", "sklearn") in sys.modules:
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


_DATABASES = (
    "psycopg2", "pg8000", "aiopg", "mysql.connector", "pymysql", "MySQLdb", "aiomysql", "asyncmy", "pymssql", "pyodbc",
    "aioodbc", "oracledb", "cx_Oracle", "ibm_db", "duckdb", "pymongo", "motor", "cassandra.cluster",
    "clickhouse_driver", "neo4j", "aerospike", "lmdb", "rocksdict", "pysqlite3", "apsw", "sqlcipher3",
)  # fmt: skip
_SERVICES = (
    "valkey", "pymemcache", "aiomcache", "pylibmc", "bmemcached", "coredis", "aiohttp.client", "grpc", "pycurl",
    "tornado.httpclient", "nats", "zmq", "pika", "aio_pika", "kafka", "confluent_kafka", "aiokafka",
)  # fmt: skip
"""Not websockets: uvicorn itself imports it."""
_MODELS = (
    "tensorflow", "tflite_runtime", "ai_edge_litert", "jax", "paddle", "mxnet", "tensorrt", "llama_cpp", "ctranslate2",
    "vllm", "onnxruntime_genai", "spacy", "fasttext", "gensim", "statsmodels", "prophet", "h2o",
)  # fmt: skip
_OVER = {"sqlalchemy": "SQLAlchemy", "keras": "Keras", "transformers": "transformers' generate()"}
"""What hides some of these, and has a hook."""


def unhooked(modules: Collection[str]) -> tuple[str, ...]:
    """Name those that are imported, in one note; none where there are none.

    Args:
        modules: names of everything that is imported.
    """
    found = [name for name in (*_DATABASES, *_SERVICES, *_MODELS) if name in modules]
    if not found:
        return ()
    seen = [shown for name, shown in _OVER.items() if name in modules]
    return (
        f"imported, but not hooked: {', '.join(found)}. Their calls count as the code that makes them; seen is what"
        f" goes through {' or '.join([*seen, 'an OpenTelemetry instrumentation'])}",
    )


_LINES = 15


class Unusable(Exception):
    """The application cannot be served."""

    def __init__(self, phase: str, error: str, text: str = "") -> None:
        super().__init__(error)
        self.said = ChildEvent(kind="failed", phase=phase, error=error, text=text)


def load_application(target: str) -> Any:
    """Import "module:attribute", or call "module:function()"."""
    module_name, _, path = target.partition(":")
    import uvicorn

    # Only now, as uvicorn does it: a queue.py of the user's must not be taken for the standard library's before.
    sys.path.insert(0, os.getcwd())

    def refused(*args: Any, **kwargs: Any) -> None:
        raise Unusable(
            "server",
            f"{module_name} starts a server of its own when it is imported",
            users_lines(traceback.format_stack()[:-1], _LINES),
        )

    kept = uvicorn.run, uvicorn.Server.run
    uvicorn.run, uvicorn.Server.run = refused, refused  # type: ignore[method-assign]
    try:
        found: Any = importlib.import_module(module_name)
    except Unusable:
        raise
    except (Exception, SystemExit) as error:
        raise Unusable("import", one_line(error), _traceback(error)) from error
    finally:
        uvicorn.run, uvicorn.Server.run = kept  # type: ignore[method-assign]
    for name in path.removesuffix("()").split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise Unusable("attribute", name) from None
    if path.endswith("()"):
        try:
            found = found()
        except Exception as error:
            raise Unusable("call", one_line(error), _traceback(error)) from error
    _check_interface(found)
    return found


def _check_interface(application: Any) -> None:
    if not callable(application):
        raise Unusable("interface", f"a {type(application).__name__}, which cannot be called")
    needed = needed_parameters(application)
    if needed is None or len(needed) in {1, 3}:
        return
    kinds = {0: "a function that makes an application", 2: "a WSGI application"}
    raise Unusable("interface", f"{kinds.get(len(needed), 'callable')}: it takes ({', '.join(needed)})")


def needed_parameters(application: Any) -> tuple[str, ...] | None:
    """Name what an application must be called with: three in ASGI's third version, one in its second.

    None where that cannot be told; a class that is awaited after its call is as good as one with three.
    """
    if inspect.isclass(application) and hasattr(application, "__await__"):
        return None
    try:
        parameters = list(inspect.signature(application).parameters.values())
    except (TypeError, ValueError):
        return None
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return None
    plain = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    return tuple(one.name for one in parameters if one.default is one.empty and one.kind in plain)


def _traceback(error: BaseException) -> str:
    return users_lines([*traceback.format_tb(error.__traceback__), *traceback.format_exception_only(error)], _LINES)
