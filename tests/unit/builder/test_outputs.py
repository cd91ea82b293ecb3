"""build.outputs and the gate: every output beside the source's, identical variants, answers worse than a constant."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailcut import gate
from tailcut.builder import Holdout
from tailcut.builder.quality import judging, outputs, scoring
from tailcut.common.metric_names import AGREEMENT
from tailcut.manifest import Manifest, Quality
from tailcut.manifest.reading import read
from tailcut.report.builds import figures

RNG = np.random.default_rng(2)
N = 1000
LOGITS = RNG.normal(size=(N, 5)).astype(np.float32)
SHARES = (np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)).astype(np.float32)
VALUES = RNG.normal(100, 10, size=N).astype(np.float32)
RISKS = RNG.beta(1, 60, size=N).clip(0, 0.06).astype(np.float32)


def moved(array: np.ndarray, rows: int) -> np.ndarray:
    """Turn the classes of the first rows around."""
    found = array.copy()
    found[:rows] = found[:rows, ::-1]
    return found


def spoiled(array: np.ndarray, share: float) -> np.ndarray:
    return (array * (1 + share * np.where(np.arange(len(array)) % 2, 1, -1))).astype(array.dtype)


@pytest.mark.parametrize(
    ("source", "found", "refused"),
    [
        (SHARES, SHARES.copy(), ""),
        (SHARES, moved(SHARES, 8), ""),
        (SHARES, moved(SHARES, 30), r"names the source model's class on 97\.\d+% of 1,000 rows, at least 99\.00%"),
        (LOGITS, moved(LOGITS, 30), r"names the source model's class on 97\.\d+%"),
        (LOGITS, (LOGITS * 1.02).astype(np.float32), r"relative error of 0\.02 over 1,000 rows, at most 0\.01"),
        (VALUES, spoiled(VALUES, 0.005), ""),
        (VALUES, spoiled(VALUES, 0.02), r"relative error of 0\.02"),
        (np.arange(N), np.arange(N) + (np.arange(N) < 20), r"class on 98\.00%"),
        (np.array(["a", "b"] * 500, object), np.array(["a", "b"] * 480 + ["b", "a"] * 20, object), r"class on 96\.00%"),
        (VALUES, np.where(np.arange(N) == 3, np.nan, VALUES).astype(np.float32), r"1 values that are NaN or infinite"),
        (VALUES, VALUES[:, None], r"has the shape \[1000, 1\], the source model's \[1000\]"),
        (RISKS, RISKS * np.float32(8), r"relative error of 7"),
        (np.stack([1 - RISKS, RISKS], 1), np.stack([1 - 8 * RISKS, 8 * RISKS], 1), r"relative error of 0\.[12]"),
        (np.zeros(N, np.float32), np.ones(N, np.float32) * 2, r"class on 0\.00%"),
    ],
)
def test_an_output_that_no_metric_looks_at_can_refuse(source: Any, found: Any, refused: str) -> None:
    said = outputs.refusal("queue", outputs.compare(source, found), Quality())
    assert bool(said) is bool(refused)
    assert re.search(refused, said)


def test_the_table_has_every_output_in_words() -> None:
    for source, found, text in (
        (SHARES, SHARES.copy(), "q equal up to rounding"),
        (SHARES, moved(SHARES, 30), "q agrees on 97."),
        (VALUES, spoiled(VALUES, 0.02), "q largest difference "),
        (np.arange(N), np.arange(N) + 1, "q agrees on 0.00% of 1,000 rows"),
        (VALUES, VALUES[:, None], "q of another shape"),
    ):
        assert figures.compared(("q", outputs.compare(source, found))).startswith(text)


def test_both_limits_can_be_set() -> None:
    lax = Quality(other_agreement=0.9, other_error=0.1)  # type: ignore[arg-type]
    strict = Quality(other_agreement=1.0, other_error=0.0)  # type: ignore[arg-type]
    bad, good = outputs.compare(SHARES, moved(SHARES, 30)), outputs.compare(SHARES, moved(SHARES, 1))
    assert outputs.refusal("q", bad, lax) == ""
    assert "at least 100.00%" in outputs.refusal("q", good, strict)
    assert outputs.refusal("q", outputs.compare(VALUES, spoiled(VALUES, 0.05)), lax) == ""


def test_nan_that_both_models_answer_is_equal() -> None:
    holes = np.where(np.arange(N) % 7 == 0, np.nan, VALUES).astype(np.float32)
    found = outputs.compare(holes, holes * np.float32(1 + 1e-6))
    assert (found.equal, found.not_finite) == (True, 0)


def test_an_offset_hides_no_difference() -> None:
    """A grid's frequency varies by 0.015 Hz around 50; INT8 answers are off by 0.0002."""
    hertz = (50 + 0.015 * RNG.normal(size=N)).astype(np.float32)
    wrong = (hertz + 2e-4 * RNG.normal(size=N)).astype(np.float32)
    assert not outputs.compare(hertz, wrong).equal
    assert outputs.compare(hertz, np.nextafter(hertz, np.float32(60))).equal, "a step of float32 is rounding"
    wide = np.stack([np.zeros(N, np.float32), hertz], axis=1)
    assert not outputs.compare(wide, np.stack([wide[:, 0], wrong], axis=1)).equal, "each column has its own offset"
    seconds = 1.7e9 + 10 * RNG.normal(size=N)
    assert outputs.compare(seconds, np.nextafter(seconds, 2e9)).equal
    assert not outputs.compare(seconds, seconds + 0.001).equal
    halves = RISKS.astype(np.float16)
    assert not outputs.compare(halves, np.nextafter(halves, np.float16(1))).equal, "a step of float16 is no rounding"


