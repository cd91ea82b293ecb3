"""``tailcut parity`` over sockets: a pilot of others beside a deployment, with faults planted on both sides."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.client import HTTPConnection
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
from tests.integration.servers import free_port
from tests.models.graphs import linear

from tailcut.cli.app import run as run_command
from tailcut.errors import ManifestError, StartError
from tailcut.manifest.subject import find_subject
from tailcut.parity.analysis.mapping import parse_pair
from tailcut.parity.analysis.request_form import parse_form
from tailcut.parity.analysis.tolerance import parse_tolerance
from tailcut.parity.plan import ParityPlan
from tailcut.parity.run import run
from tailcut.report.parity.document import verdict
from tailcut.report.parity.file import ParityRecord, VariantParity

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
MANIFEST = f"""
name = "credit"
python_path = ["{HERE}"]

[model]
source = "model.onnx"
inputs = [{{ name = "x", shape = [-1, 6] }}]
outputs = [{{ name = "y" }}]
preprocess = "parity_deployment:preprocess"
postprocess = "parity_deployment:postprocess"

[serve]
variant = "source"

[features]
entity = ["customer_no"]

[[features.groups]]
name = "customer"
key = ["customer_no"]
columns = ["age", "income", "months", "debt", "city", "note"]
ttl = "10s"
function = "parity_deployment:features"

