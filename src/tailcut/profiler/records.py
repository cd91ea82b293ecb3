"""What a profiling run recorded: requests with their spans, what happened to the process, samples of stacks.

All times are nanoseconds of one monotonic clock, the client's and the server's: they run on one machine. So what lies
between the client's sending and the server's entry is the network and waiting to be accepted, and nothing is guessed.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import msgspec

from tailcut.errors import ProfileError
from tailcut.profiler.attribution.layers import Conversion, ModelLayers

FORMAT = 2
"""Of a saved recording; another number is another layout."""
EXECUTOR = "executor"
"""What a wait for an executor's thread is called; with " of " and where it was made, as far as that is known."""

PROCESS_POOL = "process pool"
"""What a wait for a worker process of a pool is called, in the same way."""

TORCH_ON_GPU = "torch on a GPU"
"""Of ``ProfiledProcess.libraries``: torch, with the model's weights on a GPU."""


class Stage(StrEnum):
    """Where a moment of a request's time can go."""

    NETWORK = "network"
    ACCEPT = "accept"
    """Sent, but the server had not begun: the loop was busy, or the connection waited in the backlog."""
    RECEIVE = "receive"
    """Waiting for the body's bytes."""
    DECODE = "decode"
    """Body to objects: JSON and validation."""
    SQL = "sql"
    CACHE = "cache"
    HTTP = "http"
    PREPROCESS = "preprocess"
    """Transformers and tokenizers, called by hand or as steps of a model."""
    MODEL = "model"
    CODE = "code"
    """The user's functions; samples say which."""
    FRAMEWORK = "framework"
    """The web framework's own work: routing, middleware, building requests and replies."""
    ENCODE = "encode"
    """Objects to the reply's bytes."""
    WAIT = "wait"
    """For a thread of a pool, or for a connection of one."""
    LOCK = "lock"
    LOOP = "loop"
    """Ready to go on, but the event loop ran something else."""
    GC = "gc"
    UNATTRIBUTED = "unattributed"


FETCHING = frozenset({Stage.SQL, Stage.CACHE, Stage.HTTP})
"""Stages that ask another service."""


class RecordedSpan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of one request, as long as something took that is known by name.

    Args:
        stage, label: what it was: query text, URL, model or function; what is waited for.
        place: "file.py:line" of the user's innermost frame, or of the function itself; empty where none is known.
        start_ns, end_ns: of the monotonic clock. Spans of one request may lie side by side (gather), and beyond
            ``RecordedRequest.left_ns`` (background tasks).
        parent: index of the enclosing span in the request's spans, always smaller than its own; -1: none.
        thread: where it ran: 0 is the event loop's thread, others count from 1 in the order they were seen.
        cpu_ns: CPU time of its thread between start and end, children included; -1: not known (a span that awaits).
        delay_ns: of the rest, how long its thread was ready to run and had no core; -1: not known.
        more: it is more of a call that has a span already, such as rows of a query that are read: no call of its own.
    """

    stage: Stage
    label: str
    start_ns: int
    end_ns: int
    place: str = ""
    parent: int = -1
    thread: int = 0
    cpu_ns: int = -1
    delay_ns: int = -1
    more: bool = False


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request of the load, as the client and the server saw it.

    Args:
        number: its place in the order of intended times, from 0; the warm-up's are left out, so numbers have a gap.
        intended_ns, sent_ns, done_ns: the client's: when it was due, when it was written, when the reply was whole.
            -1: never happened.
        entered_ns, left_ns: the application was called; the reply's last part was handed to the server. -1: the server
            never saw it, or never answered.
        status: of HTTP; negative where there was no answer (``tailcut.load``'s failures).
        cpu_ns: CPU time of the request's own code on all threads as far as it is known; -1: not known.
        method, path: of HTTP.
        endpoint: "function (file.py:line)" that answered, where the framework says it.
        spans: in the order of their start; parents before children.
    """

    number: int
    intended_ns: int
    sent_ns: int
    done_ns: int
    entered_ns: int = -1
    left_ns: int = -1
    status: int = 0
    cpu_ns: int = -1
    method: str = ""
    path: str = ""
    endpoint: str = ""
    spans: tuple[RecordedSpan, ...] = ()


