"""Parity: one record as text, page and file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tailcut.errors import LoadTestError
from tailcut.report.document import terminal
from tailcut.report.files import write_json
from tailcut.report.html import html
from tailcut.report.parity.document import parity_document
from tailcut.report.parity.file import (
    ColumnParity,
    FieldParity,
    InputsParity,
    ParityRecord,
    StatusDifference,
    ValueDifference,
    VariantParity,
    load_parity,
)

FIELD = FieldParity(
    output="risk", pilot="out[].p", matched="same name", tolerance="1e-05", rows=4, differing_rows=2,
    differing_requests=2, max_difference=0.25, mean_difference=0.1, relation="1 - x",
)  # fmt: skip
WRONG = VariantParity(
    variant="onnx",
    version="abc",
    requests=5,
    both_answered=4,
    differing_requests=2,
    status_differences=1,
    statuses=(
        StatusDifference(
            request=5, pilot_status=0, pilot_text="no reply", deployment_status=200, deployment_text="{}", body={"a": 1}
        ),
    ),
    fields=(FIELD,),
    differences=(
        ValueDifference(request=1, row=0, output="risk", pilot="<b>", deployment=0.25, difference=None, body=["&"]),
    ),
    inputs=InputsParity(
        model="M.predict",
        rows=4,
        columns=2,
        differing=(
            ColumnParity(
                column="x[1]",
                features=("age",),
                rows=4,
                differing_rows=2,
                max_difference=1.0,
                change="x + 1",
                first=((1, 3.0, 2.0),),
            ),
        ),
    ),
)


def render_parity(record: ParityRecord) -> str:
    return terminal(parity_document(record))


def render_parity_html(record: ParityRecord) -> str:
    return html(parity_document(record))


def record(*variants: VariantParity) -> ParityRecord:
    return ParityRecord(
        created="2026-01-01", deployment="m", pilot="app:app", payloads="log.jsonl", command="tailcut parity",
        form="as it is", caches="all off", variants=variants, unmatched_outputs=("late",),
    )  # fmt: skip


def test_the_text_says_what_differs_and_why() -> None:
    text = render_parity(record(WRONG))
    for part in (
        "2 of 4 requests differ; 1 answered by one side only",
        "input x[1], filled by age, differs in 2 of 4 rows: the pilot has x + 1 (x: the deployment's value)",
        "x[1]   age",
        "no reply",
        "not compared",
    ):
        assert part in text
    assert text.endswith("differs: onnx")


def test_the_page_escapes_what_replies_hold() -> None:
    page = render_parity_html(record(WRONG))
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "input x[1], filled by age" in page


@pytest.mark.parametrize(
    ("changes", "equal"),
    [
        ({}, False),
        ({"differing_requests": 0}, False),
        ({"differing_requests": 0, "status_differences": 0}, True),
        ({"differing_requests": 0, "status_differences": 0, "uncompared": 1}, False),
        ({"status_differences": 0, "judged": False}, True),
        ({"judged": False}, False),
        ({"differing_requests": 0, "status_differences": 0, "failed": "it did not start"}, False),
    ],
)
def test_what_counts_against_a_variant(changes: dict[str, object], equal: bool) -> None:
    assert record(msgspec.structs.replace(WRONG, **changes)).equal is equal


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "below" / "parity.json"
    write_json(path, record(WRONG))
    assert render_parity(load_parity(path)) == render_parity(record(WRONG))
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 99'))
    with pytest.raises(LoadTestError, match="schema 99"):
        load_parity(path)
    path.write_text("{}")
    with pytest.raises(LoadTestError, match="cannot read a result of `tailcut parity --json`"):
        load_parity(path)
