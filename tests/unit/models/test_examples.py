"""What a variant is warmed up with: rows that its version keeps, as requests bring them; else one that is invented."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.app_kit import running
from tests.models.picky import PICKY, TOKENS, Picky
from tests.picky_kit import add, body, kept, write

from tailcut.common.validation import InputSpec
from tailcut.errors import InferenceError, StartError
from tailcut.manifest import Manifest, load
from tailcut.models import variant_loader
from tailcut.models.example_rows import Examples, examples_of
from tailcut.models.variant_loader import open_variant
from tailcut.models.warm_up import WARM_UP_RUNS
from tailcut.registry import Registry, VariantEvidence
from tailcut.registry.rows import KeptRows
from tailcut.scheduler.cost import LatencyLearner, kind_of
from tailcut.serving.deployment_loader import find_variant
from tailcut.testing.runtimes import FaultyRuntime, StubRuntime

YEARS = PICKY["an index before the first"]
PADDED = PICKY["padding only"]
INFER = "/v2/models/picky/infer"
every_model = pytest.mark.parametrize("model", PICKY.values(), ids=list(PICKY))


def padded(ends: list[int]) -> KeptRows:
    """Rows of these lengths; each row holds its own number."""
    mask = (np.arange(TOKENS)[None] < np.array(ends)[:, None]).astype(np.int64)
    return KeptRows({"ids": mask * (1 + np.arange(len(ends)))[:, None], "mask": mask}, "mask")


SPECS = (InputSpec("ids", "INT64", (-1, -1)), InputSpec("mask", "INT64", (-1, -1)))


@given(ends=st.lists(st.integers(1, TOKENS), min_size=1, max_size=8), rows=st.integers(1, 40), start=st.integers(0, 99))
def test_every_batch_has_kept_rows_only_all_of_one_shape(ends: list[int], rows: int, start: int) -> None:
    examples = Examples(SPECS, padded(ends))
    batch = examples.batch(rows, start)
    assert len(batch["ids"]) == len(batch["mask"]) == rows
    assert batch["ids"].shape[1] == min(TOKENS, -(-min(ends) // 16) * 16), "of the shortest"
    for ids, mask in zip(batch["ids"], batch["mask"], strict=True):
        number = int(ids.max())
        assert mask.sum() == ends[number - 1], "no row is cut"
        assert (ids == number * mask).all()
    widths = [batch["ids"].shape[1], *(one["ids"].shape[1] for one in examples.longer())]
    assert widths == sorted({min(TOKENS, -(-end // 16) * 16) for end in ends}), "each shape once"


@given(count=st.integers(1, 8), rows=st.integers(1, 40))
def test_rows_are_repeated_only_where_there_are_fewer(count: int, rows: int) -> None:
    examples = Examples((InputSpec("x", "INT64", (-1,)),), KeptRows({"x": np.arange(count)}))
    found = examples.batch(rows)["x"]
    assert len(set(found.tolist())) == min(count, rows)


@every_model
def test_a_model_that_refuses_invented_rows_is_warmed_up_with_its_own(tmp_path: Path, model: Picky) -> None:
    manifest = write(tmp_path, model)
    add(manifest, kept(model))
    warm = open_variant(manifest, find_variant(manifest))
    warm.close()
    assert list(warm.warm_up_ns) == [1, 2, 4]
    assert warm.choice.executor == "inline", "that small models are quick has been measured"


@every_model
@pytest.mark.parametrize("serve", ["promoted", "source"])
def test_without_kept_rows_the_first_request_warms_up(
    tmp_path: Path, model: Picky, serve: str, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = write(tmp_path, model, overrides=[f"serve.variant={serve}"])
    if serve == "promoted":
        add(manifest, None)

    async def main() -> None:
        async with running(manifest) as client:
            assert client.app.engine.opened.warm.warm_up_ns == {}
            assert (await client.get("/v2/health/ready")).status == 200
            for row in range(6):
                request, expected = body(model, row)
                reply = await client.post(INFER, request)
                assert reply.status == 200, reply.json
                assert reply.json["outputs"][0]["data"] == pytest.approx([expected], rel=1e-5)

    with caplog.at_level(logging.WARNING, "tailcut.server"):
        asyncio.run(main())
    told = [record.getMessage() for record in caplog.records if "is not warm" in record.getMessage()]
    assert len(told) == 1, "once, however many executors there are"
    assert "it refuses an invented row: the model failed on a batch of 1 rows" in told[0]
    assert "The first request warms it up" in told[0]
    assert "holdout.keep" in told[0]


def test_many_rows_at_once_are_answered_by_a_variant_that_nothing_is_known_of(tmp_path: Path) -> None:
    """Admission, batches and costs begin with the first request, whatever rows and lengths it brings."""
    manifest = write(tmp_path, PADDED, overrides=["slo.p95=50ms", "serve.variant=source"])

    async def main() -> None:
        async with running(manifest) as client:
            found = await asyncio.gather(*[client.post(INFER, body(PADDED, row)[0]) for row in range(20)])
            assert [reply.status for reply in found] == [200] * 20
            for row, reply in enumerate(found):
                assert reply.json["outputs"][0]["data"] == pytest.approx([body(PADDED, row)[1]], rel=1e-5)

    asyncio.run(main())


def stub(monkeypatch: pytest.MonkeyPatch) -> StubRuntime:
    found = StubRuntime()
    monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: found)
    return found


def test_every_run_of_the_warm_up_has_real_rows_and_each_length_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = write(tmp_path, PADDED)
    add(manifest, padded([3, 20, 5, 40, 33, 7]))
    runtime = stub(monkeypatch)
    open_variant(manifest, find_variant(manifest))
    assert set(runtime.rows) == {1, 2, 4}
    assert {batch["ids"].shape[1] for batch in runtime.batches} == {16, 32, 40}
    assert all(batch["mask"].any(axis=1).all() for batch in runtime.batches)
    assert {int(batch["ids"].max()) for batch in runtime.batches[:WARM_UP_RUNS]} == {1, 3, 6}, "not always the same row"


def test_what_the_warm_up_took_is_known_of_rows_of_its_length(tmp_path: Path) -> None:
    manifest = write(tmp_path, PADDED)
    add(manifest, padded([20, 40]))

    async def main() -> None:
        async with running(manifest) as client:
            opened = client.app.engine.opened
            kind, known = kind_of(32), LatencyLearner()  # 20 tokens are padded to 32
            known.seed(opened.warm.warm_up_ns, kind)
            assert opened.served.dispatcher.costs.of(kind) == known.of(kind)

    asyncio.run(main())


def test_where_rows_run_alone_only_single_rows_warm_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = write(tmp_path, YEARS)
    add(manifest, KeptRows({"year": np.arange(1950, 1953)}))
    runtime = stub(monkeypatch)
    open_variant(manifest, replace(find_variant(manifest), evidence=VariantEvidence(rows_alone=True)))
    assert set(runtime.rows) == {1}
    assert {int(batch["year"][0]) for batch in runtime.batches} == {1950, 1951, 1952}


def test_a_kept_row_that_the_variant_refuses_is_an_error_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = write(tmp_path, YEARS)
    add(manifest, kept(YEARS))
    runtime = stub(monkeypatch)
    faulty = FaultyRuntime(runtime)
    faulty.fail(InferenceError("no such year"), times=1)
    monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: faulty)
    with pytest.raises(StartError, match=r"warm-up failed at 1 rows of the holdout: .*no such year") as no:
        open_variant(manifest, find_variant(manifest))
    assert "tailcut build" in no.value.hint
    assert runtime.closed


def test_a_batch_size_that_fails_is_an_error_whatever_the_rows_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row by itself was answered, so it is not what the model refuses."""
    manifest = write(tmp_path, YEARS)
    for rows in (kept(YEARS), None):
        add(manifest, rows)
        runtime = StubRuntime(lambda inputs: {"y": np.zeros(1, np.float32)})
        monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, runtime=runtime, **__: runtime)
        with pytest.raises(StartError, match="warm-up failed at 2 rows") as no:
            open_variant(manifest, find_variant(manifest))
        assert "batching.max_rows" in no.value.hint


