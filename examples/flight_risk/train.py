"""Features -> trained model and its metrics on the holdout: ``python -m flight_risk.train``.

Trained on January to late August, stopped by late August and September, judged on October to December.
"""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flight_risk.holdout import holdout
from flight_risk.settings import HOLDOUT_FROM, SEED, VALID_FROM, home, source_hash

if TYPE_CHECKING:
    import torch

    from flight_risk.model import FlightRisk

EPOCHS = 4
BATCH_ROWS = 512
PEAK_RATE = 3e-3
WEIGHT_DECAY = 1e-4

Scores = dict[str, float]
Data = dict[str, npt.NDArray[Any]]


def main() -> None:
    """Train unless what is there was made by this very code from this very data."""
    at = home()
    if not (at / "prepared.json").is_file():
        raise SystemExit(f"error: nothing is prepared in {at}\n\nhint: python -m flight_risk.prepare")
    stamp = at / "trained.json"
    wanted = {"sources": source_hash("settings", "model", "train"), **json.loads((at / "prepared.json").read_text())}
    if stamp.is_file() and json.loads(stamp.read_text()) == wanted:
        print(f"trained already in {at}")
    else:
        stamp.unlink(missing_ok=True)
        # Spinning threads take the cores from whatever else runs here; both libraries read this when they load.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        metrics = _train_and_judge()
        (at / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
        stamp.write_text(json.dumps(wanted))
    print(table(json.loads((at / "metrics.json").read_text())))


def table(metrics: dict[str, Any]) -> str:
    """Format the metrics for people."""
    lines = [f"holdout: October to December, {metrics['rows']} flights, {metrics['late']:.1%} of them late"]
    lines.append(f"{'':<28}{'AUC':>8}{'log loss':>10}{'accuracy':>10}")
    for name, scores in metrics["holdout"].items():
        lines.append(f"{name:<28}{scores['auc']:>8.4f}{scores['log_loss']:>10.4f}{scores['accuracy']:>10.4f}")
    lines.append(f"{metrics['parameters']} parameters, trained in {metrics['train_s']:.0f} s")
    return "\n".join(lines)


def _train_and_judge() -> dict[str, Any]:
    with np.load(home() / "features.npz") as file:
        data = {name: file[name] for name in ("numeric", "categorical", "late", "sched_dep")}
    began = time.monotonic()
    model = train(data)
    train_s = time.monotonic() - began
    test = holdout()
    seen = data["sched_dep"] < HOLDOUT_FROM
    labels = test.truth
    base_rate = float(data["late"][seen].mean())
    return {
        "rows": len(labels),
        "late": float(labels.mean()),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "train_s": round(train_s, 1),
        "holdout": {
            "model": score(labels, predict(model, test.inputs["numeric"], test.inputs["categorical"])),
            "constant answer": score(labels, np.full(len(labels), base_rate)),
            "HistGradientBoosting": score(labels, _boosted_trees(data, seen, test.inputs)),
        },
    }


def train(data: Data) -> FlightRisk:
    """Train on the flights before VALID_FROM, keep the weights that did best from there to HOLDOUT_FROM."""
    import torch

    from flight_risk.model import FlightRisk, Size, save

    torch.manual_seed(SEED)
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    sched = data["sched_dep"]
    fit = {name: values[sched < VALID_FROM] for name, values in data.items()}
    valid = {name: values[(sched >= VALID_FROM) & (sched < HOLDOUT_FROM)] for name, values in data.items()}
    size = Size()
    edges = quantiles(fit["numeric"], size.bins)
    cardinalities = _cardinalities()
    model = FlightRisk(edges, cardinalities, size)
    best, best_state = float("inf"), model.state_dict()
    began = time.monotonic()
    for epoch in _epochs(model, fit):
        scores = score(valid["late"], predict(model, valid["numeric"], valid["categorical"]))
        print(f"epoch {epoch}: validation AUC {scores['auc']:.4f}, log loss {scores['log_loss']:.4f} ", end="")
        print(f"({time.monotonic() - began:.0f} s)", flush=True)
        if scores["log_loss"] < best:
            best, best_state = scores["log_loss"], copy.deepcopy(model.state_dict())
    model.load_state_dict(best_state)
    save(model, edges, cardinalities, size)
    return model.eval()


def _epochs(model: FlightRisk, data: Data) -> Iterator[int]:
    """Go through the rows in a new random order each epoch; yield after each."""
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits

    numeric, categorical = torch.from_numpy(data["numeric"]), torch.from_numpy(data["categorical"])
    late = torch.from_numpy(data["late"]).float()
    steps = len(late) // BATCH_ROWS
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=EPOCHS * steps, pct_start=0.15)
    for epoch in range(1, EPOCHS + 1):
        model.train()
        shuffled = torch.randperm(len(late))
        for step in range(steps):
            batch = shuffled[step * BATCH_ROWS : (step + 1) * BATCH_ROWS]
            loss = binary_cross_entropy_with_logits(model.logit(numeric[batch], categorical[batch]), late[batch])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
        yield epoch


def quantiles(values: npt.NDArray[np.float32], bins: int) -> torch.Tensor:
    """Bin edges [features, bins + 1] with about as many known values in each bin."""
    import torch

    at = np.linspace(0, 1, bins + 1)
    rows = []
    for column in values.T:
        edges = np.unique(np.quantile(column[~np.isnan(column)], at))
        # Where many rows share a value there are fewer edges than bins: spread what there is over all bins.
        rows.append(edges if len(edges) == bins + 1 else np.interp(at, np.linspace(0, 1, len(edges)), edges))
    return torch.tensor(np.array(rows), dtype=torch.float32)


def predict(model: FlightRisk, numeric: npt.NDArray[Any], categorical: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the risk of each row."""
    import torch

    model.eval()
    with torch.inference_mode():
        parts = [
            model(torch.from_numpy(numeric[start : start + 8192]), torch.from_numpy(categorical[start : start + 8192]))
            for start in range(0, len(numeric), 8192)
        ]
    return torch.cat(parts).double().numpy()


def score(labels: npt.NDArray[Any], risk: npt.NDArray[np.float64]) -> Scores:
    """AUC, log loss, and accuracy at a threshold of one half."""
    from sklearn.metrics import log_loss, roc_auc_score

    return {
        "auc": round(float(roc_auc_score(labels, risk)), 5),
        "log_loss": round(float(log_loss(labels, risk)), 5),
        "accuracy": round(float(((risk > 0.5) == (labels > 0.5)).mean()), 5),
    }


def _cardinalities() -> list[int]:
    from flight_risk.columns import vocabulary

    return [len(codes) + 1 for codes in vocabulary(home() / "vocabulary.json")]


def _boosted_trees(data: dict[str, Any], seen: npt.NDArray[Any], inputs: dict[str, Any]) -> npt.NDArray[np.float64]:
    """What histogram-boosted trees make of the same features: the usual yardstick for tables."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    train_x = np.concatenate([data["numeric"], data["categorical"]], axis=1)[seen]
    test_x = np.concatenate([inputs["numeric"], inputs["categorical"]], axis=1)
    numbers = data["numeric"].shape[1]
    trees = HistGradientBoostingClassifier(
        max_iter=150,
        learning_rate=0.08,
        l2_regularization=1.0,
        categorical_features=list(range(numbers, train_x.shape[1])),
        random_state=SEED,
    )
    trees.fit(train_x, data["late"][seen])
    risk: npt.NDArray[np.float64] = trees.predict_proba(test_x)[:, 1]
    return risk


if __name__ == "__main__":
    main()
