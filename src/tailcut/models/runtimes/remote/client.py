"""The parent's side: a runtime whose work is done by a child process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import numpy as np

from tailcut.common.tensors import Arrays
from tailcut.errors import ExecutorLost, StartError
from tailcut.manifest import Manifest
from tailcut.manifest.keys import to_plain
from tailcut.models.runtimes.base import Openable, OpenSpec
from tailcut.models.runtimes.remote.arena import Arena
from tailcut.models.runtimes.remote.messages import (
    BatchFailed,
    Frames,
    OpenVariant,
    Ran,
    Reply,
    RunBatch,
    frame,
)
from tailcut.system.child_processes import describe_exit

_READ_BYTES = 1 << 16
_OPEN_TIMEOUT_S = 300.0


class RemoteRuntime:
    """A variant in a child process. ``run`` blocks; an executor uses ``send`` and ``receive`` from an event loop.

    Args:
        manifest: of the deployment; the child makes the model's code from it where the artifact holds numbers only.
        threads: of the runtime in the child.
        code: SHA-256 of the user's Python files, by path from the manifest's folder; the child refuses others.

    Raises:
        ArtifactError, MissingExtra: as ``open_runtime``; the first also where a module has changed.
        StartError: the child died, or was not ready in five minutes.

    Attributes:
        ended: a descriptor that can be read from as soon as the child is dead; -1 where the kernel has none.
    """

    def __init__(
        self,
        manifest: Manifest,
        variant: Openable,
        *,
        threads: int,
        code: Mapping[str, str] | None = None,
    ) -> None:
        self._name = variant.name
        self._frames = Frames()
        self._decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
        with ExitStack() as undo:
            self._requests = Arena.make()
            undo.callback(self._requests.close)
            self._replies = Arena.make()
            undo.callback(self._replies.close)
            self.connection, theirs = socket.socketpair()
            undo.callback(self.connection.close)
            with theirs:
                self.process = _spawn(theirs, self._requests, self._replies)
            undo.callback(self.process.wait)
            undo.callback(self.kill)
            opened = variant.name, variant.runtime, variant.artifact, variant.inputs, variant.outputs
            wanted = OpenVariant(
                variant=OpenSpec(*opened, dict(variant.settings), dict(variant.parts)),
                threads=threads,
                deployment=to_plain(manifest.deployment),
                directory=manifest.directory,
                code=dict(code or {}),
            )
            self._open(wanted)
            undo.pop_all()
        self.ended = -1
        with suppress(OSError):
            self.ended = os.pidfd_open(self.process.pid)

    def _open(self, wanted: OpenVariant) -> None:
        """Wait until the child has opened the variant."""
        hint = 'see its output above; to open it in this process set pool.executor = "thread"'
        self.connection.settimeout(_OPEN_TIMEOUT_S)  # and for the warm-up; see listen
        try:
            self.connection.sendall(frame(wanted))
            reply = self._wait()
        except TimeoutError:
            message = f"the process of variant {self._name!r} was not ready after {_OPEN_TIMEOUT_S:g} s"
            raise StartError(message, hint=hint) from None
        except (OSError, ExecutorLost):
            message = f"the process of variant {self._name!r} ended while opening it ({self._how()})"
            raise StartError(message, hint=hint) from None
        if isinstance(reply, BatchFailed):
            raise reply.error

    def listen(self) -> None:
        """Serve this thread's event loop from now on: without time-outs, and with this thread's priority.

        The child has inherited that of the thread that started it, which may be one that gives way to all others.
        """
        self.connection.settimeout(None)
        niceness = os.getpriority(os.PRIO_PROCESS, 0)  # on Linux of this thread alone
        with suppress(OSError):  # gone, or not permitted
            for thread in os.listdir(f"/proc/{self.process.pid}/task"):
                os.setpriority(os.PRIO_PROCESS, int(thread), niceness)

    @property
    def resident_bytes(self) -> int:
        """Memory that the child holds, without the tensors that it shares with this process; 0 where it is gone."""
        with suppress(OSError, ValueError, KeyError):
            lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
            kib = {name: value.removesuffix("kB") for name, _, value in (line.partition(":") for line in lines)}
            return (int(kib["VmRSS"]) - int(kib.get("RssShmem", "0"))) * 1024
        return 0

    @property
    def has_ended(self) -> bool:
        """Whether the child is gone, so that it runs nothing any more."""
        return self.process.poll() is not None

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        """Run one batch in the child and wait for it; see ``Runtime.run``.

        Raises:
            InferenceError: the model failed.
            ExecutorLost: the child died, or hung for five minutes and was killed.
        """
        try:
            self.send([inputs], outputs)
            reply = self._wait()
        except OSError as error:
            raise self.lost() from error
        if isinstance(reply, BatchFailed):
            raise reply.error
        if not isinstance(reply, Ran):
            raise self.lost()
        return self.take(reply)

    def send(self, parts: Sequence[Arrays], outputs: Sequence[str]) -> None:
        """Give the child a batch: the concatenation of its parts. One at a time.

        Raises:
            OSError: the child is gone, or there is no memory for the tensors.
        """
        placed = self._requests.put(parts, tuple(parts[0]))
        self.connection.sendall(frame(RunBatch(placed, tuple(outputs), self._requests.size_bytes)))

    def receive(self) -> Reply | None:
        """Read what there is from the child; return a reply where one is whole now.

        Raises:
            ExecutorLost: the child is gone.
        """
        try:
            data = self.connection.recv(_READ_BYTES)
            if data:
                found = next(self._frames.feed(data), None)
                return self._decoder.decode(found) if found is not None else None
        except TimeoutError:
            raise
        except (OSError, ValueError) as error:  # a reply that cannot be read is no reply of ours
            raise self.lost() from error
        raise self.lost()

    def take(self, reply: Ran) -> Arrays:
        """Return the outputs of a batch, copied: the next batch writes over them.

        Raises:
            ExecutorLost: the reply is not one that our child sends.
        """
        try:
            return {name: np.array(view) for name, view in self._replies.get(reply.tensors, reply.size_bytes).items()}
        except (msgspec.MsgspecError, ValueError, KeyError, TypeError) as error:
            raise self.lost() from error

    def lost(self) -> ExecutorLost:
        """Say how the child ended; kills it where it only seems to have."""
        return ExecutorLost(
            f"the process that ran variant {self._name!r} ended ({self._how()})",
            hint="another process replaces it; retry. If it ends again, check the server's log and memory",
        )

    def _how(self) -> str:
        self.kill()
        return describe_exit(self.process.wait())

    def kill(self) -> None:
        """End the child at once, whatever it does, and what it started: that may hold our connection open."""
        if self.process.returncode is None:  # not waited for yet, so that the group's number is still its own
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def close(self, timeout_s: float = 5.0) -> None:
        """Let the child end by itself, at most for ``timeout_s``; then it is killed. Calling it twice is allowed."""
        self.connection.close()
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()
        if self.ended >= 0:
            os.close(self.ended)
            self.ended = -1
        self._requests.close()
        self._replies.close()

    def _wait(self) -> Reply:
        while (reply := self.receive()) is None:
            pass
        return reply


def _spawn(theirs: socket.socket, *arenas: Arena) -> subprocess.Popen[bytes]:
    """Start the child; a new interpreter, because a forked one would share locks and threads that are not there."""
    # -P: the folder that the server was started in is no place to import from; python_path is.
    descriptors = [theirs.fileno(), *(arena.descriptor for arena in arenas)]
    try:
        return subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "tailcut.models.runtimes.remote.child",
                str(os.getpid()),
                *map(str, descriptors),
            ],
            stdin=subprocess.DEVNULL,
            stdout=2,  # what the model prints is log
            pass_fds=descriptors,
            process_group=0,  # a Ctrl-C in the terminal is for the server, which lets running batches end
        )
    except OSError as error:
        raise StartError(
            f"cannot start a process for the model: {error.strerror}", hint="raise the limit of processes or memory"
        ) from error