def test_rows_are_read_from_the_registry_that_is_given_where_the_manifest_cannot_open_it(tmp_path: Path) -> None:
    manifest = write(tmp_path, YEARS)
    add(manifest, KeptRows({"year": np.array([1950, 1953])}))
    variant, registry = find_variant(manifest), Registry.of(manifest)
    elsewhere = load(tmp_path, environment={}, overrides=['registry.path="elsewhere"'])
    assert not examples_of(elsewhere, variant).are_real
    assert examples_of(elsewhere, variant, registry).are_real


# -- Rows that cannot be used ------------------------------------------------------------------------------------------


def warned(manifest: Manifest, caplog: pytest.LogCaptureFixture) -> tuple[Examples, str]:
    with caplog.at_level(logging.WARNING, "tailcut.server"):
        found = examples_of(manifest, find_variant(manifest))
    return found, "\n".join(record.getMessage() for record in caplog.records)


def test_rows_beyond_limits_that_the_manifest_has_got_since_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = write(tmp_path, YEARS)
    add(manifest, KeptRows({"year": np.array([1950, 1953, 1951, 1953])}))
    (tmp_path / "tailcut.toml").write_text(
        (tmp_path / "tailcut.toml").read_text().replace('"INT64" }', '"INT64", max = 1951 }')
    )
    found, said = warned(load(tmp_path, environment={}), caplog)
    assert found.are_real
    assert found.batch(4)["year"].tolist() == [1950, 1951, 1950, 1951]
    assert said == ""


