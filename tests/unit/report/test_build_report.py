"""What a build found, as a table and as a page."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from tailcut.common.fingerprint import Machine
from tailcut.gate import Agreement, MetricVerdict, Outcome, QualityVerdict, SliceVerdict
from tailcut.registry import Promotion, VariantEvidence, VariantRecord, Version, VersionEvidence
from tailcut.registry.evidence import Cost, HoldoutEvidence, OutputChange, RowCoupling, SpeedVerdict, Split
from tailcut.report.builds import figures
from tailcut.report.builds.document import build_document
from tailcut.report.document import Chart, Mark, aligned
from tailcut.report.html import html

EVIL = "<script>alert(1)</script>"


def judged(outcome: Outcome, drop: float, upper: float | None) -> QualityVerdict:
    metric = MetricVerdict(
        metric="auc", source=0.75, variant=0.75 - drop, drop=drop, lower=drop - 0.001, upper=upper, p=0.1,
        p_adjusted=0.1, budget=0.004, outcome=outcome, rows=100, rows_needed=None,
    )  # fmt: skip
    parts = (
        SliceVerdict(slice="who", value=EVIL, metric="auc", rows=40, drop=drop, upper=upper, limit=0.01,
                     p_adjusted=0.5, outcome="pass"),
        SliceVerdict(slice="who", value="worst", metric="auc", rows=60, drop=0.02, upper=0.03, limit=0.01,
                     p_adjusted=0.01, outcome="fail"),
    )  # fmt: skip
    agreement = Agreement(
        rows=100, flips=0, agree=1.0, disagree_upper=0.03, divergence="jensen-shannon", divergence_mean=0.0,
        divergence_upper=0.0,
    )  # fmt: skip
    return QualityVerdict(
        variant="v", outcome=outcome, reason="", confidence=0.95, alpha=0.05, uses=0, rows=100, metrics=(metric,),
        slices=parts, worst_slice=parts[1], flip_rate=0.0, agreement=agreement,
    )  # fmt: skip


def loaded(ms: float, ratio: float, *, faster: bool, **more: Any) -> VariantEvidence:
    speed = SpeedVerdict(
        reference="torch",
        percentile="p95",
        latency_ms=(ms, ms * 0.9, ms * 1.1),
        ratio=(ratio, ratio - 0.05, ratio + 0.05),
        outcome="faster" if faster else "no",
        meets_slo=True,
        errors=0.0,
    )
    return VariantEvidence(speed=speed, cost=Cost(cpu_s=(ms * 100, 0.0, 1.0), money=ms / 10, currency="USD"), **more)


def version() -> Version:
    known: dict[str, Any] = {"runtime": "onnxruntime", "sha256": "ab", "size_bytes": 2048}
    quick = loaded(2.0, 0.5, faster=True, metrics={"auc": 0.75}, quality=judged("pass", 0.001, 0.002))
    undecided = loaded(1.0, 0.25, faster=True, quality=judged("inconclusive", 0.003, None))
    slow = loaded(8.0, 2.0, faster=False, quality=judged("inconclusive", 0.003, 0.009))
    variants = {
        "torch": VariantRecord(**known, state="passed", evidence=loaded(4.0, 1.0, faster=False)),
        "onnx": VariantRecord(**known, state="passed", evidence=quick),
        "int8": VariantRecord(**known, refused="40 rows can exclude drops above 0.1", evidence=undecided),
        "static": VariantRecord(**known, refused=f"not faster here {EVIL}", evidence=slow),
        "fp16": VariantRecord(runtime="onnxruntime", refused="not here: no CUDA device"),
        "bf16": VariantRecord(runtime="onnxruntime", refused="not here: no CUDA device"),
        "pair": VariantRecord(runtime="pair", refused="the recipe crashed"),
    }
    return Version(
        model=f"demo {EVIL}",
        id="0123456789ab",
        created="2026-11-21T00:00:00",
        source="torch",
        inputs=(),
        outputs=(),
        variants=variants,
        evidence=VersionEvidence(
            machine=Machine(architecture="x86_64", processor=EVIL, cores=2, flags=("avx2",)),
            holdout=HoldoutEvidence(
                rows=100, sha256="ab", selection=Split(rows=50, sha256="cd"), confirmation=Split(rows=50, sha256="ef")
            ),
        ),
        manifest={"slo": {"p95": "10ms"}},
    )


PROMOTED = Promotion(version="0123456789ab", variant="onnx", promoted="2026-11-21T00:00:01", history=())


def render(version: Version, promotion: Promotion | None) -> str:
    return html(build_document(version, promotion))


def rows(version: Version) -> dict[str, dict[str, str]]:
    """Cells by the names of the variant and of the column."""
    table = figures.variants_table(version, PROMOTED)
    return {row[0]: dict(zip(table.head, row, strict=True)) for row in table.rows}


def test_a_row_says_quality_speed_and_cost() -> None:
    found = rows(version())
    assert list(found) == ["torch", "onnx", "int8", "static"]
    onnx = found["onnx"]
    assert onnx["drop, upper limit"] == "auc 0.001 <= 0.002 of 0.004 pass"
    assert onnx["p95 under load"] == "2 ms (1.8-2.2)"
    assert onnx["ratio"] == "0.50 of torch (0.45-0.55)"
    assert (onnx["CPU per 1M"], onnx["cost per 1M"], onnx["size"]) == ("200 s", "0.2 USD", "2.0 KiB")
    assert (onnx["auc"], found["torch"]["auc"], onnx["verdict"]) == ("0.7500", "-", "promoted")
    assert (found["torch"]["ratio"], found["torch"]["drop, upper limit"]) == ("-", "-")
    assert found["int8"]["drop, upper limit"] == "auc 0.003 <= ? of 0.004 inconclusive"


def test_no_limit_stands_beside_the_budget_of_a_variant_that_passes_as_identical() -> None:
    record = version()
    quality = msgspec.structs.replace(judged("pass", 0.0, 0.0176), identical=True)
    evidence = loaded(2.0, 0.5, faster=True, quality=quality)
    same = msgspec.structs.replace(record.variants["onnx"], evidence=evidence)
    found = rows(msgspec.structs.replace(record, variants={**record.variants, "onnx": same}))
    assert found["onnx"]["drop, upper limit"] == "identical up to rounding"


def test_verdicts() -> None:
    record = version()
    found = {name: figures.verdict(record, PROMOTED, name) for name in record.variants}
    assert found == {
        "torch": "source, passed",
        "onnx": "promoted",
        "int8": "inconclusive",
        "static": "refused",
        "fp16": "not here",
        "bf16": "not here",
        "pair": "not built",
    }


def test_what_was_not_made_is_one_line_per_reason() -> None:
    lines = figures.refusals(version())
    assert lines[-2:] == ["fp16, bf16 not here: no CUDA device", "pair not built: the recipe crashed"]
    assert lines[0] == "int8 refused: 40 rows can exclude drops above 0.1"


def test_the_table_is_printed_whole() -> None:
    shown = aligned(figures.variants_table(version(), PROMOTED))
    assert "p95 under load" in shown
    assert "auc 0.001 <= 0.002 of 0.004 pass" in shown
    assert "0.50 of torch (0.45-0.55)" in shown
    assert "fp16" not in shown


@pytest.mark.parametrize(("written", "ms"), [("10ms", 10.0), ("1.5s", 1500.0), (None, None), ("soon", None)])
def test_the_limit_is_read_from_the_manifest(written: Any, ms: float | None) -> None:
    record = msgspec.structs.replace(version(), manifest={"slo": {"p95": written}})
    assert figures.limit_ms(record) == ms


def test_the_page_has_plot_tables_and_evidence_and_escapes_all() -> None:
    page = render(version(), PROMOTED)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 4
    assert page.count("<svg") == 1
    assert "budget 0.004" in page
    assert "SLO 10 ms" in page
    assert "prefers-color-scheme: dark" in page
    assert page.index("who = worst") < page.index("who = &lt;script")
    assert "fp16, bf16 not here: no CUDA device" in page
    assert not re.search(r"""(?:src|href)="(?!#)|url\((?!#)|@import""", page)


