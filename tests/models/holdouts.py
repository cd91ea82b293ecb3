"""Holdouts, good and bad, for a build's child processes. Without torch, so that a child starts at once."""

from __future__ import annotations

import os
import sys
import threading

import numpy as np

from tailcut.build import Holdout


def holdout() -> Holdout:
    """For the models of tests.models.tabular."""
    random = np.random.default_rng(3)
    inputs = {
        "numeric": random.normal(size=(300, 6)).astype(np.float32),
        "categorical": random.integers(0, 10, size=(300, 2)),
    }
    return Holdout(inputs=inputs, labels=random.integers(0, 2, size=300))


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


def linear() -> Holdout:
    """For tests.models.graphs.linear with 64 inputs; labels that the model of TEST_LINEAR_MODEL foresees perfectly."""
    import onnxruntime

    x = np.random.default_rng(5).normal(size=(500, 64)).astype(np.float32)
    session = onnxruntime.InferenceSession(os.environ["TEST_LINEAR_MODEL"])
    scores = session.run(["y"], {"x": x})[0]
    return Holdout(inputs={"x": x}, labels=(scores > np.median(scores)).astype(np.int64))
