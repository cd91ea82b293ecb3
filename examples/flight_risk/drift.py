"""Replay months through the drift detector: ``python -m flight_risk.drift`` (in examples/, after prepare).

Two replays, of the model's inputs and, where a model has been trained, of its answers:

- the holdout's own months against the holdout, which is what a server compares its traffic with;
- the holdout's months against the months before it, which the model was trained on: what a server would have told if it
  had been put into service at the end of September.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from flight_risk.columns import CATEGORICAL, NUMERIC
from flight_risk.settings import HOLDOUT_FROM, LEAD_S, TRAIN_FROM, home
from tailcut.common.tensors import Array, Arrays
from tailcut.manifest import TensorSpec
from tailcut.observe.drift.detector import Detector, DriftAlarm, DriftSettings
from tailcut.observe.drift.sketch import columns_of, sketches_of

INPUTS = (
    TensorSpec(name="numeric", datatype="FP32", shape=(-1, len(NUMERIC)), columns=NUMERIC),
    TensorSpec(name="categorical", datatype="INT64", shape=(-1, len(CATEGORICAL)), columns=CATEGORICAL),
)
OUTPUTS = (TensorSpec(name="risk", datatype="FP32", shape=(-1,)),)
BLOCK = 64
_SHOWN = 8


class Rows(NamedTuple):
    """Flights in the order of their predictions: when each was made, inputs and answers by name."""

    at_s: np.ndarray
    inputs: Arrays
    outputs: Arrays

    def at(self, places: np.ndarray) -> Rows:
        """Return some of them."""
        inputs = {name: array[places] for name, array in self.inputs.items()}
        return Rows(self.at_s[places], inputs, {name: array[places] for name, array in self.outputs.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--window", type=float, default=28.0, help="days; weather comes in spells of weeks")
    parser.add_argument("--days", action="store_true", help="flights of one day hang together, as with holdout.group")
    arguments = parser.parse_args()
    rows = _rows()
    holdout = rows.at(np.flatnonzero(rows.at_s + LEAD_S >= HOLDOUT_FROM))
    before = rows.at(np.flatnonzero((rows.at_s + LEAD_S < HOLDOUT_FROM) & (rows.at_s >= TRAIN_FROM)))
    for title, reference in (("the holdout itself", holdout), ("January to September", before)):
        print(f"October to December against {title} ({len(reference.at_s)} flights):")
        detector = _detector(reference, arguments.window * 86_400, days=arguments.days)
        for alarm in _alarms(detector, holdout):
            print(_told(alarm))
        print(f"{detector.alarms} alarms\n")


def _rows() -> Rows:
    path = home() / "features.npz"
    if not path.is_file():
        raise SystemExit(f"error: no features at {path}\n\nhint: python -m flight_risk.prepare (in examples/)")
    with np.load(path) as file:
        order = np.argsort(file["sched_dep"], kind="stable")
        inputs = {name: file[name][order] for name in ("numeric", "categorical")}
        return Rows(file["sched_dep"][order] - LEAD_S, inputs, _answers(inputs))


def _answers(inputs: Arrays) -> Arrays:
    """Return the trained model's answers; nothing where there is no model."""
    if not (home() / "model.pt").is_file():
        print("no model has been trained: its answers are left out\n")
        return {}
    import torch

    from flight_risk.model import load

    model = load().eval()
    parts = []
    with torch.inference_mode():
        for begin in range(0, len(inputs["numeric"]), 4096):
            numeric, categorical = (
                torch.from_numpy(inputs[name][begin : begin + 4096]) for name in ("numeric", "categorical")
            )
            parts.append(model(numeric, categorical).numpy())
    return {"risk": np.concatenate(parts)}


def _detector(reference: Rows, window_s: float, *, days: bool) -> Detector:
    groups = reference.at_s // 86_400 if days else None
    inputs = sketches_of("input", INPUTS, reference.inputs, groups)
    outputs = sketches_of("output", OUTPUTS, reference.outputs, groups)
    return Detector([*inputs, *outputs], DriftSettings(window_s=window_s))


def _alarms(detector: Detector, rows: Rows) -> Iterator[DriftAlarm]:
    for begin in range(0, len(rows.at_s), BLOCK):
        block = rows.at(np.arange(begin, min(begin + BLOCK, len(rows.at_s))))
        columns: list[Array] = []
        for spec in INPUTS:
            columns += columns_of("input", spec, block.inputs[spec.name]).values()
        for spec in OUTPUTS:
            if spec.name in block.outputs:
                columns += columns_of("output", spec, block.outputs[spec.name]).values()
        alarm = detector.update(columns, float(block.at_s[-1]))
        if alarm is not None:
            yield alarm


def _told(alarm: DriftAlarm) -> str:
    named = [f"{each.name} (PSI {each.psi:.2f}, since {_day(each.since_s)})" for each in alarm.columns[:_SHOWN]]
    more = len(alarm.columns) - _SHOWN
    return f"  {_day(alarm.at_s)}  {', '.join(named)}{f' and {more} more' if more > 0 else ''}"


def _day(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%d %b}"


if __name__ == "__main__":
    main()
