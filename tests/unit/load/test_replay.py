"""A request log as traffic: bodies for their routes, times of a sample, and what cannot be sent again."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tailcut.builder.holdouts import logged
from tailcut.builder.quality import logged as logged_rows
from tailcut.cli.app import run
from tailcut.errors import BuildError, LoadTestError
from tailcut.load import LoadPlan
from tailcut.load.payloads import build_requests
from tailcut.load.plan import intended_times, parse_url
from tailcut.load.replay import body_of, is_replay, read_replay
from tailcut.manifest import Manifest, load
from tailcut.observe.request_log import LoggedTensor, Record
from tailcut.profiler.payload_log import read_payload_log
from tailcut.registry.evidence import LoggedAgreement

MS = 10**6
URL = "http://127.0.0.1:1"
X = LoggedTensor("x", "FP32", [1, 2], [1.5, "NaN"])


def record(number: int = 0, **more: Any) -> Record:
    given: dict[str, Any] = {"route": "infer", "encoding": "json", "inputs": [X], "probability": 1.0} | more
    at_ns, model = number * 100 * MS, given.pop("model", "m")
    return Record(
        tailcut_log=1, time="", time_ns=at_ns, offset_ns=at_ns, run="r", model=model, code="ok", status=200, **given
    )  # fmt: skip


def log(folder: Path, *records: Record) -> str:
    file = folder / "m-20260101T000000Z-0123abcd-000001.jsonl"
    file.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in records))
    return str(folder)


def rows(*given: dict[str, Any]) -> dict[str, Any]:
    return {"route": "predict", "inputs": None, "rows": list(given)}


def test_each_route_gets_its_body() -> None:
    json_body = body_of(record(wanted=["y"], priority=3))
    assert json_body.path == "/v2/models/m/infer"
    assert json_body.content == (
        b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1.5,NaN]}],"outputs":[{"name":"y"}],'
        b'"parameters":{"priority":3}}'
    )
    path, content, headers = body_of(record(route="grpc_infer", encoding="grpc", priority=2, asked_ms=250.0))
    at = int(headers.lower().split("inference-header-content-length: ")[1].split("\r")[0])
    assert json.loads(content[:at])["parameters"]["priority"] == 2
    np.testing.assert_array_equal(np.frombuffer(content[at:], "<f4"), np.array([1.5, math.nan], np.float32))
    assert path == "/v2/models/m/infer"
    assert "X-Tailcut-Timeout-Ms: 250.000\r\n" in headers
    nan = body_of(record(**rows({"a": {"$float": "NaN"}, "b": 2**60 + 1})))
    assert (nan.path, nan.content) == ("/predict/m", b'{"rows":[{"a":NaN,"b":1152921504606846977}]}')
    text = LoggedTensor("text", "BYTES", [1], ["hello"])
    made = body_of(record(route="generate_stream", encoding="generate", inputs=[text]))
    assert (made.path, made.content) == ("/v2/models/m/generate_stream", b'{"text":"hello"}')


def test_a_sample_is_sent_at_the_rate_of_all_requests(tmp_path: Path) -> None:
    source = log(tmp_path, *(record(number, probability=0.01) for number in (0, 2, 1)))
    plan = LoadPlan(url=URL, trace=source, payloads=source, speed=2)
    assert intended_times(plan).tolist() == [0, 500_000, 1_000_000]
    replay = read_replay(source)
    assert "share 0.01" in next(replay.differences())
    assert len(build_requests(plan, parse_url(URL), 3)) == 3


def test_what_excludes_a_replay_and_what_is_too_short_are_named_as_they_were_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = log(tmp_path, record(0))
    assert run(["load", URL, "--replay", source, "--rate", "5"]) == 2
    assert "--rate and --replay exclude each other" in capsys.readouterr().err
    assert run(["load", URL, "--replay", source, "--slo", "p95=1s", "--find-capacity"]) == 2
    assert "--replay has no effect with --find-capacity" in capsys.readouterr().err
    assert run(["load", URL, "--replay", source, "--warmup", "0s"]) == 3
    said = capsys.readouterr().err
    assert f"the arrivals of {source} last 0 s, and --warmup is 0 s" in said
    assert "log more requests" in said


@pytest.mark.parametrize(("speed", "said"), [("1", "2.0 hours at --speed 1"), ("4", "")])
def test_a_replay_of_hours_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str], speed: str, said: str) -> None:
    (tmp_path / "times").write_text("0\n7200\n")
    flags = ["--trace", str(tmp_path / "times"), "--speed", speed, "--warmup", "3h"]
    assert run(["load", URL, *flags]) == 3, "the warm-up is longer"
    err = capsys.readouterr().err
    assert said in err
    assert ("its arrivals last" in err) == bool(said)


def test_a_path_that_is_not_the_models_takes_all_requests(tmp_path: Path) -> None:
    source = log(tmp_path, record(), record(1, **rows({"a": 1})))
    for url, paths in (
        (f"{URL}/", ["/v2/models/m/infer", "/predict/m"]),
        (f"{URL}/predict/m", ["/v2/models/m/infer", "/predict/m"]),
        (f"{URL}/score", ["/score", "/score"]),
    ):
        requests = build_requests(LoadPlan(url=url, payloads=source), parse_url(url), 2)
        assert [request.split(b" ")[1].decode() for request in requests] == paths
        assert all(request.count(b"Content-Type:") == 1 for request in requests)


def test_hidden_inputs_are_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = log(tmp_path, record(hashed=["inputs.x.age"], dropped=["inputs.t"]), record(1))
    with pytest.raises(LoadTestError, match=r"inputs\.t, inputs\.x\.age were hashed or dropped"):
        read_replay(source)
    assert run(["load", URL, "--replay", source]) == 2
    assert "inputs.x.age" in capsys.readouterr().err
    # Times and rows are still there.
    assert run(["simulate", "--cost", "1=1ms,8=2ms", "--replay", source, "--noise", "0"]) == 0
    assert "2 requests of 1 rows" in capsys.readouterr().out


def test_a_simulation_takes_arrivals_and_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = LoggedTensor("x", "FP32", [4, 1], [0.0] * 4)
    source = log(tmp_path, *(record(number, inputs=[many]) for number in range(50)))
    out = tmp_path / "out.json"
    command = ["simulate", "--cost", "1=1ms,4=30ms,8=60ms", "--replay", source, "--noise", "0", "--json", str(out)]
    assert run(command) == 0
    (line,) = json.loads(out.read_text())["lines"]
    assert line["offered"] == 50
    assert line["p50_ms"] == pytest.approx(30, abs=1), "each request has four rows, and comes alone"
    assert run([*command, "--rows", "2"]) == 2
    assert "--rows and --replay" in capsys.readouterr().err


def test_a_simulation_takes_the_requests_of_its_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = log(tmp_path, record(0), record(1, model="other"), record(2), record(3, model="other"))
    command = ["simulate", "--cost", "1=1ms", "--replay", source]
    assert run([*command, "--model", "m"]) == 0
    said = capsys.readouterr()
    assert "(2 requests of 1 rows) for 0.2 s" in said.out
    assert "2 of 4 requests are left out: they are of other models than m" in said.err
    assert run([*command, "--model", "third"]) == 2
    assert "has no requests of model 'third'; it has those of m, other" in capsys.readouterr().err


@pytest.mark.parametrize("count", [1, 3])
def test_a_simulation_needs_requests_at_two_times(
    count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = log(tmp_path, *[record()] * count)
    assert run(["simulate", "--cost", "1=1ms", "--replay", source]) == 2
    assert f"the arrivals of {source} last 0 s" in capsys.readouterr().err


def test_a_simulation_of_years_ends(tmp_path: Path) -> None:
    source = log(tmp_path, record(0), record(1), record(20 * 365 * 864_000), record(20 * 365 * 864_000 + 1))
    assert run(["simulate", "--cost", "1=1ms", "--replay", source]) == 0


def test_a_profile_counts_the_logs_repeats(tmp_path: Path) -> None:
    source = log(tmp_path, *(record(number, **rows({"a": number % 2})) for number in range(4)), record(9, inputs=None))
    assert is_replay(source)
    found = read_payload_log(Path(source), rate=1.0)
    assert found.at_s == (0.0, 0.1, 0.2, 0.3)
    assert found.timed
    assert len(set(found.bodies)) == 2


MANIFEST = """
name = "m"
[model]
source = "m.onnx"
inputs = [{ name = "x", shape = [-1, 2], columns = ["a", "b"] }]
outputs = [{ name = "y", shape = [-1] }]
[holdout]
request_log = "."
"""


def manifest(folder: Path) -> Manifest:
    (folder / "tailcut.toml").write_text(MANIFEST)
    return load(folder, environment={})


def test_a_build_takes_tensors_and_rows_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    x = LoggedTensor("x", "FP32", [2, 2], [1.0, 2.0, 3.0, 4.0])
    log(
        tmp_path,
        record(inputs=[x]),
        record(1, **rows({"a": 1, "b": 2})),
        record(2, **rows({"a": 1})),
        record(3, inputs=None, entities=[7], route="predict"),
    )
    found, notes = logged.read(manifest(tmp_path), "")
    assert sorted(found.inputs["x"].tolist()) == [[1.0, 2.0], [1.0, 2.0], [3.0, 4.0]]
    assert len(set(found.slices[logged.DISTINCT].tolist())) == 2
    assert ["by entity" in note or "refuse them" in note for note in notes] == [True, True]


def test_a_build_refuses_a_log_of_another_model(tmp_path: Path) -> None:
    log(tmp_path, record(inputs=[LoggedTensor("x", "FP32", [1, 3], [1.0, 2.0, 3.0])]))
    with pytest.raises(BuildError, match=r"request_log.*\[1, 3\]"):
        logged.read(manifest(tmp_path), "")


def test_logged_rows_refuse_where_agreement_has_a_budget(tmp_path: Path) -> None:
    log(tmp_path, *(record(number, **rows({"a": number, "b": 0})) for number in range(400)))
    found, _ = logged.read(manifest(tmp_path), "")
    source = np.where(np.arange(400) % 2, 0.9, 0.1)
    flipped = np.where(np.arange(400) < 40, 1 - source, source)
    scores = {"onnx": source, "same": source.copy(), "other": flipped}

    def judged(budget: dict[str, float]) -> dict[str, LoggedAgreement]:
        return logged_rows.judge(scores, found, source="onnx", decisions=True, confidence=0.95, budget=budget)

    agreed = judged({"agreement": 0.01})
    same, other = agreed["same"].agreement, agreed["other"].agreement
    assert same is not None
    assert other is not None
    assert (same.agree, other.flips) == (1, 40)
    assert 0.07 < (agreed["other"].disagree_lower or 0.0) < 0.1 < (other.disagree_upper or 0.0) < 0.14
    assert not logged_rows.refusal(agreed["same"])
    assert "90.00%" in logged_rows.refusal(agreed["other"])
    assert not logged_rows.refusal(judged({"accuracy": 0.01})["other"])
    assert "not like the traffic" in logged_rows.warning(
        agreed["other"], msgspec.structs.replace(same, disagree_upper=0.02)
    )