class Moment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened to the process and may have held up any request.

    Args:
        stage: ``loop`` (one callback held the event loop), ``gc`` (a collection stopped every thread).
        start_ns, end_ns: of the monotonic clock.
        label: the coroutine or callback; for a collection its generation.
        place: "file.py:line" of it.
        request: number of the request whose callback it was; -1: none. To that request it is its own work, to all
            others a wait.
    """

    stage: Stage
    start_ns: int
    end_ns: int
    label: str = ""
    place: str = ""
    request: int = -1


class BackgroundCall(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that no request was known to wait for: in a worker behind a queue, in a task in the background.

    Args:
        stage, label: as of a span.
        calls, took_ns: within the recording, all together.
    """

    stage: Stage
    label: str
    calls: int
    took_ns: int


class StackSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Looks at what a thread that worked on a request was doing, those that saw the same stack together.

    Args:
        stack: "function (file.py:line)", outermost first; frames of the server below the application are left out.
        weight_ns: the time that it stands for: of each look that since the look before.
        place: "function (file.py:line)" of the innermost frame of the user's own code; empty where there is none.
        code: label and place of the span of code that the stack lies in, the label alone of the framework's own time;
            empty where it lies in none, or another kind.
    """

    stack: tuple[str, ...]
    weight_ns: int
    place: str = ""
    code: tuple[str, str] = ("", "")


class ProfiledProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The process that was profiled.

    Args:
        loop: kind of event loop: "asyncio" or "uvloop".
        watched: what held it for long is in the moments.
        threads: size of the thread pool for synchronous handlers; 0: not known.
        hooks: what was hooked, such as "sqlite3", "fastapi".
        versions: of the packages that matter here.
        libraries: what models run on, by the labels of their spans: "torch", TORCH_ON_GPU, "onnxruntime".
        cpu_s: CPU seconds of the process and its children within the measured window.
        database_s: CPU seconds within it of the databases on the same machine; 0: there are none, or none is seen.
        other_cores: of the machine, which the process may not use.
        window_s: seconds measured.
        others_s: CPU seconds within it of everything else on the machine but the load generator and its databases.
    """

    loop: str = ""
    watched: bool = False
    threads: int = 0
    hooks: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    libraries: dict[str, str] = {}
    cpu_s: float = 0.0
    database_s: float = 0.0
    other_cores: int = 0
    window_s: float = 0.0
    others_s: float = 0.0


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a profile is made from.

    Args:
        target, machine: "module:attribute" that was profiled; its cpu, cores, memory, system, python.
        rate, duration_s: requests per second that were offered, and seconds measured.
        requests: in the order of ``number``.
        moments, samples: in the order of time. Samples say where the time of ``code`` went, never how much that was.
        sample_interval_ns: between two looks; 0: no sampling.
        sampled_s: how long stacks were looked at, in a run of its own under the same load; 0: not known.
        layers: of the models that took most time.
        conversions: of its estimators.
        background_calls: calls whose time is in no request under their own name.
        notes: what could not be seen, and what makes figures weaker than they look.
    """

    target: str
    rate: float
    duration_s: float
    requests: tuple[RecordedRequest, ...]
    moments: tuple[Moment, ...] = ()
    samples: tuple[StackSample, ...] = ()
    sample_interval_ns: int = 0
    sampled_s: float = 0.0
    machine: dict[str, str] = {}
    pilot: ProfiledProcess = ProfiledProcess()
    layers: tuple[ModelLayers, ...] = ()
    conversions: tuple[Conversion, ...] = ()
    background_calls: tuple[BackgroundCall, ...] = ()
    notes: tuple[str, ...] = ()
    format: int = FORMAT


def save_recording(recording: Recording, path: Path) -> None:
    """Write a recording as one file (MessagePack).

    Raises:
        ProfileError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.msgpack.encode(recording))
    except OSError as error:
        raise ProfileError(f"cannot write {path}: {error.strerror}", hint="choose a writable folder") from error


def load_recording(path: Path) -> Recording:
    """Read what ``save_recording`` wrote.

    Raises:
        ProfileError: the file is missing, holds something else, or is another version's.
    """
    hint = "give a file written by tailcut profile"
    try:
        found = msgspec.msgpack.decode(path.read_bytes(), type=Recording)
    except (OSError, msgspec.DecodeError) as error:
        raise ProfileError(f"cannot read a recording from {path}: {error}", hint=hint) from error
    if found.format != FORMAT:
        raise ProfileError(
            f"{path} is a recording of format {found.format}; this version reads format {FORMAT}", hint=hint
        )
    return found
