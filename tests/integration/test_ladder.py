"""A whole ladder: a stub pilot with a known service rate, then real servers of a tiny model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.models.graphs import linear
from tests.scale import sized

from tailcut.errors import ManifestError, StartError
from tailcut.ladder import LadderOptions, climb
from tailcut.load.server_process import ServerProcess, free_port
from tailcut.manifest import TensorSpec
from tailcut.manifest.subject import find_subject
from tailcut.registry import NewVariant, Registry, VariantEvidence
from tailcut.report.ladder.file import LadderRecord, load_ladder

HERE = Path(__file__).parent
ROUNDS = sized(1, 2)
MANIFEST = f"""
name = "tiny"
python_path = ["{HERE}"]

[model]
source = "model.onnx"
inputs = [{{ name = "x", shape = [-1, 4], columns = ["a", "b", "c", "d"] }}]
outputs = [{{ name = "y" }}]

[quality]
budget = {{ auc = 0.004 }}

[slo]
p95 = "100ms"
errors = "1%"
timeout = "1s"

[features]
entity = ["id"]

[[features.groups]]
name = "all"
key = ["id"]
columns = ["a", "b", "c", "d"]
ttl = "10s"
function = "ladder_example:features"

[registry]
path = "registry"

[ladder]
pilot = ["{{python}}", "{HERE / "load_stub.py"}", "{{port}}"]
pilot_path = "/serial/20"
setup = "ladder_example:setup"
traffic = "ladder_example:traffic"
rungs = [
    {{ name = "levers off", variant = "onnx", set = ["serve.variant=onnx", "features.cache=off"] }},
    {{ name = "+ cache", set = ["features.cache=memory"] }},
    {{ name = "+ INT8", variant = "int8-dynamic", set = ["serve.variant=int8-dynamic"] }},
    {{ name = "+ broken", set = ["serve.variant=missing"] }},
    {{ name = "+ prediction cache", set = ["serve.variant=onnx", "cache.entity.enabled=true"] }},
]
"""


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ladder")
    linear(folder / "model.onnx")
    evidence = VariantEvidence(metrics={"auc": 0.75, "log_loss": 0.5})
    registry = Registry(folder / "registry")
    version = registry.add(
        "tiny",
        source="onnx",
        inputs=[TensorSpec(name="x", shape=(-1, 4))],
        outputs=[TensorSpec(name="y")],
        variants=[
            NewVariant("onnx", "onnxruntime", folder / "model.onnx", evidence=evidence),
            NewVariant("int8-dynamic", "onnxruntime", None, refused="auc fell 0.01, budget 0.004"),
        ],
    )
    registry.promote("tiny", version.id, "onnx")
    (folder / "tailcut.toml").write_text(MANIFEST)
    return folder / "tailcut.toml"


@pytest.fixture(scope="module")
def climbed(manifest: Path) -> tuple[LadderRecord, Path, list[str]]:
    out = manifest.parent / "out"
    told: list[str] = []
    options = LadderOptions(
        out=out, rates=(100.0,), rounds=ROUNDS, duration_s=0.5, warmup_s=0.2, settle_s=0.1, step_s=0.5,
        step_warmup_s=0.1, search_s=sized(4.0, 6.0), tolerance=0.5,
        parity=sized(0, 50), max_rate=100.0,  # a search ends there, by itself: the servers could take thousands
    )  # fmt: skip
    record = climb(find_subject([manifest], keep_unset=True), options, tell=told.append)
    return record, out, told


@pytest.mark.quiet
def test_the_pilots_comfortable_rate_comes_from_its_service_rate(climbed: tuple[LadderRecord, Path, list[str]]) -> None:
    """A request takes 20 ms, one at a time: the queue grows from somewhere below 50/s on."""
    pilot = climbed[0].pilot
    assert pilot is not None
    assert pilot.unloaded_p95_ms is not None
    assert 19 <= pilot.unloaded_p95_ms <= 60
    assert 8 <= pilot.saturation_rate <= 60
    assert pilot.comfortable_rate == pytest.approx(0.7 * pilot.saturation_rate, abs=0.06)
    assert pilot.meets_slo_unloaded


@pytest.mark.quiet
def test_every_rung_is_there_and_those_that_cannot_run_say_why(climbed: tuple[LadderRecord, Path, list[str]]) -> None:
    rungs = {rung.name: rung for rung in climbed[0].rungs}
    assert list(rungs) == ["pilot", "levers off", "+ cache", "+ INT8", "+ broken", "+ prediction cache"]
    assert rungs["+ INT8"].refused == "auc fell 0.01, budget 0.004"
    assert rungs["+ INT8"].measurements == ()
    assert rungs["+ broken"].failed
    for name in ("pilot", "levers off", "+ cache", "+ prediction cache"):
        assert (rungs[name].refused, rungs[name].failed) == ("", "")
        assert [(one.round, one.rate_name) for one in rungs[name].measurements] == [
            (number, rate) for number in range(1, ROUNDS + 1) for rate in ("comfortable", "100")
        ]


@pytest.mark.quiet
def test_rungs_are_measured_as_they_are(climbed: tuple[LadderRecord, Path, list[str]]) -> None:
    rungs = {rung.name: rung for rung in climbed[0].rungs}
    at_100 = [one for one in rungs["pilot"].measurements if one.rate_name == "100"]
    assert all(one.saturated for one in at_100), "the pilot's capacity is 50/s"
    for name in ("levers off", "+ cache", "+ prediction cache"):
        for one in rungs[name].measurements:
            assert one.latency_ms is not None
            assert one.answered == one.requests
            assert one.cpu_s_per_1000 is not None
            assert one.stages_ms["total"] > 0
        assert rungs[name].quality == {"auc": 0.75, "log_loss": 0.5}
        assert rungs[name].capacity is not None
        assert rungs[name].capacity.rate > 50
    assert "features" in rungs["levers off"].measurements[0].stages_ms
    assert "hit" in rungs["+ prediction cache"].measurements[-1].cache
    same = [[one.requests for one in rungs[name].measurements] for name in ("pilot", "levers off", "+ cache")]
    assert same[0] == same[1] == same[2], "every rung gets the same traffic"


@pytest.mark.quiet
def test_all_is_kept_and_set_up_is_undone(climbed: tuple[LadderRecord, Path, list[str]], manifest: Path) -> None:
    record, out, told = climbed
    assert load_ladder(out / "ladder.json") == record
    assert len(list((out / "raw").glob("*.npz"))) == 8 * ROUNDS
    assert any("levers-off" in path.name for path in (out / "logs").iterdir())
    assert any(line.startswith("+ broken: failed") for line in told)
    assert not (manifest.parent / "is-set-up").exists()
    assert "LADDER_EXAMPLE_SCALE" not in os.environ


@pytest.mark.quiet
def test_the_file_names_no_folder_of_this_machine(climbed: tuple[LadderRecord, Path, list[str]]) -> None:
    record, out, _ = climbed
    served = [rung.command for rung in record.rungs if "--manifest" in rung.command]
    assert len(served) >= 3
    for command in served:
        assert not Path(command[0]).is_absolute()
        assert not Path(command[command.index("--manifest") + 1]).is_absolute()
    assert str(Path.cwd()) not in (out / "ladder.json").read_text()


@pytest.mark.quiet
def test_reports_are_made_again_from_the_file_alone(
    climbed: tuple[LadderRecord, Path, list[str]], tmp_path: Path
) -> None:
    (tmp_path / "ladder.json").write_bytes((climbed[1] / "ladder.json").read_bytes())
    done = subprocess.run(
        [sys.executable, "-m", "tailcut", "ladder", "--from", str(tmp_path / "ladder.json")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "+ INT8" in done.stdout
    assert "refused: auc fell 0.01" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"ladder.json", "ladder.md", "ladder.html", "ladder.png"}
    assert json.loads((tmp_path / "ladder.json").read_text())["deployment"] == "tiny"


def test_a_server_that_dies_shows_its_last_lines(tmp_path: Path) -> None:
    script = "import sys; sys.stderr.write('no such table: flights\\n'); sys.exit(3)"
    process = ServerProcess(
        [sys.executable, "-c", script], free_port(), tmp_path / "dead.log",
        environment=dict(os.environ), directory=tmp_path, core=None,
    )  # fmt: skip
    with process, pytest.raises(StartError, match="exited with code 3") as caught:
        process.wait_until_ready("/", timeout_s=20.0)
    assert "no such table: flights" in caught.value.hint


def test_a_ladder_without_traffic_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tailcut.toml").write_text(MANIFEST.replace('traffic = "ladder_example:traffic"', ""))
    with pytest.raises(ManifestError, match=r"ladder\.traffic is empty"):
        climb(
            find_subject([tmp_path / "tailcut.toml"], keep_unset=True),
            LadderOptions(out=tmp_path / "out"),
            tell=lambda line: None,
        )
