"""Holdouts, good and bad, for a build's child processes. Without torch, so that a child starts at once."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading

import numpy as np

from tailcut.build import Holdout


def holdout() -> Holdout:
    """For the models of tests.models.tabular."""
    drawn = np.random.default_rng(3)
    inputs = {
        "numeric": drawn.normal(size=(300, 6)).astype(np.float32),
        "categorical": drawn.integers(0, 10, size=(300, 2)),
    }
    return Holdout(inputs=inputs, labels=drawn.integers(0, 2, size=300))


def crashing() -> Holdout:
    sys.stderr.write("about to crash\n")
    sys.stderr.flush()
    os.abort()


def hanging() -> Holdout:
    threading.Event().wait(120)
    return holdout()


def greedy() -> Holdout:
    sys.stderr.write("taking all that is there\n")
    held = np.ones(400 << 20, dtype=np.uint8)
    threading.Event().wait(60)  # it is killed long before
    return Holdout(inputs={"x": held}, labels=held)


def raising() -> Holdout:
    raise KeyError("arrival_delay")


def wrong() -> dict[str, np.ndarray]:
    return {"numeric": np.zeros((3, 6), np.float32)}


def of_chance() -> Holdout:
    """Other rows in every process: from numpy's generator, which is not seeded."""
    return Holdout(inputs={**_zeros(20).inputs, "numeric": np.random.random((20, 6))}, labels=np.arange(20) % 2)


def of_modules() -> Holdout:
    """Twenty rows, or one more where another module of the user's is imported already."""
    return _of_imported("tests.models.graphs")


def of_lightgbm() -> Holdout:
    """Twenty rows, or one more where LightGBM is imported already."""
    return _of_imported("lightgbm")


def of_torch() -> Holdout:
    """Twenty rows, or one more where torch is imported already; looked at for a while."""
    found = _of_imported("torch")
    threading.Event().wait(0.6)
    return found


def _of_imported(module: str) -> Holdout:
    rows = 20 + (module in sys.modules)
    importlib.import_module(module)
    return _zeros(rows)


def _zeros(rows: int) -> Holdout:
    inputs = {"numeric": np.zeros((rows, 6)), "categorical": np.zeros((rows, 2), int)}
    return Holdout(inputs=inputs, labels=np.arange(rows) % 2)


def naming_its_parent() -> Holdout:
    sys.stdout.write(f"parent {os.getppid()}\n")
    return _zeros(20)


def killing_its_parent() -> Holdout:
    os.kill(os.getppid(), signal.SIGKILL)
    threading.Event().wait(60)  # it ends with its parent
    return _zeros(20)


def linear() -> Holdout:
    """For tests.models.graphs.linear with 64 inputs; labels that the model of TEST_LINEAR_MODEL foresees perfectly."""
    import onnxruntime

    x = np.random.default_rng(5).normal(size=(500, 64)).astype(np.float32)
    session = onnxruntime.InferenceSession(os.environ["TEST_LINEAR_MODEL"])
    scores = session.run(["y"], {"x": x})[0]
    return Holdout(inputs={"x": x}, labels=(scores > np.median(scores)).astype(np.int64))
