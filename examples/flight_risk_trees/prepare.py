"""flight_risk's features -> trained trees and their metrics on its holdout: ``python -m flight_risk_trees.prepare``."""

from __future__ import annotations

import json
import os
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flight_risk import prepare as flight_risk_features
from flight_risk.settings import HOLDOUT_FROM, VALID_FROM
from flight_risk.settings import home as flight_risk_home
from flight_risk_trees.features import COLUMNS, Floats, features_of
from flight_risk_trees.model import path
from flight_risk_trees.settings import SEED, home, source_hash

if TYPE_CHECKING:
    import lightgbm

TREES = 300
"""Most trees; the months between training and holdout stop earlier."""
PATIENCE = 20
PARAMETERS = {
    "objective": "binary",
    "metric": "binary_logloss",
    "learning_rate": 0.08,
    "num_leaves": 31,
    "lambda_l2": 1.0,
    "min_data_in_leaf": 50,
    "seed": SEED,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
}

Bits = npt.NDArray[np.bool_]


def main() -> None:
    """Train unless what is there was made by this very code from this very data."""
    flight_risk_features.main()
    at = home()
    stamp = at / "prepared.json"
    wanted = {
        "sources": source_hash("settings", "features", "model", "prepare"),
        "data": json.loads((flight_risk_home() / "prepared.json").read_text()),
        "lightgbm": version("lightgbm"),
    }
    if stamp.is_file() and json.loads(stamp.read_text()) == wanted:
        print(f"trained already in {at}")
    else:
        stamp.unlink(missing_ok=True)
        at.mkdir(parents=True, exist_ok=True)
        (at / ".gitignore").write_text("*\n")
        metrics = _train_and_judge()
        (at / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
        stamp.write_text(json.dumps(wanted))
    print(table(json.loads((at / "metrics.json").read_text())))


def table(metrics: dict[str, Any]) -> str:
    """Format the metrics for people."""
    lines = [f"holdout: October to December, {metrics['rows']} flights, {metrics['late']:.1%} of them late"]
    lines.append(f"{'':<20}{'AUC':>8}{'log loss':>10}{'accuracy':>10}")
    for name, scores in metrics["holdout"].items():
        lines.append(f"{name:<20}{scores['auc']:>8.4f}{scores['log_loss']:>10.4f}{scores['accuracy']:>10.4f}")
    lines.append(f"{metrics['trees']} trees of up to {PARAMETERS['num_leaves']} leaves, {metrics['train_s']:.0f} s")
    return "\n".join(lines)


def _train_and_judge() -> dict[str, Any]:
    from flight_risk.train import score

    with np.load(flight_risk_home() / "features.npz") as file:
        features = features_of({name: file[name] for name in ("numeric", "categorical")})
        late, sched_dep = file["late"].astype(bool), file["sched_dep"]
    fit, valid, held_out = sched_dep < VALID_FROM, sched_dep < HOLDOUT_FROM, sched_dep >= HOLDOUT_FROM
    valid &= ~fit
    began = time.monotonic()
    trees = train(features, late, fit, valid)
    train_s = time.monotonic() - began
    trees.save_model(str(path()))
    labels = late[held_out]
    return {
        "rows": len(labels),
        "late": float(labels.mean()),
        "trees": trees.num_trees(),
        "train_s": round(train_s, 1),
        "holdout": {
            "trees": score(labels, np.asarray(trees.predict(features[held_out]), dtype=np.float64)),
            "constant answer": score(labels, np.full(len(labels), late[~held_out].mean())),
        },
    }


def train(features: Floats, late: Bits, fit: Bits, valid: Bits) -> lightgbm.Booster:
    """Boost on the rows of ``fit`` for as long as the log loss on the rows of ``valid`` falls."""
    import lightgbm

    seen = lightgbm.Dataset(features[fit], late[fit], feature_name=list(COLUMNS))
    watched = lightgbm.Dataset(features[valid], late[valid], reference=seen)
    trees = lightgbm.train(
        {**PARAMETERS, "num_threads": min(2, os.cpu_count() or 1)},
        seen,
        num_boost_round=TREES,
        valid_sets=[watched],
        callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
    )
    best: str = trees.model_to_string(num_iteration=trees.best_iteration)
    return lightgbm.Booster(model_str=best)


if __name__ == "__main__":
    main()
