"""CPU time per request of this checkout beside an older commit, interleaved, with an A/A pair.

    python -m benchmarks.checkouts --old COMMIT [--rounds 9] [--seconds 3] [--connections 32] [--bounds]
        [--models 50] [--set PATH=VALUE] [--in-process]

The model is the MLP of benchmarks.mlp, one row of 64 floats a request, as JSON and as a binary tensor. Three servers
are up: the old commit's, this checkout's, and this checkout's again; wrk asks one after the other, in an order that
changes from round to round. A round's figure is the processor time of the server (user and system) by its requests.
With --bounds the first server has this checkout's code too and the second declares bounds of its input. With --models
the first has this checkout's code and the model alone, the second so many models, of which one is asked. With --set the
first has this checkout's code and the settings, such as observe.traces.enabled=false: what it costs without them.
With --in-process there are no servers and no wrk: see ``benchmarks.in_process``. Its interval is a fifth as wide.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import mean, stdev

from benchmarks.mlp import BODY_FLOATS, MANIFEST, write_model
from benchmarks.overhead import free_port
from tailcut.gate.distributions import student_quantile

ROOT = Path(__file__).parents[1]
_BOUNDS = "min = -1e6, max = 1e6, "
_TICKS = os.sysconf("SC_CLK_TCK")
_LUA = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "%s"
%s
local f = io.open("%s", "rb")
wrk.body = f:read("*a")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", default="HEAD", help="commit to compare with")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=int, default=3, help="of a round, over sockets")
    parser.add_argument("--connections", type=int, default=32, help="over sockets; in process they are 32")
    parser.add_argument("--bounds", action="store_true", help="what bounds of the input cost, instead of two commits")
    parser.add_argument("--models", type=int, default=0, help="what so many models cost, instead of two commits")
    parser.add_argument("--set", action="append", default=[], help="what a setting saves, instead of two commits")
    parser.add_argument("--in-process", action="store_true", help="without sockets, through the ASGI application")
    arguments = parser.parse_args()
    if arguments.in_process and arguments.models:
        parser.error("--in-process is of one model: leave --models out")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        is_one_commit = arguments.bounds or arguments.models or arguments.set
        old = ROOT if is_one_commit else stack.enter_context(checkout(arguments.old, folder))
        write_model(folder / "mlp.onnx")
        plain = folder / "tailcut.toml"
        plain.write_text(MANIFEST)
        bounded = folder / "bounded.toml"
        bounded.write_text(MANIFEST.replace('name = "x", ', f'name = "x", {_BOUNDS}'))
        new = bounded if arguments.bounds else many(folder, arguments.models) if arguments.models else plain
        if arguments.in_process:
            sides = {"old": (old, plain, arguments.set), "new": (ROOT, new, []), "new again": (ROOT, new, [])}
            report("in process", measure_in_process(sides, arguments.rounds))
            return
        servers = {
            "old": stack.enter_context(server(old, plain, arguments.set)),
            "new": stack.enter_context(server(ROOT, new)),
            "new again": stack.enter_context(server(ROOT, new)),
        }
        for kind, script in scripts(folder).items():
            report(kind, measure(servers, script, arguments.rounds, arguments.seconds, arguments.connections))


def many(folder: Path, count: int) -> Path:
    """Write a folder of equal models, of which the first is the one that is asked."""
    for number in range(count):
        model = folder / "models" / f"{number:02}"
        model.mkdir(parents=True)
        name = f"mlp{number:02}" if number else "mlp"
        (model / "tailcut.toml").write_text(MANIFEST.replace('name = "mlp"', f'name = "{name}"'))
        shutil.copy(folder / "mlp.onnx", model)
    return folder / "models"


@contextmanager
def checkout(commit: str, folder: Path) -> Iterator[Path]:
    """Check a commit out into a folder of its own."""
    at = folder / "old"
    subprocess.run(["git", "worktree", "add", "--detach", "--quiet", str(at), commit], cwd=ROOT, check=True)
    try:
        yield at
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(at)], cwd=ROOT, check=True)


@contextmanager
def server(code: Path, manifest: Path, settings: Sequence[str] = ()) -> Iterator[tuple[int, int]]:
    """Run ``tailcut serve`` of a checkout; yield its process id and port."""
    port = free_port()
    command = [sys.executable, "-m", "tailcut", "serve", "--manifest", str(manifest), "--port", str(port)]
    command += [flag for setting in settings for flag in ("--set", setting)]
    environment = {**os.environ, "PYTHONPATH": str(code / "src")}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=1)
                break
            except OSError:
                time.sleep(0.1)
        yield process.pid, port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def scripts(folder: Path) -> dict[str, Path]:
    """Write wrk's scripts: the same row as JSON and as a binary tensor."""
    values = json.loads(BODY_FLOATS)["inputs"][0]["data"]
    tensor = {"name": "x", "shape": [1, len(values)], "datatype": "FP32"}
    body = json.dumps({"inputs": [{**tensor, "data": values}]}).encode()
    raw = struct.pack(f"<{len(values)}f", *values)
    described = {"inputs": [{**tensor, "parameters": {"binary_data_size": len(raw)}}]}
    header = json.dumps({**described, "parameters": {"binary_data_output": True}}).encode()
    found = {}
    for kind, content, line in (
        ("JSON", body, ""),
        ("binary", header + raw, f'wrk.headers["Inference-Header-Content-Length"] = "{len(header)}"'),
    ):
        (folder / f"{kind}.body").write_bytes(content)
        found[kind] = folder / f"{kind}.lua"
        media = "application/json" if kind == "JSON" else "application/octet-stream"
        found[kind].write_text(_LUA % (media, line, folder / f"{kind}.body"))
    return found


