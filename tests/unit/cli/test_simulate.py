"""``tailcut simulate``: capacity planned from costs that are given, measured or in the registry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.models import coupled

from tailcut.cli.app import run
from tailcut.cli.console import ExitCode
from tailcut.manifest import load
from tailcut.registry import NewVariant, Registry, VariantEvidence

COST = ["--cost", "1=9ms,8=40ms", "--duration", "5s"]


MANIFEST = """
name = "NAME"
[model]
source = "NAME.onnx"
inputs = [{ name = "x", shape = [-1, 8] }]
outputs = [{ name = "y", shape = [-1] }]
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_more_executors_carry_more_and_the_result_is_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = run(["simulate", *COST, "--rate", "50,600", "--executors", "1,4", "--json", "out.json"])
    assert code == ExitCode.FAILED, "one executor cannot carry 600 a second"
    out = capsys.readouterr().out
    assert "met" in out
    assert "MISSED" in out
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["assumed"]["cost_ms"] == {"1": 9.0, "8": 40.0}
    by = {(line["rate"], line["executors"]): line for line in found["lines"]}
    assert by[600.0, 1]["shed"] > 0.3
    assert by[600.0, 4]["shed"] == 0
    assert by[50.0, 1]["meets"]
    assert by[50.0, 1]["p50_ms"] < by[600.0, 1]["p50_ms"]


SLO = """
name = "slo"
[model]
source = "model.onnx"
inputs = [{ name = "x", shape = [-1, 4] }]
outputs = [{ name = "y", shape = [-1] }]
[batching]
mode = "off"
[slo]
"""


