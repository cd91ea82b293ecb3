"""The child: ``python -m tailcut.models.runtimes.remote.child PARENT SOCKET REQUESTS REPLIES``.

The first is the parent's process id, the others are open file descriptors.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import threading
from functools import partial
from time import perf_counter_ns

import msgspec

from tailcut import logs
from tailcut.code.digest import few
from tailcut.code.files import changed_files
from tailcut.errors import ArtifactError, InferenceError, TailcutError
from tailcut.manifest import Manifest
from tailcut.manifest.reading import read
from tailcut.models.runtimes import open_runtime
from tailcut.models.runtimes.base import Runtime
from tailcut.models.runtimes.live import source_of
from tailcut.models.runtimes.remote.arena import Arena
from tailcut.models.runtimes.remote.messages import (
    BatchFailed,
    Frames,
    OpenVariant,
    Ran,
    Ready,
    Reply,
    RunBatch,
    frame,
    opening_of,
)

_READ_BYTES = 1 << 16


def main(arguments: list[str]) -> int:
    """Open the variant, then run batches until the parent closes the connection."""
    parent, descriptor, requests, replies = (int(text) for text in arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the parent, which lets running batches end
    threading.Thread(target=_end_with, args=(parent,), name="tailcut-parent", daemon=True).start()
    with socket.socket(fileno=descriptor) as connection:
        return _serve(connection, Arena(requests), Arena(replies))


def _end_with(parent: int) -> None:
    """Die when the parent does, also in the middle of a batch.

    Not by PR_SET_PDEATHSIG: it is sent when the parent's thread that started this process ends (man 2 prctl).
    """
    try:
        watched = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(1)  # it is gone already
    except OSError:
        return  # not on this kernel, or not in this sandbox: the end of the connection is seen between batches
    with os.fdopen(watched, "rb") as file:
        poll = select.poll()
        poll.register(file, select.POLLIN)
        poll.poll()
    os.kill(os.getpid(), signal.SIGKILL)


def _serve(connection: socket.socket, requests: Arena, replies: Arena) -> int:
    frames = Frames()
    messages = (each for data in iter(partial(connection.recv, _READ_BYTES), b"") for each in frames.feed(data))
    first = next(messages, None)
    if first is None:
        return 0
    try:
        runtime = _open(opening_of(first))
    except BaseException as error:
        connection.sendall(frame(_failed(error, 0)))
        return 1
    gc.collect()
    gc.freeze()
    connection.sendall(frame(Ready()))
    decoder = msgspec.msgpack.Decoder(RunBatch)
    for body in messages:
        connection.sendall(frame(_run(runtime, decoder.decode(body), requests, replies)))
    runtime.close()
    return 0


def _open(wanted: OpenVariant) -> Runtime:
    from tailcut.models.runtimes.onnxruntime import flush_subnormals

    flush_subnormals()
    manifest = Manifest(read(wanted.deployment, {}), wanted.directory, {})
    logs.configure(manifest.deployment.server.log, manifest.deployment.name)
    source = source_of(manifest, wanted.variant.runtime)
    runtime = open_runtime(wanted.variant, threads=wanted.threads, source=source)
    if changed := changed_files(manifest.directory, wanted.code):
        runtime.close()
        raise ArtifactError(
            f"{few(changed)} changed since the server started; a new process would run the changed files",
            hint="restart the server to serve the new code, or restore the old",
        )
    return runtime


def _run(runtime: Runtime, batch: RunBatch, requests: Arena, replies: Arena) -> Reply:
    started_ns = perf_counter_ns()
    try:
        outputs = runtime.run(requests.get(batch.tensors, batch.size_bytes), batch.outputs)
        placed = replies.put([outputs], batch.outputs)
    except BaseException as error:  # SystemExit, say, which would end this process
        return _failed(error, started_ns)
    return Ran(placed, replies.size_bytes, started_ns, perf_counter_ns())


def _failed(error: BaseException, started_ns: int) -> BatchFailed:
    """Say what went wrong."""
    told = error if isinstance(error, TailcutError) else None
    cause = error.__cause__ if told is not None else error
    return BatchFailed(
        code=told.code if told is not None else InferenceError.code,
        message=told.message if told is not None else str(error),
        hint=told.hint if told is not None else "",
        detail=told.detail if told is not None else "",
        cause=type(cause).__name__ if cause is not None else "",
        started_ns=started_ns,
        finished_ns=perf_counter_ns(),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
