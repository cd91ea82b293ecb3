"""What a reload, a pool that changes its size, and another model's loads cost requests at half of capacity.

    python -m benchmarks.reload [--model compute|mlp] [--switches 40] [--only reload|scaling|neighbour] [--out FOLDER]

Server on core 0, open-loop load (Poisson) on core 1 at half of what a closed loop measured just before, or at the most
that the generator sends without being late. Latency counts from the intended moment. Three kinds of switches:

- reload: POST /v2/repository/models/{model}/load with the other of two versions; it returns when that is served.
- scaling: the pool goes from one executor to two and back. Its own rule would do that seldom at half of capacity, and
  only after half a minute; so the server is started by this script with a rule that reads the number from a file. What
  opens, warms up, joins, drains and closes executors is the server's own.
- neighbour: another model of the same server, equal to the one that is asked, is loaded and unloaded in turn.

Before each switch some seconds of quiet, whose requests are its "before"; its "during" begins with it and ends 1 s
later, or half a second after it was done where that is later. Forty switches, because chance alone has an interval: of
25 times that nothing was done it was 0.94 to 1.37.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.compute import LARGEST, bare, compute_model, manifest
from benchmarks.mlp import BODY_FLOATS, MANIFEST, write_model
from benchmarks.overhead import commit, cpu, free_port, interpreter, server
from benchmarks.peers import wrk
from benchmarks.peers.bodies import JSON, Shape, body_of
from benchmarks.peers.processes import LOAD_CORE, SERVER_CORE
from benchmarks.promotion import cut, load
from benchmarks.reload_report import render
from benchmarks.steal import Taken

_SHARE = 0.5
_MOST_RPS = 3000.0
"""What one core of this generator sends without being late."""

_QUIET_S, _WINDOW_S, _AFTER_S, _SETTLE_S = 4.0, 1.0, 0.5, 0.5
"""As ``benchmarks.promotion`` cuts its windows."""

KINDS = ("reload", "scaling", "neighbour")
NEIGHBOUR = "neighbour"

_LOOK_S = 0.1
_LONGEST_S = 60.0

Moment = tuple[float, float]
Act = Callable[[int], None]
"""Does the switch of a number and returns when it is done."""


class Subject(NamedTuple):
    """A deployment in a folder, its two versions in its registry, and a request."""

    folder: Path
    name: str
    label: str
    versions: list[str]
    body: bytes
    connections: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("compute", "mlp"), default="compute")
    parser.add_argument("--switches", type=int, default=40, help="reloads, and ups and downs of the pool")
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--serve", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve_scaled(Path(arguments.serve[0]), arguments.serve[1:])
        return
    if not wrk.is_there():
        sys.exit(f"error: {wrk.MISSING}")
    if (os.cpu_count() or 1) < 2:
        sys.exit("error: the server and the load need a core each; this machine has one")
    os.sched_setaffinity(0, {LOAD_CORE})
    result = collect(arguments.model, arguments.switches, arguments.only)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "reload.json"
    results = {**(json.loads(path.read_text()) if path.is_file() else {}), arguments.model: result}
    path.write_text(json.dumps(results) + "\n")
    text = render(results)
    (arguments.out / "reload.md").write_text(text)
    print(text)


def collect(model: str, switches: int, only: str | None) -> dict[str, Any]:
    """Measure both kinds of switches; return what goes to the file."""
    load_before = os.getloadavg()[0]
    kinds = [only] if only else KINDS
    with tempfile.TemporaryDirectory() as name:
        subject = prepare(model, Path(name))
        measured = {kind: measure(subject, kind, switches) for kind in kinds}
    return {
        "command": " ".join(["python -m benchmarks.reload", *sys.argv[1:]]),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "cpu": cpu(),
        "python": interpreter(),
        "load_average": {"before": load_before, "after": os.getloadavg()[0]},
        "label": subject.label,
        "kinds": measured,
    }


# -- The deployment ------------------------------------------------------------------------------------------------


def prepare(model: str, folder: Path) -> Subject:
    """Write a deployment with two versions of its model, which differ in a remark only."""
    if model == "mlp":
        text, source, label = MANIFEST, write_model(folder / "mlp.onnx"), "MLP 64-256-256-1"
        body, connections = BODY_FLOATS, 32
    else:
        compute = compute_model(folder)
        limit_ms = 25 + bare(compute, 6.0, SERVER_CORE)[LARGEST]
        text = manifest(compute, rows=LARGEST, limit_ms=limit_ms, deadline_ms=500)
        source, label = compute.path, compute.label
        body, connections = body_of("oip", Shape(compute.shape.inputs, compute.shape.row))[0], LARGEST * 3 // 2
    (folder / "tailcut.toml").write_text(text.replace('variant = "source"', 'variant = "promoted"'))
    name, versions = _register(folder, source)
    return Subject(folder, name, label, versions, body, connections)


def _register(folder: Path, source: Path) -> tuple[str, list[str]]:
    import onnx

    from tailcut.manifest import load as load_manifest
    from tailcut.registry import NewVariant, Registry

    loaded = load_manifest(folder, environment={})
    name, model = loaded.deployment.name, loaded.deployment.model
    registry, graph, versions = Registry.of(loaded), onnx.load(source), []
    for number in range(2):
        graph.doc_string = f"version {number}"
        path = folder / f"{number}.onnx"
        onnx.save(graph, path)
        variants = [NewVariant("onnx", "onnxruntime", path, base=True)]
        made = registry.add(name, source="onnx", inputs=model.inputs, outputs=model.outputs, variants=variants)
        versions.append(made.id)
    registry.promote(name, versions[0], "onnx", force=True)
    return name, versions


# -- Switching -----------------------------------------------------------------------------------------------------


@contextmanager
def serving(subject: Subject, kind: str) -> Iterator[tuple[str, Act]]:
    """A server, and what switches it."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    flags = ["serve", "--manifest", str(subject.folder), "--port", str(port), "--set", "server.drain=100ms"]
    if kind == "neighbour":
        flags += ["--manifest", str(_neighbour(subject))]
        with server([sys.executable, "-m", "tailcut", *flags], port, path="/v2/health/ready"):
            yield url, partial(load_in_turn, url)
        return
    if kind == "reload":
        with server([sys.executable, "-m", "tailcut", *flags], port, path="/v2/health/ready"):
            yield url, partial(reload, url, subject)
        return
    wanted = subject.folder / "wanted"
    wanted.write_text("1")
    flags += ["--set", 'pool.executor="thread"', "--set", "pool.executors=1", "--set", "pool.max_executors=2"]
    command = [sys.executable, "-m", "benchmarks.reload", "--serve", str(wanted), *flags]
    with server(command, port, path="/v2/health/ready"):
        yield url, partial(scale, url, wanted)


