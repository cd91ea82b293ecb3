"""What tailcut's own path takes of a core on this machine: a model that computes nothing is served and asked.

That depends on the machine, and on how often a request comes: where a core idles in between, the same code waits for
memory again and takes several times as long (docs/explanation/scheduling.md). So it is measured at the rate of the
recording; a figure from elsewhere would be off by factors.
"""

from __future__ import annotations

import base64
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tailcut.errors import LoadTestError, ProfileError, TailcutError
from tailcut.ladder.machine import choose_cores, pinned
from tailcut.ladder.process import ServerProcess, free_port
from tailcut.load import LoadPlan, measure
from tailcut.profiler.forecast.cpu_scaling import fit_slope
from tailcut.profiler.forecast.idle_cost import FASTEST
from tailcut.profiler.forecast.network_latency import queued_ns
from tailcut.profiler.records import Recording
from tailcut.system.cpu_time import threads_ns

_MODEL = "CAkSADpBChAKAXgSAXkiCElkZW50aXR5EgFuWhQKAXgSDwoNCAESCQoDEgFuCgIIAWIUCgF5Eg8KDQgBEgkKAxIBbgoCCAFCBAoAEBI="
"""ONNX, one node: y = Identity(x), FP32 [n, 1]."""
_MANIFEST = """
name = "nothing"
[model]
source = "nothing.onnx"
inputs = [{ name = "x", datatype = "FP32", shape = [-1, 1] }]
outputs = [{ name = "y", datatype = "FP32", shape = [-1, 1] }]
[serve]
variant = "source"
[server]
drain = "100ms"
[observe.history]
path = "off"
[observe.alerts]
enabled = false
[observe.traces]
endpoint = "off"
"""
_BODY = b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[0.5]}]}\n'
_WARMUP_S = 1.0
_LEAST_S, _MOST_S, _ENOUGH = 2.0, 5.0, 200
_READY_S = 60.0
_QUANTILES = np.linspace(0.005, 0.995, 100)


class OwnPath(NamedTuple):
    """What tailcut's own path takes here.

    Attributes:
        cpu_ns: of a core per request, at the rate that was asked for, or at ``FASTEST``.
        slope: by which power of the rate that is less up to twice of it; 0: the same, or it does not bear so much.
        waits_ns: how much longer than that a client waited, from when it was due to ask: quantiles, ascending.
    """

    cpu_ns: float
    slope: float
    waits_ns: tuple[float, ...]


class PathSample(NamedTuple):
    """What was seen at one rate.

    Attributes:
        cpu_ns: that the event loop's thread took of a core per request.
        way_ns: of each request that was measured, from when it was due, without that and without waiting for others of
            them, shape [n].
    """

    cpu_ns: float
    way_ns: npt.NDArray[np.float64]


def with_path(recording: Recording, *, on_step: Callable[[str], None]) -> Recording:
    """Add what tailcut's path takes here, at the recording's rate; where that does not work, a note that says why.

    Args:
        on_step: hears what is being done, and what went wrong.
    """
    on_step("measuring the cost of tailcut's own path here")
    try:
        path = measure_path(recording.rate)
    except (TailcutError, OSError, KeyboardInterrupt) as error:
        why = "it was interrupted" if isinstance(error, KeyboardInterrupt) else getattr(error, "message", str(error))
        note = f"the cost of tailcut's own path could not be measured here ({why}): it is estimated from other machines"
        on_step(note)
        return msgspec.structs.replace(recording, notes=(*recording.notes, note))
    pilot = msgspec.structs.replace(
        recording.pilot, path_ns=path.cpu_ns, path_slope=path.slope, path_waits_ns=path.waits_ns
    )
    return msgspec.structs.replace(recording, pilot=pilot)


