"""The raw samples of a run: everything that reports are made from, and their files."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from tailcut.errors import LoadTestError
from tailcut.load.files import prepare


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """One row per request, in the order of their intended times.

    Args:
        intended_ns, sent_ns, done_ns: int64 [n], nanoseconds from the run's start; -1: never happened.
        status: int16 [n], HTTP status, or a negative ``Failure``.
        cache: int8 [n], place in ``cache_names`` (0: the reply named no outcome).
        stages_ms: per stage float32 [n], milliseconds from Server-Timing; NaN where absent.
        measured_from_ns: requests intended before it are warm-up.
    """

    intended_ns: npt.NDArray[np.int64]
    sent_ns: npt.NDArray[np.int64]
    done_ns: npt.NDArray[np.int64]
    status: npt.NDArray[np.int16]
    cache: npt.NDArray[np.int8]
    cache_names: tuple[str, ...]
    stages_ms: dict[str, npt.NDArray[np.float32]]
    measured_from_ns: int


def save_samples(samples: Samples, path: Path) -> None:
    """Write raw samples as ``.npz``.

    Raises:
        LoadTestError: another suffix, or the file cannot be written.
    """
    prepare(path, ".npz")
    arrays: dict[str, npt.NDArray[np.generic]] = {
        "intended_ns": samples.intended_ns,
        "sent_ns": samples.sent_ns,
        "done_ns": samples.done_ns,
        "status": samples.status,
        "cache": samples.cache,
        "cache_names": np.asarray(samples.cache_names),
        "measured_from_ns": np.asarray(samples.measured_from_ns),
    }
    arrays.update({f"stage_{name}": column for name, column in samples.stages_ms.items()})
    try:
        with path.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
    except OSError as error:
        raise LoadTestError(f"cannot write {path}: {error.strerror}", hint="choose a writable folder") from error


def load_samples(path: Path) -> Samples:
    """Read what ``save_samples`` wrote as ``.npz``.

    Raises:
        LoadTestError: the file is missing or holds something else.
    """
    try:
        with np.load(path, allow_pickle=False) as held:
            names = [key for key in held.files if key.startswith("stage_")]
            return Samples(
                intended_ns=held["intended_ns"],
                sent_ns=held["sent_ns"],
                done_ns=held["done_ns"],
                status=held["status"],
                cache=held["cache"],
                cache_names=tuple(str(name) for name in held["cache_names"]),
                stages_ms={name.removeprefix("stage_"): held[name] for name in names},
                measured_from_ns=int(held["measured_from_ns"]),
            )
    except (OSError, KeyError, ValueError) as error:
        raise LoadTestError(
            f"cannot read raw samples from {path}: {error}", hint="give a .npz file written by --raw"
        ) from error