def serve_scaled(wanted: Path, arguments: list[str]) -> None:
    """Run ``tailcut`` with a pool whose size is what a file says."""
    import multiprocessing

    from tailcut.cli.app import run
    from tailcut.models import pool
    from tailcut.scheduler.pool_scaling import PoolObservation, ScalingLimits

    class Asked:
        why = "asked for"

        def __init__(self, limits: ScalingLimits) -> None:
            self._last = limits.least

        def target(self, seen: PoolObservation) -> int:
            text = wanted.read_text()
            self._last = int(text) if text else self._last  # empty while it is being written
            return self._last

    vars(pool)["Scaler"] = Asked  # in this process, and in the worker that it forks
    multiprocessing.set_start_method("fork", force=True)
    sys.exit(run(arguments))


def reload(url: str, subject: Subject, number: int) -> None:
    """Load the version that is not served."""
    body = json.dumps({"parameters": {"version": subject.versions[number % 2]}}).encode()
    _request(f"{url}/v2/repository/models/{subject.name}/load", body)


def _neighbour(subject: Subject) -> Path:
    """Write a model like the one that is asked, beside it."""
    folder = subject.folder / NEIGHBOUR
    folder.mkdir(exist_ok=True)
    text = (subject.folder / "tailcut.toml").read_text()
    name = next(line for line in text.splitlines() if line.startswith("name ="))
    text = text.replace(name, f'name = "{NEIGHBOUR}"', 1).replace('variant = "promoted"', 'variant = "source"')
    (folder / "tailcut.toml").write_text(text)
    for source in subject.folder.glob("*.onnx"):
        shutil.copy(source, folder)
    return folder