def test_charts_have_the_intervals_of_latency_and_drop() -> None:
    latency, drop = build_document(version(), PROMOTED).sections[0].charts
    assert isinstance(latency, Chart)
    assert isinstance(drop, Chart)
    marks = {row.name: row.marks[0] for row in latency.rows}
    assert {name: mark.series for name, mark in marks.items()} == {
        "torch": "made", "onnx": "promoted", "int8": "refused", "static": "refused",
    }  # fmt: skip
    assert (marks["onnx"].low, marks["onnx"].mid, marks["onnx"].high) == (1.8, 2.0, 2.2)
    found = {row.name: row for row in drop.rows}
    assert found["torch"].note == "not judged against the source"
    assert found["onnx"].marks == (Mark(series="promoted", low=0.0, mid=0.001, high=0.002),)
    assert found["int8"].note == "0.003 (0.002 to ?)", "a limit that is not known"
    assert (latency.limit, drop.limit) == (("SLO 10 ms", 10.0), ("budget 0.004", 0.004))


def test_a_page_without_measurements_has_no_plot() -> None:
    variants = {"onnx": VariantRecord(runtime="onnxruntime", sha256="ab")}
    page = render(msgspec.structs.replace(version(), variants=variants, source="onnx"), None)
    assert "<svg" not in page
    assert "No slice was named" in page


@pytest.mark.parametrize(
    ("evidence", "says"),
    [
        (VariantEvidence(), []),
        (VariantEvidence(rows_alone=True), ["v: each row runs alone"]),
        (
            VariantEvidence(
                rows_alone=True,
                neighbour=RowCoupling(
                    rows=64, outputs={"y": OutputChange(max_abs={"batch of 8": 0.5, "extreme": 10.0}, limit=0.004)}
                ),
            ),
            ["v: each row runs alone", "a change of output 'y' by 10 (company: extreme; limit 0.004)"],
        ),
        (
            VariantEvidence(
                rows_alone=True,
                neighbour=RowCoupling(
                    rows=64,
                    operators=["DynamicQuantizeLinear"],
                    outputs={
                        "y": OutputChange(max_abs={"random": 0.5}, limit=1.0),
                        "z": OutputChange(max_abs={"random": 0.4, "largest": 1.7e308}, limit=0.1),
                    },
                ),
            ),
            ["DynamicQuantizeLinear takes one scale for all rows", "of output 'z' to NaN or infinity"],
        ),
    ],
)
def test_a_line_says_why_rows_run_alone(evidence: VariantEvidence, says: list[str]) -> None:
    record = VariantRecord(runtime="onnxruntime", sha256="0" * 64, evidence=evidence)
    found = figures.rows_alone(msgspec.structs.replace(version(), variants={"v": record}))
    assert len(found) == bool(says)
    assert all(text in found[0] for text in says)
