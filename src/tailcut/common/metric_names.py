"""Names of the quality metrics, without NumPy: a manifest is read and checked where nothing is computed."""

from __future__ import annotations

METRIC_NAMES = ("auc", "log_loss", "accuracy", "f1", "mae", "spearman", "cosine")
"""What a quality budget can be set on; ``gate.metrics.METRICS`` computes each."""

AGREEMENT = "agreement"
"""Share of rows on which a variant decides as the source model does: no quality, but what can be had without labels."""