def load_in_turn(url: str, number: int) -> None:
    """Unload the other model, or load it again."""
    _request(f"{url}/v2/repository/models/{NEIGHBOUR}/{'unload' if number % 2 else 'load'}", b"")


def scale(url: str, wanted: Path, number: int) -> None:
    """Let the pool have two executors, or one, and wait until it has."""
    count = 1 + number % 2
    wanted.write_text(str(count))
    give_up_s = time.perf_counter() + _LONGEST_S
    while executors(url) != count:
        if time.perf_counter() > give_up_s:
            raise SystemExit(f"error: the pool did not come to {count} executors in {_LONGEST_S:g} s")
        time.sleep(_LOOK_S)


def executors(url: str) -> int:
    """Read how many executors take batches."""
    lines = _request(f"{url}/metrics").decode().splitlines()
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if line.startswith("tailcut_executors{"))


def _request(url: str, body: bytes | None = None) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=_LONGEST_S) as reply:  # noqa: S310
        read: bytes = reply.read()
    return read


# -- Measuring -----------------------------------------------------------------------------------------------------


def measure(subject: Subject, kind: str, switches: int) -> dict[str, Any]:
    """Serve, find the capacity, send half of it, switch again and again."""
    with serving(subject, kind) as (url, act):
        infer = f"{url}/v2/models/{subject.name}/infer"
        script = wrk.write_script(subject.folder / "post.lua", subject.body, JSON)
        wrk.run(infer, script, subject.connections, 2)
        capacity = wrk.run(infer, script, subject.connections, 5)["rps"]
        rate = min(_SHARE * capacity, _MOST_RPS)
        sys.stderr.write(f"{kind}: capacity {capacity:.0f} req/s, load {rate:.0f} req/s\n")
        duration_s = 4.0 + switches * (_QUIET_S + _WINDOW_S + _SETTLE_S + 2.0)
        with load(infer, subject.body, rate, duration_s) as samples:
            time.sleep(2.0)
            taken = Taken((SERVER_CORE, LOAD_CORE))
            moments = [switch(url, act, number, taken) for number in range(1, switches + 1)]
            started_s, found, said = samples()
    ended_s = found.intended_ns[-1] / 1e9 + started_s
    whole = [moment for moment in moments if moment[1] + _AFTER_S < ended_s]
    windows = [cut(moment, started_s, found) for moment in whole]
    counted = found.intended_ns >= found.measured_from_ns
    failed = counted & (found.status != 200)
    return {
        "capacity_rps": capacity,
        "rate_rps": rate,
        "requests": int(counted.sum()),
        "errors": int(failed.sum()),
        "failed": [
            {"at_s": round(float(at_ns) / 1e9, 3), "status": int(status)}
            for at_ns, status in zip(found.intended_ns[failed], found.status[failed], strict=True)
        ],
        "said": said,
        "taken_at_s": [[round(at_s - started_s, 3), *ms] for at_s, *ms in taken.found],
        "switched_at_s": [round(began_s - started_s, 3) for began_s, _ in moments],
        "switches": [
            {
                "took_s": window.swap_s,
                "before_ms": window.before.round(3).tolist(),
                "during_ms": window.during.round(3).tolist(),
            }
            for window in windows
        ],
    }


def switch(url: str, act: Act, number: int, taken: Taken) -> Moment:
    """Wait, switch; return when that began and when it was done (seconds)."""
    quiet_s = time.perf_counter() + _QUIET_S
    while time.perf_counter() < quiet_s:
        executors(url)  # looked at as often as during a scaling: a look costs the server something too
        taken.look()
        time.sleep(_LOOK_S)
    began_s = time.perf_counter()
    act(number)
    done_s = time.perf_counter()
    sys.stderr.write(f"switch {number}: {(done_s - began_s) * 1e3:.0f} ms\n")
    while time.perf_counter() < max(began_s + _WINDOW_S, done_s + _AFTER_S) + _SETTLE_S:
        executors(url)
        taken.look()
        time.sleep(_LOOK_S)
    return began_s, done_s


if __name__ == "__main__":
    main()