def measure(
    servers: Mapping[str, tuple[int, int]], script: Path, rounds: int, seconds: int, connections: int
) -> dict[str, list[float]]:
    """Return microseconds of processor time per request, one a round, by server; a round before them warms up."""

    def figure(name: str) -> float:
        process, port = servers[name]
        before = cpu_s(process)
        done = subprocess.run(
            ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), path(port)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        requests = int(re.search(r"(\d+) requests in", done)[1])  # type: ignore[index]
        if "Non-2xx" in done or not requests:
            sys.exit(f"error: {name} did not answer\n\n{done}")
        return (cpu_s(process) - before) / requests * 1e6

    return {name: figures[1:] for name, figures in interleaved(list(servers), rounds + 1, figure).items()}


def measure_in_process(sides: Mapping[str, tuple[Path, Path, Sequence[str]]], rounds: int) -> dict[str, list[float]]:
    """As ``measure``, each figure of a process of its own; ``sides`` have checkout, manifest and settings."""

    def figure(name: str) -> float:
        code, manifest, settings = sides[name]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.in_process", str(manifest), *settings],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(code / "src")},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(done.stderr)
        return float(done.stdout)

    return interleaved(list(sides), rounds, figure)


def interleaved(names: Sequence[str], rounds: int, figure: Callable[[str], float]) -> dict[str, list[float]]:
    """Return a figure per round and name; the order changes from round to round."""
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in (*names[turn:], *names[:turn]):
            found[name].append(figure(name))
    return found


def path(port: int) -> str:
    return f"http://127.0.0.1:{port}/v2/models/mlp/infer"


def cpu_s(process: int) -> float:
    """Return the processor seconds of a process and of the worker that it started."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return (int(fields[11]) + int(fields[12])) / _TICKS + sum(cpu_s(int(child)) for child in children)


def report(kind: str, found: Mapping[str, list[float]]) -> None:
    shown = ", ".join(f"{name} {mean(values):.1f} us" for name, values in found.items())
    print(f"{kind}: {shown} of processor time per request, {len(found['old'])} rounds")
    for name, one, other in (("new / old", "new", "old"), ("A/A: new again / new", "new again", "new")):
        ratios = [a / b for a, b in zip(found[one], found[other], strict=True)]
        beside = student_quantile(0.975, len(ratios) - 1) * stdev(ratios) / len(ratios) ** 0.5
        print(f"  {name}: {mean(ratios):.3f} ({mean(ratios) - beside:.3f} to {mean(ratios) + beside:.3f})")


if __name__ == "__main__":
    main()
