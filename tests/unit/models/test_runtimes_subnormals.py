"""Subnormal floats count as zero in the thread that asks for it and in those that it starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

_CODE = """
import threading
import numpy as np

def flushed():
    return bool(np.float32(1e-38) * np.float32(0.1) == 0)

assert not flushed()
from tailcut.models.runtimes.onnxruntime import flush_subnormals
flush_subnormals()
seen = []
thread = threading.Thread(target=lambda: seen.append(flushed()))
thread.start()
thread.join()
print(flushed(), seen[0])
"""


def test_this_thread_and_later_threads_flush() -> None:
    """Given a fresh process, both threads flush after the call (a process, because the mode cannot be taken back)."""
    command = [sys.executable, "-W", "ignore", "-c", _CODE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "True"], done.stderr


_CONFINED = """
import asyncio, sys
from pathlib import Path
import numpy as np
from tests.app_kit import GOOD, INFER, deployment, running
from tests.unit.protocol.test_app_generate import Stream
from tailcut.models import variant_loader as seating
from tailcut.models.runtimes.floats import confine_to_models
from tailcut.models.runtimes.onnxruntime import flush_subnormals
from tailcut.testing.runtimes import CallableRuntime

def smallest():
    return np.float32(1e-38) * np.float32(0.1)

def answer(inputs):
    return {"y": np.full(len(inputs["x"]), smallest()), "z": inputs["x"]}

flush_subnormals()
confine_to_models()
seating.open_runtime = lambda *_, **__: CallableRuntime(lambda inputs: iter([answer(inputs)]), answer)

async def main():
    async with running(deployment(Path(sys.argv[1]), overrides=[f"pool.executor={sys.argv[2]}"])) as client:
        reply = await client.post(INFER, GOOD)
        (event,) = await Stream(client.app, {"x": [1, 2]}).end()
    print(reply.json["outputs"][0]["data"][0] == 0, event["y"] == 0, smallest() == 0)

asyncio.run(main())
"""


@pytest.mark.parametrize("executor", ["inline", "thread"])
def test_where_it_is_confined_models_flush_and_the_event_loop_does_not(tmp_path: Path, executor: str) -> None:
    """Given a model that makes a subnormal number: 0 where it runs and in a stream, and not after."""
    command = [sys.executable, "-W", "ignore", "-c", _CONFINED, str(tmp_path), executor]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout.split() == ["True", "True", "False"], done.stderr