[cache.entity]
enabled = true
ttl = "60s"
"""
APP = "parity_pilot:app"
BATCH, PLAIN, CHANCES = "/v1/score-batch", "/v1/scores", "/v1/chances"
PAIRS = {
    BATCH: ("result.items[].customer.risk_score=score", "result.items[].customer.label=label"),
    PLAIN: ("[]=score",),
    CHANCES: ("chances[][1]=score",),
}
"""What --map is given: the pilot has other names."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A deployment, logs of both kinds of requests, and the pilot's environment."""
    found = tmp_path_factory.mktemp("parity")
    linear(found / "model.onnx", width=6)
    (found / "tailcut.toml").write_text(MANIFEST)
    batches = [{"source": "log", "people": [{"customer_no": n} for n in _numbers(place)]} for place in range(40)]
    (found / "batches.jsonl").write_text("\n".join(json.dumps(one) for one in batches))
    (found / "ids.jsonl").write_text("\n".join(json.dumps({"ids": _numbers(place)}) for place in range(40)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARITY_MODEL", str(found / "model.onnx"))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
        yield found


def _numbers(place: int) -> list[int]:
    return [(2 * place + step) % 89 for step in range(1 + place % 3)]


@contextmanager
def _started(command: list[str], port: int, path: str, log: Path) -> Iterator[str]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        end_s = time.monotonic() + 60
        while time.monotonic() < end_s and not _answers(port, path):
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)  # between two looks
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _answers(port: int, path: str) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@pytest.fixture(scope="module")
def pilot(folder: Path) -> Iterator[str]:
    """The pilot as a server that runs."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", APP, "--port", str(port), "--log-level", "warning"]
    with _started(command, port, "/openapi.json", folder / "pilot.log") as url:
        yield url


@pytest.fixture(scope="module")
def deployment(folder: Path) -> Iterator[str]:
    """The deployment as a server that runs, its caches off."""
    port = free_port()
    flags = ["--set", "cache.entity.enabled=false", "--set", "features.cache=off", "--set", "server.grpc_port=0"]
    command = [sys.executable, "-m", "tailcut", "serve", "-m", str(folder), "--port", str(port), *flags]
    with _started(command, port, "/v2/health/ready", folder / "serve.log") as url:
        yield url


def compared(folder: Path, plan: ParityPlan) -> tuple[ParityRecord, VariantParity]:
    record = run(find_subject([folder / "tailcut.toml"], keep_unset=True), plan, tell=lambda _: None)
    return record, record.variants[0]


def of_urls(folder: Path, pilot: str, deployment: str, path: str, plant: str = "", **more: object) -> ParityPlan:
    log = folder / ("batches.jsonl" if path == BATCH else "ids.jsonl")
    pairs = tuple(map(parse_pair, PAIRS.get(path, ())))
    form = None if path == BATCH else parse_form(["entities=ids[]"])
    common = {"requests": 40, "headers": (("x-plant", plant),), "pairs": pairs, "form": form}
    given = {"payloads": str(log), **common, **more}
    return ParityPlan(pilot=f"{pilot}{path}", deployment=deployment, **given)  # type: ignore[arg-type]


def of_app(folder: Path, path: str, plant: str = "", **more: object) -> ParityPlan:
    log = folder / ("batches.jsonl" if path == BATCH else "ids.jsonl")
    pairs = tuple(map(parse_pair, PAIRS[path]))
    given = {"requests": 40, "headers": (("x-plant", plant),), "directory": HERE, "pairs": pairs, **more}
    return ParityPlan(pilot=APP, path=path, payloads=str(log), **given)  # type: ignore[arg-type]


def test_a_pilot_with_nested_replies_and_text_for_numbers_is_equal(folder: Path) -> None:
    """Given an application that is started; when nothing is planted; then answers and inputs are equal."""
    record, found = compared(folder, of_app(folder, BATCH))
    assert record.equal, found
    assert record.form == "entities=people[]"
    assert record.caches == "all off"
    matched = {one.output: one.pilot for one in found.fields}
    assert matched == {"score": "result.items[].customer.risk_score", "label": "result.items[].customer.label"}
    assert found.inputs is not None
    assert (found.inputs.columns, found.inputs.differing, found.inputs.problem) == (6, (), "")
    assert found.both_answered == 40


def test_a_pilot_that_answers_a_plain_list_is_equal(folder: Path, pilot: str, deployment: str) -> None:
    record, found = compared(folder, of_urls(folder, pilot, deployment, PLAIN, concurrency=4))
    assert record.equal
    assert record.form == "entities=ids[]"
    assert [(one.pilot, one.output) for one in found.fields] == [("[]", "score")]
    assert record.unmatched_outputs == ("label",)


def test_fields_with_other_names_need_a_map(folder: Path, pilot: str, deployment: str) -> None:
    """Given a reply without the deployment's names; then both sides' fields are listed, and the flag that pairs them;
    where one name is equal and both sides have other fields, these are not left out without a word."""
    with pytest.raises(StartError, match=r"the pilot \(chances\[\]\) .* the deployment \(score, label\)") as caught:
        compared(folder, of_urls(folder, pilot, deployment, CHANCES, pairs=()))
    assert "--map chances[]=score" in caught.value.hint
    record, _ = compared(folder, of_urls(folder, pilot, deployment, CHANCES))
    assert record.equal
    assert verdict(record).endswith("; left out by --map: label")
    with pytest.raises(StartError, match=r"risk_score, .* the deployment \(score\)") as caught:
        compared(folder, of_urls(folder, pilot, deployment, BATCH, pairs=()))
    assert caught.value.hint.endswith("--map result.items[].customer.label=label")


NAMED = {
    "age off by one": {"x[0]": (("age",), "x + 0.025")},
    "months in days": {"x[2]": (("months",), "x * 30")},
    "age and months swapped": {"x[0]": (("age",), ""), "x[2]": (("months",), "")},
    "stale debt": {"x[3]": (("debt",), "")},
    "missing debt is 0": {"x[3]": (("debt",), "")},
    "notes in lower case": {"x[5]": (("note",), "")},
}
"""Of each fault, the inputs of the model that differ, with the features that fill them and the explanation."""
STARTED = {"age and months swapped", "missing debt is 0"}
"""Faults that ``make test`` plants in an application that is started, too, which takes longer than to ask a server."""


@pytest.mark.parametrize(
    "plant",
    [each if each in STARTED else pytest.param(each, marks=pytest.mark.whole) for each in NAMED],
)
def test_a_fault_of_an_application_is_named_from_its_models_inputs(folder: Path, plant: str) -> None:
    record, found = compared(folder, of_app(folder, BATCH, plant))
    assert not record.equal
    assert found.inputs is not None
    assert {one.column: (one.features, one.change) for one in found.inputs.differing} == NAMED[plant]


@pytest.mark.parametrize("plant", NAMED)
def test_a_fault_of_a_url_is_seen_in_its_answers(folder: Path, pilot: str, deployment: str, plant: str) -> None:
    record, found = compared(folder, of_urls(folder, pilot, deployment, BATCH, plant))
    assert not record.equal
    assert found.fields[0].differing_rows > 0
    assert found.inputs is None


def test_a_fault_of_the_deployment_is_named_as_its_opposite(folder: Path) -> None:
    """Given a feature function that is one too high; then the pilot's input is lower by a fortieth."""
    changed = folder / "aged.toml"
    changed.write_text(MANIFEST.replace("parity_deployment:features", "parity_deployment:aged_features"))
    found = run(find_subject([changed], keep_unset=True), of_app(folder, BATCH), tell=lambda _: None).variants[0]
    assert found.inputs is not None
    assert [(one.column, one.features, one.change) for one in found.inputs.differing] == [
        ("x[0]", ("age",), "x - 0.025")
    ]


def test_a_preprocess_that_lowers_case_is_seen_in_the_column_that_it_fills(folder: Path) -> None:
    """Given a hook of the deployment that loses information; then the column and its feature are named."""
    changed = folder / "lowered.toml"
    changed.write_text(MANIFEST.replace("parity_deployment:preprocess", "parity_deployment:lowered_preprocess"))
    found = run(find_subject([changed], keep_unset=True), of_app(folder, BATCH), tell=lambda _: None).variants[0]
    assert found.inputs is not None
    assert [(one.column, one.features) for one in found.inputs.differing] == [("x[5]", ("note",))]


def test_swapped_labels_are_seen_in_the_replies(folder: Path) -> None:
    record, found = compared(folder, of_app(folder, BATCH, "labels swapped"))
    fields = {one.output: one for one in found.fields}
    assert not record.equal
    assert fields["score"].differing_rows == 0
    assert fields["label"].differing_rows == fields["label"].rows
    assert found.inputs is not None
    assert found.inputs.equal


def test_swapped_classes_differ(folder: Path, pilot: str, deployment: str) -> None:
    record, found = compared(folder, of_urls(folder, pilot, deployment, CHANCES, "classes swapped"))
    assert not record.equal
    assert found.fields[0].differing_rows > 0


def test_rounding_is_named_and_a_tolerance_covers_it(folder: Path, pilot: str, deployment: str) -> None:
    _, found = compared(folder, of_urls(folder, pilot, deployment, PLAIN, "rounded"))
    assert found.fields[0].relation == "x rounded to 2 decimals"
    tolerances = dict([parse_tolerance("score=0.0051,0")])
    record, found = compared(folder, of_urls(folder, pilot, deployment, PLAIN, "rounded", tolerances=tolerances))
    assert record.equal
    assert 0.001 < (found.fields[0].max_difference or 0) <= 0.0051


def test_refusals_agree_and_a_pilot_that_crashes_is_a_difference_of_its_own(
    folder: Path, pilot: str, deployment: str
) -> None:
    """Given customers that are not known (422 there, 404 here) and one that the pilot fails on."""
    log = folder / "some.jsonl"
    log.write_text("\n".join(json.dumps({"ids": [number]}) for number in (3, 99, 7, 4)))
    plan = of_urls(folder, pilot, deployment, PLAIN, "crash", payloads=str(log))
    record, found = compared(folder, plan)
    assert (found.both_answered, found.both_refused, found.status_differences) == (2, 1, 1)
    assert [(one.request, one.pilot_status, one.deployment_status) for one in found.statuses] == [(3, 500, 200)]
    assert "Internal Server Error" in found.statuses[0].pilot_text
    assert not record.equal


def test_a_pilot_that_answers_at_random_is_said_to(folder: Path, pilot: str, deployment: str) -> None:
    """Given answers that differ each time; then the report says so, and how often."""
    _, found = compared(folder, of_urls(folder, pilot, deployment, PLAIN, "unsteady"))
    assert found.unsteady == found.differing_requests > 30
    assert any("pin the clock and the seeds" in note for note in found.notes)


def test_nothing_compared_is_an_error_and_not_equality(folder: Path, pilot: str, deployment: str) -> None:
    with pytest.raises(StartError, match=r"the pilot answered none .* reply is 404"):
        compared(folder, of_urls(folder, pilot, deployment, "/nowhere"))


def test_fields_that_no_reply_has_are_refused(folder: Path, pilot: str, deployment: str) -> None:
    """Given a mapping or a tolerance with a slip of the pen; then it is no difference, and not left out either."""
    for text, who in (("[].risk=score", "pilot"), ("[]=scores", "deployment")):
        with pytest.raises(ManifestError, match=f"no reply of the {who} has"):
            compared(folder, of_urls(folder, pilot, deployment, PLAIN, requests=5, pairs=(parse_pair(text),)))
    tolerances = dict([parse_tolerance("scorn=0.1")])
    with pytest.raises(ManifestError, match=r"scorn=.*: no compared output"):
        compared(folder, of_urls(folder, pilot, deployment, PLAIN, requests=5, tolerances=tolerances))


def test_a_form_that_was_given_wins_over_the_field_names(folder: Path, pilot: str, deployment: str) -> None:
    form = parse_form(["entities.customer_no=ids[]"])
    record, _ = compared(folder, of_urls(folder, pilot, deployment, PLAIN, form=form))
    assert record.equal
    assert record.form == "entities.customer_no=ids[]"


def test_variants_cannot_be_chosen_of_a_server_that_runs(folder: Path, pilot: str, deployment: str) -> None:
    with pytest.raises(ManifestError, match="--variant with --deployment"):
        compared(folder, of_urls(folder, pilot, deployment, PLAIN, variants=("source",)))


def tailcut(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tailcut", "parity", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def inside(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run the command in this process, which takes a second less; return exit code, stdout and stderr."""
    capsys.readouterr()
    code = run_command(["parity", *words])
    return code, *capsys.readouterr()


def test_the_exit_code_and_the_files_are_for_ci(
    folder: Path, pilot: str, deployment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given a fault, then 1, JSON and a page that both show it; without it 0; with a wrong flag 2."""
    both = ["-m", str(folder), "--pilot", f"{pilot}{PLAIN}", "--payloads", str(folder / "ids.jsonl")]
    both += ["--deployment", deployment, "--requests", "12", "--request", "entities=ids[]", "--map", "[]=score"]
    assert inside(capsys, *both)[0] == 0
    files = [folder / "parity.json", folder / "parity.html"]
    wrong = tailcut(*both, "--header", "x-plant: age off by one", "--json", str(files[0]), "--html", str(files[1]))
    assert wrong.returncode == 1, wrong.stderr
    assert wrong.stdout.rstrip().endswith("differs: as served")
    kept = json.loads(files[0].read_text())
    assert kept["variants"][0]["differing_requests"] == 12
    assert "12 of 12 requests differ" in wrong.stdout
    assert "12 of 12 requests differ" in files[1].read_text()
    again = tailcut("--from", str(files[0]))
    assert (again.returncode, again.stdout) == (1, wrong.stdout)
    assert inside(capsys, *both, "--tolerance", "score=-1")[0] == 2
    assert inside(capsys, *both, "--map", "nothing")[0] == 2
    assert inside(capsys, *both[:-2])[0] == 3
    assert inside(capsys, "-m", str(folder), "--pilot", "http://127.0.0.1:9/x", "--payloads",
                  str(folder / "ids.jsonl"), "--deployment", deployment)[0] == 3  # fmt: skip


def test_a_deployment_with_tokens_is_asked_with_its_header(
    folder: Path, pilot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given a server that wants a token, then 3 and the flag to give; with the flag 0, and no secret is kept."""
    tokens, port = folder / "tokens", free_port()
    tokens.write_text(f"{sha256(b'parity-t0ken').hexdigest()} tester\n")
    flags = ["--set", "cache.entity.enabled=false", "--set", "server.grpc_port=0", "--set", f"server.tokens={tokens}"]
    command = [sys.executable, "-m", "tailcut", "serve", "-m", str(folder), "--port", str(port), *flags]
    with _started(command, port, "/v2/health/ready", folder / "guarded.log") as url:
        both = ["-m", str(folder), "--pilot", f"{pilot}{PLAIN}?api_key=k3y", "--payloads", str(folder / "ids.jsonl")]
        both += ["--deployment", url, "--requests", "5", "--request", "entities=ids[]", "--map", "[]=score"]
        code, out, errors = inside(capsys, *both)
        assert code == 3, out + errors
        assert "--deployment-header" in errors
        file = folder / "guarded.json"
        token = "Authorization: Bearer parity-t0ken"
        code, out, errors = inside(capsys, *both, "--deployment-header", token, "--json", str(file))
        assert code == 0, out + errors
    for text in (out, file.read_text()):
        assert "parity-t0ken" not in text
        assert "k3y" not in text