def test_where_the_limits_leave_no_row_one_is_invented_within_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = write(tmp_path, YEARS)
    version = add(manifest, KeptRows({"year": np.array([1950, 1951])}))
    (tmp_path / "tailcut.toml").write_text(
        (tmp_path / "tailcut.toml").read_text().replace('"INT64" }', '"INT64", min = 1952 }')
    )
    found, said = warned(load(tmp_path, environment={}), caplog)
    assert not found.are_real
    assert found.batch(1)["year"].tolist() == [1952]
    assert f"version {version.id} is warmed up with an invented row instead of its holdout rows" in said
    assert "1950" in said


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"year": np.array([1950], np.int32)}, "input 'year' is INT32, the manifest says INT64"),
        ({"other": np.array([1950])}, "input 'year' is missing"),
        ({"year": np.array([[1950]])}, "input 'year' has shape"),
    ],
    ids=["datatype", "name", "shape"],
)
def test_rows_that_are_none_of_this_manifest_are_not_used(
    tmp_path: Path, rows: dict[str, np.ndarray], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = write(tmp_path, YEARS)
    add(manifest, KeptRows(rows))
    found, told = warned(manifest, caplog)
    assert not found.are_real
    assert said in told


def test_rows_with_gaps_are_kept_where_the_input_allows_them(tmp_path: Path) -> None:
    model = PICKY["a constant row"]
    rows = KeptRows({"x": np.array([[np.nan] * 6, [1, 2, 3, 4, 5, 6]], np.float32)})
    for allow, count in (("true", 2), ("false", 1)):
        manifest = write(tmp_path, model._replace(inputs=model.inputs.replace(" }", f", allow_nan = {allow} }}")))
        add(manifest, rows)
        found = examples_of(manifest, find_variant(manifest)).batch(2)["x"]
        assert len({row.tobytes() for row in found}) == count


@pytest.mark.parametrize("damage", ["gone", "changed"])
def test_damaged_rows_do_not_keep_a_variant_from_being_served(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = write(tmp_path, YEARS)
    version = add(manifest, kept(YEARS))
    sha256 = version.files["rows"].sha256
    (blob,) = [path for path in Registry.of(manifest).root.rglob(f"*{sha256}*") if path.is_file()]
    if damage == "gone":
        blob.unlink()
    else:
        blob.write_bytes(bytes(blob.stat().st_size))
    found, said = warned(manifest, caplog)
    assert not found.are_real
    assert "file 'rows' of model 'picky'" in said
    assert any(error for what, error in Registry.of(manifest).verify() if "rows" in what), "verify says so, too"
