"""What no server writes is no record of a request log: the line is named, and what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tailcut.errors import LoadTestError
from tailcut.observe.request_log import read_log

RECORD = {
    "tailcut_log": 1, "time": "", "time_ns": 1, "offset_ns": 0, "run": "r", "model": "m", "route": "predict",
    "code": "ok", "status": 200, "probability": 1.0,
}  # fmt: skip


def tensor(data: list[Any], shape: tuple[int, ...] = (1, 2), datatype: str = "FP32") -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": datatype, "shape": list(shape), "data": data}]}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"rows": [{"a": {"$float": "abc"}}]}, "rows: 'abc' is none of NaN, Infinity, -Infinity"),
    ({"rows": [{"a": {"$float": [1]}}]}, "rows: .1. is none of NaN"),
    ({"entities": [{"$bytes": "?"}]}, "entities: .* is no base64"),
    ({"entities": [{"$bytes": 7}]}, "is no base64"),
    ({"predictions": [{"$object": 1}]}, "predictions: .* holds no object"),
    ({"probability": 0}, "probability is 0, which is not above 0 and at most 1"),
    ({"probability": -0.5}, "probability is -0.5"),
    ({"probability": 1.5}, "probability is 1.5"),
    ({"probability": float("nan")}, "JSON"),
    (tensor([1.0, "abc"]), "tensor 'x': 'abc' is none of NaN"),
    (tensor([1.0]), "tensor 'x': 1 values for the shape"),
    (tensor([1.0, 2.0], (-1, -2)), "tensor 'x': 2 values for the shape"),
    (tensor([1.0, 2.0], datatype="FP99"), "unknown datatype 'FP99'"),
    (tensor([{"$bytes": "?"}, "b"], datatype="BYTES"), "tensor 'x': .* is no base64"),
]


@pytest.mark.parametrize(("given", "said"), WRONG)
def test_a_malformed_record_is_named_by_its_line(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text(f"{json.dumps(RECORD)}\n{json.dumps(RECORD | given)}\n")
    with pytest.raises(LoadTestError, match=f"line 2 of .* is no record of a request log: .*{said}"):
        read_log(file, lambda _: None)


def test_a_malformed_row_of_parquet_is_refused(tmp_path: Path) -> None:
    parquet = pytest.importorskip("tailcut.observe.request_log.parquet")
    file = tmp_path / "log.jsonl"
    file.write_text(json.dumps(RECORD | {"probability": 2}) + "\n")
    with pytest.raises(LoadTestError, match="probability is 2"):
        read_log(parquet.convert(file, pause=lambda _: None), lambda _: None)


def test_hashed_and_dropped_values_are_read(tmp_path: Path) -> None:
    hidden = tensor([{"$hmac": "00"}], (1, 2)) | {"hashed": ["inputs.x"], "rows": [{"a": {"$hmac": "00"}}]}
    file = tmp_path / "log.jsonl"
    file.write_text(json.dumps(RECORD | hidden) + "\n" + json.dumps(RECORD | tensor(["NaN", None])) + "\n")
    assert [each.count for each in read_log(file, lambda _: None)] == [1, 1]
