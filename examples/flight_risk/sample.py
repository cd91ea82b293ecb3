"""A small artefact folder for tests: some weeks of real flights and an untrained model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flight_risk.columns import CATEGORICAL, vocabulary
from flight_risk.data import load_tables
from flight_risk.prepare import write_all
from flight_risk.settings import SEED

if TYPE_CHECKING:
    import pandas as pd


def write_sample(at: Path, first: int, last: int) -> dict[str, pd.DataFrame]:
    """Write what ``prepare`` and ``train`` write, for flights scheduled from ``first`` to ``last``; return the tables.

    FLIGHT_RISK_HOME must name ``at``. The model's weights are random, seeded: its answers mean nothing, but every way
    to compute them must agree.
    """
    import torch

    from flight_risk.model import FlightRisk, Size, save
    from flight_risk.train import quantiles

    data = load_tables()
    flights, weather = data["flights"], data["weather"]
    data["flights"] = flights[flights["sched_dep"].between(first, last)].reset_index(drop=True)
    data["weather"] = weather[weather["obs_ts"].between(first - 86400, last)].reset_index(drop=True)
    write_all(data, at)
    torch.manual_seed(SEED)
    with np.load(at / "features.npz") as file:
        edges = quantiles(file["numeric"], Size().bins)
    cardinalities = [len(codes) + 1 for codes in vocabulary(at / "vocabulary.json")]
    assert len(cardinalities) == len(CATEGORICAL)
    save(FlightRisk(edges, cardinalities, Size()), edges, cardinalities, Size())
    (at / "prepared.json").write_text("{}")
    return data