@pytest.mark.parametrize(
    ("slo", "flags", "missed"),
    [
        ('p50 = "5ms"\np95 = "25ms"\np99 = "500ms"', ("1=30ms", "10", "20s"), ["p50", "p95"]),
        ('p50 = "50ms"\np95 = "90ms"\np99 = "500ms"', ("1=30ms", "1", "100s"), []),
        ('p95 = "900ms"\ntimeout = "900ms"\nerrors = "4%"', ("1=100ms", "6.5", "400s"), []),
        ('p95 = "900ms"\ntimeout = "900ms"\nerrors = "0.01%"', ("1=100ms", "6.5", "400s"), ["errors"]),
        ('p99 = "900ms"\ntimeout = "900ms"\nerrors = "4%"', ("1=100ms", "6.5", "400s"), ["p99"]),
    ],
)
def test_every_objective_is_judged_as_load_does(
    slo: str, flags: tuple[str, ...], missed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A request that was shed is later than any limit of a percentile, and counts for the errors."""
    (tmp_path / "tailcut.toml").write_text(SLO + slo)
    cost, rate, duration = flags
    code = run(["simulate", "--cost", cost, "--rate", rate, "--duration", duration, "--json", "out.json"])
    (line,) = json.loads((tmp_path / "out.json").read_text())["lines"]
    assert (line["missed"], line["meets"]) == (missed, not missed)
    assert code == (ExitCode.FAILED if missed else ExitCode.OK)
    assert " ".join(("MISSED", *missed)) in capsys.readouterr().out or not missed


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(("stdout", "code"), [("closed", ExitCode.OK), ("/dev/full", ExitCode.NOT_STARTED)])
def test_an_output_that_nobody_reads_or_holds_loses_no_file(
    stdout: str, code: ExitCode, unbuffered: str, tmp_path: Path
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(stdout if stdout != "closed" else writing, "w") as file:
        done = subprocess.run(
            [sys.executable, "-m", "tailcut", "simulate", *COST, "--rate", "20", "--json", "out.json"],
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == code, done.stderr
    assert ("error: the output cannot be written: No space left on device" in done.stderr) == (stdout == "/dev/full")
    assert json.loads((tmp_path / "out.json").read_text())["lines"]


@pytest.mark.parametrize("arrivals", ["poisson", "constant", "burst"])
def test_arrivals(arrivals: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", *COST, "--rate", "40", "--arrivals", arrivals, "--noise", "0"]) == ExitCode.OK
    assert f"{arrivals} arrivals" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rate", "fast"], "--rate is 'fast'"),
        (["--rate", "-1"], "finite numbers of at least 0, with commas"),
        (["--rate", "50,nan"], "--rate is '50,nan'"),
        (["--rate", "inf"], "--rate is 'inf'"),
        (["--rate", "0"], "poisson arrivals need a rate"),
        (["--executors", "1.5"], "whole numbers of at least 1, with commas"),
        (["--executors", "0"], "--executors is '0'"),
        (["--executors", "1.5"], "--executors is '1.5'"),
        (["--cost", "5ms"], "--cost has '5ms'"),
        (["--cost", "0=5ms"], "--cost has '0=5ms'"),
        (["--cost", "1=5ms,1=6ms"], "--cost has '1=6ms'"),
        (["--cost", "8=5ms,1=12ms"], "--cost has 8 rows in 5 ms, but 1 in 12 ms"),
        (["--rows", "5000"], "--rows 5000 exceeds batching.max_queue_rows = 1024"),
        (["--arrivals", "foo"], "--arrivals is 'foo'"),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = [] if arguments[0] == "--cost" else ["--cost", "1=9ms"]
    assert run(["simulate", *given, *arguments]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert says in said
    assert "hint: " in said


def test_the_first_line_says_what_is_not_included(capsys: pytest.CaptureFixture[str]) -> None:
    run(["simulate", *COST, "--rate", "20"])
    first = capsys.readouterr().out.splitlines()[0]
    assert first == (
        "not included: features and hooks (there is no manifest); assumed: an executor without overhead, "
        "60 us on the event loop per request"
    )


def test_without_costs_there_is_nothing_to_simulate(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate"]) not in {ExitCode.OK, ExitCode.BUG}
    assert "hint: " in capsys.readouterr().err


def test_rows_that_run_alone_are_simulated_one_by_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Four rows a request: four runs one after the other, and no wait for company."""
    models = {"alone": coupled.quantised(tmp_path / "alone.onnx"), "together": coupled.mlp(tmp_path / "together.onnx")}
    lines, assumed = {}, {}
    for name, model in models.items():
        (tmp_path / "tailcut.toml").write_text(MANIFEST.replace("NAME", name))
        manifest = load(tmp_path)
        spec, registry = manifest.deployment.model, Registry.of(manifest)
        evidence = VariantEvidence(bare_ms={1: [1.0], 8: [2.0]}, rows_alone=name == "alone")
        variants = [NewVariant("onnx", "onnxruntime", model, base=True, evidence=evidence)]
        version = registry.add(name, source="onnx", inputs=spec.inputs, outputs=spec.outputs, variants=variants)
        registry.promote(name, version.id, "onnx")
        run(["simulate", "--rate", "20", "--rows", "4", "--arrivals", "constant", "--json", "out.json"])
        out = capsys.readouterr().out
        assert ("each row runs alone" in out) is (name == "alone")
        found = json.loads((tmp_path / "out.json").read_text())
        lines[name], assumed[name] = found["lines"][0], found["assumed"]
    assert (lines["alone"]["batch_rows"], lines["together"]["batch_rows"]) == (1.0, 4.0)
    assert (assumed["alone"]["max_rows"], assumed["together"]["max_rows"]) == (1, 32)
    assert lines["alone"]["shed"] == 0


def test_the_first_line_names_the_parts_of_the_deployment(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    more = '[features]\nentity = ["id"]\n[[features.groups]]\nname = "g"\nkey = ["id"]\ncolumns = ["x"]\n'
    text = SLO.replace('source = "model.onnx"', 'source = "model.onnx"\npreprocess = "hooks:before"')
    (tmp_path / "tailcut.toml").write_text(f"{text}{more}ttl = '1h'\nfunction = 'hooks:values'\n")
    run(["simulate", *COST, "--rate", "20"])
    assert capsys.readouterr().out.splitlines()[0] == (
        "not included: 1 feature group, preprocess; assumed: an executor without overhead, "
        "60 us on the event loop per request"
    )


def test_a_source_that_no_build_timed_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    coupled.mlp(tmp_path / "model.onnx")
    (tmp_path / "tailcut.toml").write_text(MANIFEST.replace("NAME", "model") + '[serve]\nvariant = "source"\n')
    assert run(["simulate", "--rate", "20"]) not in {ExitCode.OK, ExitCode.BUG}
    said = capsys.readouterr().err
    assert "variant 'source' has no timings in its evidence" in said
    assert "or run `tailcut build` here and serve one of its variants" in said
