"""A group's variant behind real sockets, and the four protocols that it is asked over."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import tritonclient.grpc as triton
import uvloop
from tests.matrix.answers import tensors
from tests.matrix.axes import Group
from tests.matrix.tables import Columns, datatypes, may_be_missing
from tritonclient.utils import InferenceServerException

from tailcut import Client
from tailcut.errors import TailcutError
from tailcut.manifest import Manifest
from tailcut.manifest.host import HostManifest
from tailcut.protocol.app import Application
from tailcut.protocol.auth import Guard
from tailcut.protocol.data_plane import DataPlane
from tailcut.protocol.middleware import Middleware
from tailcut.serving.host import Host
from tailcut.transport.grpc.server import GRPCServer
from tailcut.transport.http1.connection import Site
from tailcut.transport.http1.listener import Listener

T = TypeVar("T")
HOST = "127.0.0.1"
TIMEOUT_S = 120.0


class Refused(Exception):
    """An answer that is none.

    Attributes:
        is_client: whether the server says that the request is at fault: 400, or INVALID_ARGUMENT.
    """

    def __init__(self, status: object, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status = status
        self.reason = reason
        self.is_client = status in (400, "bad_request", "StatusCode.INVALID_ARGUMENT")


class Server:
    """What ``tailcut serve`` puts together in its worker, on an event loop in a thread of this process.

    Attributes:
        handle, arrivals, on_drain: what the HTTP listener takes of a worker.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._host: Any = None
        self._grpc: Any = None
        self._listener: Any = None

    def start(self) -> None:
        """Listen, load and warm up.

        Raises:
            TailcutError: the variant cannot be opened.
        """
        self._call(self._begin())

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)

    async def _begin(self) -> None:
        manifest = HostManifest.of(self._manifest)
        self._host = Host(manifest)
        plane = DataPlane(self._host, Guard.of(manifest, address=HOST))
        front = Middleware(Application(plane).handle, manifest)
        self.handle, self.arrivals, self.on_drain = front.handle, self._host.arrivals, lambda: None
        listening = socket.create_server((HOST, 0))
        self.port = listening.getsockname()[1]
        site = Site(self, asyncio.get_running_loop())  # type: ignore[arg-type]  # what it takes of a worker is here
        self._listener = Listener(site, manifest.server, listening, None)
        self._listener.start()
        self._grpc = GRPCServer(plane, HOST, 0)
        await self._grpc.start()
        self.grpc_port = self._grpc.port
        await self._host.start()

    def end(self) -> None:
        """Stop what was started."""
        if self._listener is not None:
            self._call(self._listener.stop())
        if self._grpc is not None:
            self._call(self._grpc.stop(0.0))
        if self._host is not None:
            self._call(self._host.stop(timeout_s=1.0))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()


@contextmanager
def serving(group: Group, manifest: Manifest) -> Iterator[Doors]:
    """Serve a variant.

    Raises:
        TailcutError: it cannot be opened.
    """
    server = Server(manifest)
    try:
        server.start()
        doors = Doors(group, server)
        try:
            yield doors
        finally:
            doors.close()
    finally:
        server.end()


class Doors:
    """Clients of one server; every method returns the output (rows,) or (rows, classes).

    Raises:
        Refused: with the status and the reason.
    """

    def __init__(self, group: Group, server: Server) -> None:
        self._group = group
        self._http = http.client.HTTPConnection(HOST, server.port, timeout=TIMEOUT_S)
        self._client = Client(f"http://{HOST}:{server.port}", model="m")
        self._grpc = triton.InferenceServerClient(f"{HOST}:{server.grpc_port}")
        types = datatypes(group)
        # Names decide which tensor is which, so the order is another one than the manifest's.
        self._tensors = {"x": next(iter(types.values()))} if group.one_tensor else dict(reversed(types.items()))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()
        self._client.close()
        self._grpc.close()

    def ask(self, protocol: str, columns: Columns) -> Any:
        """Ask over one of ``PROTOCOLS``."""
        found = getattr(self, f"_{protocol}_answer")(columns)
        return np.asarray(found)

    def _json_answer(self, columns: Columns) -> Any:
        given = tensors(self._group, columns)
        inputs = []
        for name, datatype in self._tensors.items():
            data = self._plain(name, given[name])
            inputs.append({"name": name, "datatype": datatype, "shape": list(given[name].shape), "data": data})
        output = self._post("/v2/models/m/infer", {"inputs": inputs})["outputs"][0]
        return np.array(output["data"], np.float64).reshape(output["shape"])

    def _predict_answer(self, columns: Columns) -> Any:
        lists = {name: self._plain(name, columns[name]) for name in reversed(columns)}
        rows = [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]
        return [each["p"] for each in self._post("/predict/m", {"rows": rows})["predictions"]]

    def _binary_answer(self, columns: Columns) -> Any:
        try:
            given = tensors(self._group, columns)
            return self._client.infer({name: given[name] for name in self._tensors})["p"]
        except TailcutError as error:
            raise Refused(error.code, error.message) from error

    def _grpc_answer(self, columns: Columns) -> Any:
        given = tensors(self._group, columns)
        asked = []
        for name, datatype in self._tensors.items():
            asked.append(triton.InferInput(name, list(given[name].shape), datatype))
            asked[-1].set_data_from_numpy(given[name])
        try:
            return self._grpc.infer("m", asked, client_timeout=TIMEOUT_S).as_numpy("p")
        except InferenceServerException as error:
            raise Refused(error.status(), error.message()) from error

    def _post(self, path: str, body: Any) -> Any:
        self._http.request("POST", path, json.dumps(body, allow_nan=False))
        reply = self._http.getresponse()
        read = json.loads(reply.read())
        if reply.status != 200:
            raise Refused(reply.status, read["error"])
        return read

    def _plain(self, name: str, values: Any) -> list[Any]:
        """Return values as JSON has them: a gap is null."""
        gaps = may_be_missing(self._group)
        flat = values.ravel().tolist()
        if values.dtype.kind == "O":
            return [None if not each and name in gaps else each for each in flat]
        return [None if each != each else each for each in flat]  # NaN