def test_no_copy_passes_as_identical_whose_drop_exceeds_the_budget() -> None:
    labels = VALUES + RNG.normal(0, 0.01, N)
    variants = {"off": VALUES + np.float32(0.05), "near": VALUES + np.float32(1e-6)}
    found = gate.judge(variants, VALUES, labels, {}, {"mae": 0.001}, identical=set(variants))
    assert (found["off"].outcome, found["off"].identical) == ("fail", False)
    assert found["off"].reason.startswith("mae rose 0.04")
    assert (found["near"].outcome, found["near"].identical) == ("pass", True)
    alone = gate.judge({"off": variants["off"]}, VALUES, labels, {}, {"mae": 0.001})["off"]
    assert found["off"].metrics[0].p_adjusted == alone.metrics[0].p_adjusted, "it takes its part in the correction"


def test_no_copy_passes_as_identical_that_hurts_a_slice() -> None:
    labels = VALUES + RNG.normal(0, 0.01, N)
    part = np.arange(N) < 100
    variant = np.where(part, labels + 0.02, labels).astype(np.float32)
    source = np.where(part, labels, labels + 0.005).astype(np.float32)
    found = gate.judge({"v": variant}, source, labels, {"part": part}, {"mae": 0.004}, identical={"v"})["v"]
    assert found.metrics[0].outcome == "pass"
    assert (found.outcome, found.identical) == ("fail", False)


def verdict(variant: np.ndarray, rows: int, identical: bool) -> gate.QualityVerdict:
    labels = (SHARES[:rows, 0] > 0.2).astype(np.int64)
    scores = {"v": variant[:rows]}
    return gate.judge(scores, SHARES[:rows, 0], labels, {}, {"accuracy": 0.004}, identical={"v"} if identical else ())[
        "v"
    ]


def test_a_copy_that_is_equal_passes_where_its_rows_could_prove_nothing() -> None:
    plain = verdict(SHARES[:, 0], 250, identical=False)
    assert plain.outcome == "inconclusive"
    assert plain.reason.startswith("no drop of accuracy seen; 250 rows can exclude drops above 0.01")
    found = verdict(SHARES[:, 0], 250, identical=True)
    assert (found.outcome, found.identical) == ("pass", True)
    assert found.reason == "identical up to rounding: every output equals the source model's on all 250 rows"


def answers(**changed: np.ndarray) -> dict[str, np.ndarray]:
    return {"p": SHARES[:, 0], "queue": LOGITS, **changed}


def judged(variant: dict[str, np.ndarray], rows: int = N) -> Any:
    outputs_of = [{"name": "p"}, {"name": "queue", "shape": [-1, 5]}]
    model = {"source": "m:m", "inputs": [{"name": "x"}], "outputs": outputs_of}
    tree = {"name": "two", "model": model, "quality": {"budget": {AGREEMENT: 0.004}}}
    manifest = Manifest(read(tree, {}), Path(), {})
    holdout = Holdout(inputs={"x": np.zeros(rows)})
    part = [{name: array[:rows] for name, array in each.items()} for each in (answers(), variant)]
    return judging.judge(manifest, holdout, {"torch": part[0], "onnx": part[1]}, source="torch", uses=0)["onnx"]


def test_identical_means_every_output_on_rows_enough() -> None:
    assert judged(answers(p=SHARES[:, 0] * np.float32(1 + 1e-6))).identical
    assert not judged(answers(queue=moved(LOGITS, 1))).identical
    assert not judged(answers(), rows=150).identical
    assert judged(answers(), rows=150).outcome == "inconclusive"


def test_a_metric_worse_than_a_constant_answer_is_named() -> None:
    labels = (SHARES[:, 0] > np.median(SHARES[:, 0])).astype(np.int64)
    holdout = Holdout(inputs={"x": np.zeros(N)}, labels=labels)
    good = (SHARES[:, 0] > np.median(SHARES[:, 0])) * 0.8 + 0.1
    told = {}
    for name, scores in (("good", good), ("turned", 1 - good)):
        metrics = scoring.measure(holdout, scores, scores, {}, "p")
        told[name] = scoring.worse_than_constant(metrics, scoring.constant(holdout, scores, {}))
    assert told["good"] == []
    assert [text.split()[3] for text in told["turned"]] == ["auc", "log_loss", "accuracy"]
    assert told["turned"][0].startswith("the source model's auc is 0, worse than the 0.5 of a constant answer")


def test_the_best_constant_answers() -> None:
    labels = np.array([0, 0, 0, 1, 2] * 20)
    classes = scoring.constant(Holdout(inputs={"x": np.zeros(100)}, labels=labels), np.full((100, 3), 1 / 3), {})
    assert classes == {"accuracy": pytest.approx(0.6)}
    values = np.array([1.0, 2.0, 3.0, 4.0, 1000.0])
    median = scoring.constant(Holdout(inputs={"x": np.zeros(5)}, labels=values), values, {"mae": 1.0})
    assert median == {"mae": pytest.approx(np.abs(values - 3).mean())}