def measure_path(rate: float) -> OwnPath:
    """Serve a model of nothing and measure what the event loop's thread takes of a core per request.

    Args:
        rate: requests per second, Poisson arrivals.

    Raises:
        StartError: the server does not come up.
        LoadTestError: the load could not be sent.
        ProfileError: the kernel does not say what threads take, or requests failed.
    """
    cores = choose_cores()
    with tempfile.TemporaryDirectory(prefix="tailcut-path-") as name:
        folder = Path(name)
        (folder / "nothing.onnx").write_bytes(base64.b64decode(_MODEL))
        (folder / "tailcut.toml").write_text(_MANIFEST, encoding="utf-8")
        (folder / "bodies.jsonl").write_bytes(_BODY)
        port = free_port()
        command = [sys.executable, "-m", "tailcut", "serve", "--manifest", str(folder), "--port", str(port)]
        # What is set for a deployment of the user's is not for this one.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TAILCUT_")}
        server = ServerProcess(
            command, port, folder / "serve.log", environment=environment, directory=folder, core=cores.server
        )
        with server, pinned(cores.load):
            server.wait_until_ready("/v2/health/ready", timeout_s=_READY_S, ok=(200,))
            server.try_one("/v2/models/nothing/infer", _BODY, timeout_s=10.0)
            return _in_turns(lambda one: _ask(server.pid, _plan(folder, port, one)), rate)


def _in_turns(ask: Callable[[float], PathSample], rate: float) -> OwnPath:
    """Ask at a rate and at twice of it, in turns, because what a machine can do wanders."""
    asked = [ask(min(rate, FASTEST))]
    twice = list[PathSample]()
    with suppress(LoadTestError):  # it bears the rate, but not twice of it
        if rate <= FASTEST:
            twice.append(ask(2 * rate))
            asked.append(ask(rate))
            twice.append(ask(2 * rate))
    cpu_ns = mean(one.cpu_ns for one in asked)
    ways_ns = np.concatenate([one.way_ns for one in asked])
    slope = fit_slope((rate, cpu_ns), (2 * rate, mean(one.cpu_ns for one in twice))) if len(twice) > 1 else 0.0
    if not len(ways_ns):  # so seldom does a request come that none did after the warm-up
        return OwnPath(cpu_ns, slope, ())
    return OwnPath(cpu_ns, slope, tuple(np.maximum(np.quantile(ways_ns, _QUANTILES), 0.0).tolist()))


def _plan(folder: Path, port: int, rate: float) -> LoadPlan:
    return LoadPlan(
        url=f"http://127.0.0.1:{port}/v2/models/nothing/infer",
        rate=rate,
        duration_s=min(max(_ENOUGH / rate, _LEAST_S), _MOST_S),
        warmup_s=_WARMUP_S,
        payloads=str(folder / "bodies.jsonl"),
        headers=(("Content-Type", "application/json"),),
        timeout_s=2.0,
    )


def _ask(pid: int, plan: LoadPlan) -> PathSample:
    before = threads_ns(pid)
    samples, _ = measure(plan)
    took = [now - before.get(thread, 0) for thread, now in threads_ns(pid).items()]
    good = samples.status == 200
    answered = int(good.sum())
    if not answered or answered < 0.9 * len(samples.status):
        raise LoadTestError(
            f"{answered} of {len(samples.status)} requests to tailcut's own path were answered at {plan.rate:g}/s",
            hint="stop other programs on this machine, or profile at a lower --rate",
        )
    if not took or max(took) <= 0:
        raise ProfileError(
            "the kernel does not say what threads take of a core",
            hint="/proc/<pid>/task/<thread>/schedstat is needed",
        )
    # HTTP and the model are on the event loop: nobody does more.
    cpu_ns = max(took) / answered
    due_ns = samples.intended_ns[good].astype(np.float64)
    way_ns = samples.done_ns[good] - due_ns - cpu_ns - queued_ns(due_ns.tolist(), cpu_ns)
    return PathSample(cpu_ns, way_ns[due_ns >= samples.measured_from_ns])
