"""Digits -> trained model and its accuracy on the holdout: ``python -m digits.prepare``."""

from __future__ import annotations

import json
import os
import time
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt

from digits.data import split
from digits.holdout import holdout, originals
from digits.settings import home, source_hash


def main() -> None:
    """Train unless what is there was made by this very code."""
    at = home()
    stamp = at / "prepared.json"
    wanted = {
        "sources": source_hash("settings", "data", "model", "train", "holdout", "prepare"),
        **{name: version(name) for name in ("scikit-learn", "torch")},
    }
    if stamp.is_file() and json.loads(stamp.read_text()) == wanted:
        print(f"trained already in {at}")
    else:
        stamp.unlink(missing_ok=True)
        at.mkdir(parents=True, exist_ok=True)
        (at / ".gitignore").write_text("*\n")
        # Spinning threads take the cores from whatever else runs here; torch reads this when it loads.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        metrics = _train_and_judge()
        (at / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
        stamp.write_text(json.dumps(wanted))
    print(table(json.loads((at / "metrics.json").read_text())))


def table(metrics: dict[str, Any]) -> str:
    """Format the metrics for people."""
    lines = [f"{metrics['parameters']} parameters, {metrics['train_rows']} images, {metrics['train_s']:.0f} s"]
    for name, part in metrics["holdout"].items():
        lines.append(f"accuracy on {part['rows']} held-out {name}: {part['accuracy']:.4f}")
    return "\n".join(lines)


def _train_and_judge() -> dict[str, Any]:
    from digits.model import save
    from digits.train import train

    began = time.monotonic()
    seen, _ = split()
    model = train(seen)
    train_s = time.monotonic() - began
    save(model)
    parts = {"images": originals(), "copies": holdout()}
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "train_rows": len(seen.labels),
        "train_s": round(train_s, 1),
        "holdout": {
            name: {
                "rows": part.rows,
                "accuracy": round(float((predict(model, part.inputs["image"]).argmax(axis=1) == part.truth).mean()), 5),
            }
            for name, part in parts.items()
        },
    }


def predict(model: Any, images: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return the probabilities of each image."""
    import torch

    with torch.inference_mode():
        found: npt.NDArray[np.float32] = torch.cat(
            [model(part) for part in torch.split(torch.from_numpy(images), 512)]
        ).numpy()
    return found


if __name__ == "__main__":
    main()
