"""A running server and versions that were built with other code: switched where the code is the same, else refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.app_kit import Client, counters, running
from tests.code_kit import SITE_FILES, Site, imported
from tests.wait_kit import until

from tailcut.cli.app import run
from tailcut.cli.console import ExitCode
from tailcut.code.files import lacks
from tailcut.code.loaded import CodeSnapshot, LoadedCode
from tailcut.errors import ArtifactError
from tailcut.models.deployment_version import version_of
from tailcut.models.variant_loader import open_variant
from tailcut.pipeline.hook_loading import import_code
from tailcut.serving.promotion import Follower

pytestmark = pytest.mark.slow

ROWS = {"rows": [{"a": 3}]}
TENSORS = {"rows": [{"x": [3, 0]}]}


class Server:
    """A running application that follows the site's registry when it is told to look."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def look(self) -> None:
        follower = self.client.app.engine.follower
        assert isinstance(follower, Follower)
        await follower.look()

    async def answer(self, rows: dict[str, Any] = ROWS) -> float:
        reply = await self.client.post("/predict/m", rows)
        assert reply.status == 200, reply.json
        return float(reply.json["predictions"][0]["y"])

    async def failure(self) -> dict[str, str]:
        """What the pages say of a promotion that is not served; empty where there is none."""
        found: dict[str, str] = (await self.client.get("/v2/models/m")).json.get("promotion", {})
        return found


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with imported():
        yield Site(tmp_path)


def serve(site: Site, test: Callable[[Server], Awaitable[Any]]) -> None:
    """Run a test against a new process's server."""

    async def main() -> None:
        async with running(site.manifest) as client:
            await test(Server(client))

    with imported(site.folder):
        asyncio.run(main())


def test_a_version_of_the_same_code_is_switched_to(site: Site) -> None:
    site.promote(site.build(1.0))

    async def test(server: Server) -> None:
        assert await server.answer() == 3.0
        site.promote(site.build(2.0))
        await server.look()
        assert await server.answer() == 6.0
        assert await server.failure() == {}

    serve(site, test)


@pytest.mark.parametrize(
    ("name", "text"),
    [("scaling.py", "F = 10\n"), ("hooks.py", SITE_FILES["hooks.py"] + "# edited\n"), ("table.txt", "2")],
)
def test_a_version_of_edited_code_is_refused_until_a_restart(
    site: Site, name: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    site.promote(site.build(1.0))

    async def test(server: Server) -> None:
        before = await server.answer()
        site.write(name, text)
        site.promote(site.build(2.0))
        await server.look()
        assert await server.answer() == before
        failure = await server.failure()
        assert failure["state"] == "failed"
        assert f"other code than this server has loaded: {name}" in failure["error"]
        assert failure["hint"].startswith("restart to serve it")
        assert await counters(server.client, "tailcut_switch_failed") == {(): 1}
        assert f"loaded: {name}" in caplog.text

    async def after(server: Server) -> None:
        assert await server.answer() == (60.0 if name == "scaling.py" else 6.0)
        assert await server.failure() == {}

    serve(site, test)
    caplog.clear()
    serve(site, after)
    assert "was built with other code" not in caplog.text


def test_code_counts_as_it_was_loaded_whatever_lies_on_the_disk_now(site: Site) -> None:
    site.promote(site.build(1.0))

    async def test(server: Server) -> None:
        assert await server.answer() == 3.0
        second = site.build(2.0)
        site.write("scaling.py", "F = 10\n")
        site.promote(second)
        await server.look()
        assert await server.answer() == 6.0
        assert await server.failure() == {}

    serve(site, test)


def test_a_rollback_to_other_code_is_refused_and_the_way_out_works(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    first = site.build(1.0)
    site.promote(first)
    site.write("scaling.py", "F = 10\n")
    site.promote(site.build(2.0))

    async def refused(server: Server) -> None:
        assert await server.answer() == 60.0
        site.registry.rollback("m")
        await server.look()
        assert await server.answer() == 60.0
        failure = await server.failure()
        assert "loaded: scaling.py" in failure["error"]
        assert f"`tailcut registry code {first.id} FOLDER`" in failure["hint"]

    async def at_start(server: Server) -> None:
        assert await server.answer() == 30.0
        assert f"version {first.id} was built with other code than the served code: scaling.py" in caplog.text

    async def restored(server: Server) -> None:
        assert await server.answer() == 3.0
        assert "was built with other code" not in caplog.text

    serve(site, refused)
    caplog.clear()
    serve(site, at_start)
    caplog.clear()
    arguments = ["registry", "code", first.id, str(site.folder), "--manifest", str(site.folder), "--force"]
    assert run(arguments) == ExitCode.OK
    assert (site.folder / "scaling.py").read_text() == "F = 1\n"
    serve(site, restored)


def test_code_that_a_variant_runs_nothing_of_forbids_no_switch(site: Site) -> None:
    """A stored model without hooks or feature functions runs no code of the user's."""
    site.write("tailcut.toml", UNHOOKED)
    site.promote(site.build(1.0))

    async def test(server: Server) -> None:
        site.write("train.py", SITE_FILES["train.py"] + "# a comment\n")
        second = site.build(2.0)
        site.write("layers.py", "N = 7  # another, after the build\n")
        site.promote(second)
        await server.look()
        assert await server.answer(TENSORS) == 6.0

    serve(site, test)


def test_a_server_needs_no_files_that_it_does_not_import(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    first, second = site.build(1.0), site.build(2.0)
    site.promote(first)
    for name in ("train.py", "layers.py"):
        (site.folder / name).unlink()

    async def test(server: Server) -> None:
        site.promote(second)
        await server.look()
        assert await server.answer() == 6.0
        assert "other code" not in caplog.text

    serve(site, test)


def test_a_module_that_is_imported_where_it_is_there_counts_where_it_is_missing(site: Site) -> None:
    site.write("scaling.py", "try:\n    from fast import F\nexcept ImportError:\n    F = 5\n")
    site.write("fast.py", "F = 1\n")
    recorded = site.build(1.0).evidence.code
    assert recorded is not None
    (site.folder / "fast.py").unlink()
    assert lacks(site.manifest, recorded, live=False) == ("fast.py",)
    with imported():
        assert import_code(site.manifest).files.lacks(recorded, live=False) == ("fast.py",)


def test_the_users_own_object_is_served_with_the_code_that_it_was_built_with_only(site: Site) -> None:
    site.promote(site.build(1.0))

    async def test(server: Server) -> None:
        first = site.registry.version("m", "latest")
        site.write("layers.py", "N = 8\n")
        site.promote(first, "own")
        await server.look()
        assert "layers.py changed since this server started" in (await server.failure())["error"]
        site.write("layers.py", "N = 7\n")
        site.promote(first)
        site.promote(first, "own")
        await server.look()
        assert await server.answer() == 21.0
        site.write("layers.py", "N = 7  # edited after it was imported\n")
        site.promote(site.build(1.0), "own")
        await server.look()
        assert "loaded: layers.py" in (await server.failure())["error"]
        assert await server.answer() == 21.0

    serve(site, test)


def test_versions_without_a_record_of_the_code_switch_as_they_did(site: Site) -> None:
    site.promote(site.build(1.0, code=False))

    async def test(server: Server) -> None:
        site.promote(site.build(2.0, code=False))
        await server.look()
        assert await server.answer() == 6.0
        site.write("scaling.py", "F = 10\n")
        site.promote(site.build(3.0, code=False))
        await server.look()
        assert "scaling.py changed since this server started" in (await server.failure())["error"]

    serve(site, test)


def test_a_named_version_of_other_code_is_not_loaded_either(site: Site) -> None:
    first = site.build(1.0)
    site.promote(first)
    site.write("scaling.py", "F = 10\n")
    second = site.build(2.0)
    site.promote(second)

    async def test(server: Server) -> None:
        with pytest.raises(ArtifactError, match=r"loaded: scaling\.py"):
            await server.client.app.engine.repository.load(version=first.id)
        assert await server.answer() == 60.0

    serve(site, test)


def test_the_same_artifact_with_other_code_is_another_version(site: Site) -> None:
    first = site.build(1.0)
    assert site.build(1.0).id == first.id
    assert site.build(1.0, code=False).id != first.id
    site.write("scaling.py", "F = 10\n")
    assert site.build(1.0).id != first.id


HOOKS = """
import numpy as np
def one(rows): return {"x": np.array([[row["a"], 0] for row in rows], np.float32)}
def two(rows): return {"x": np.array([[row["a"] * 100, 0] for row in rows], np.float32)}
def after(arrays): return [{"y": float(value) + 0.5} for value in arrays["y"]]
"""
ONE = SITE_FILES["tailcut.toml"].replace("hooks:preprocess", "hooks:one")
UNHOOKED = SITE_FILES["tailcut.toml"].replace('preprocess = "hooks:preprocess"\n', "")
OF_COLUMNS = UNHOOKED.replace("shape = [-1, 2] }", 'shape = [-1, 2], columns = ["a", "b"] }')
OTHERS = {
    "preprocess": (ONE, ONE.replace("hooks:one", "hooks:two"), "model.preprocess", 600.0),
    "postprocess": (ONE, ONE.replace("files =", 'postprocess = "hooks:after"\nfiles ='), "model.postprocess", 6.5),
    "columns": (OF_COLUMNS, OF_COLUMNS.replace('["a", "b"]', '["b", "a"]'), "model.inputs.x.columns", 16.0),
    "clock": (ONE, ONE + '[features]\nclock = "time:time"\n', "features.clock", 6.0),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_version_of_another_manifest_is_refused_until_a_restart(
    site: Site, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    before, after, key, answer = OTHERS[name]
    site.write("hooks.py", HOOKS)
    site.write("tailcut.toml", before)
    site.promote(site.build(1.0))
    rows = {"rows": [{"a": 3, "b": 5} if name == "columns" else {"a": 3}]}

    async def refused(server: Server) -> None:
        first = (await server.client.post("/predict/m", rows)).json["predictions"]
        site.write("tailcut.toml", after)
        second = site.build(2.0)
        site.promote(second)
        await server.look()
        failure = await server.failure()
        assert f"another manifest than this server was started with: {key} was" in failure["error"]
        assert failure["hint"].startswith("restart to serve it")
        assert (await server.client.post("/predict/m", rows)).json["predictions"] == first
        with pytest.raises(ArtifactError, match="another manifest"):
            await server.client.app.engine.repository.load(version=second.id)

    async def restarted(server: Server) -> None:
        assert (await server.client.post("/predict/m", rows)).json["predictions"][0]["y"] == answer
        assert await server.failure() == {}

    async def rolled_back(server: Server) -> None:
        assert f"was built with another manifest than the served one: {key} was" in caplog.text

    serve(site, refused)
    serve(site, restarted)
    assert "another manifest than the served one" not in caplog.text
    site.registry.rollback("m")
    serve(site, rolled_back)


def test_a_manifest_that_differs_in_nothing_of_an_answer_forbids_no_switch(site: Site) -> None:
    site.promote(site.build(1.0))

    async def test(server: Server) -> None:
        site.write("tailcut.toml", SITE_FILES["tailcut.toml"] + '[slo]\ntimeout = "5s"\n')
        site.promote(site.build(2.0))
        await server.look()
        assert await server.answer() == 6.0
        assert await server.failure() == {}

    serve(site, test)


READS_TABLE = """
from pathlib import Path
class M:
    def __init__(self): self.k = float(Path(__file__).with_name("table.txt").read_text())
    def predict(self, rows): return rows.sum(1) * 7 + self.k * (rows[:, 0] > 1)
def build(): return M()
"""


def test_the_users_own_object_is_not_opened_with_data_that_changed_since_the_start(site: Site) -> None:
    site.write("train.py", READS_TABLE)
    version = site.build(1.0)
    site.promote(version)

    async def test(server: Server) -> None:
        site.write("table.txt", "1000")
        site.promote(version, "own")
        await server.look()
        failure = await server.failure()
        assert "table.txt changed since this server started" in failure["error"]
        assert failure["hint"].startswith("restart to serve it")
        assert await server.answer() == 3.0
        site.write("table.txt", "1")
        site.promote(version)
        site.promote(version, "own")
        await server.look()
        assert await server.answer() == 22.0

    serve(site, test)


@pytest.mark.parametrize("name", ["own", "onnx"])
def test_an_executor_that_is_opened_later_reads_no_other_data(site: Site, name: str) -> None:
    site.write("train.py", READS_TABLE)
    version = site.build(1.0)
    with imported(site.folder):
        code = import_code(site.manifest, ["train:build"]).files.snapshot(live=name == "own")
        warm = open_variant(site.manifest, site.registry.variant("m", name, version.id), code=code)
        try:
            warm.open_one().close()
            site.write("table.txt", "1000")
            if name == "own":
                with pytest.raises(ArtifactError, match=r"table\.txt changed since this server started"):
                    warm.open_one()
            else:  # runs none of the user's code
                warm.open_one().close()
        finally:
            warm.close()


def test_a_fallback_of_other_code_is_refused_in_a_switch_and_told_at_a_start(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.write("tailcut.toml", UNHOOKED.replace("[serve]", '[serve]\nfallback = ["own"]'))
    site.promote(site.build(1.0))

    async def switched(server: Server) -> None:
        engine = server.client.app.engine
        await until(lambda: engine.opened.fallback)
        site.write("layers.py", "N = 7  # edited\n")
        site.promote(site.build(2.0))
        await server.look()
        assert await server.answer(TENSORS) == 6.0
        await until(lambda: "fallback own" in caplog.text and "cannot be served" in caplog.text)
        assert "other code than this server has loaded: layers.py" in caplog.text
        assert engine.opened.fallback is None

    async def started(server: Server) -> None:
        await until(lambda: server.client.app.engine.opened.fallback)

    serve(site, switched)
    caplog.clear()
    serve(site, started)
    assert "other code" not in caplog.text
    site.write("layers.py", "N = 7  # edited again\n")
    serve(site, started)
    assert "variant own of version" in caplog.text
    assert "built with other code than the served code: layers.py" in caplog.text


def test_a_switch_reads_no_code_on_the_event_loop(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    version = site.build(1.0)
    site.promote(version)
    threads: list[int] = []
    snapshot = LoadedCode.snapshot

    def noted(self: LoadedCode, *, live: bool) -> CodeSnapshot:
        threads.append(threading.get_ident())
        return snapshot(self, live=live)

    async def test(server: Server) -> None:
        monkeypatch.setattr(LoadedCode, "snapshot", noted)
        site.promote(version, "own")
        await server.look()
        assert await server.answer() == 21.0
        assert threads
        assert threading.get_ident() not in threads
        running = server.client.app.engine.opened
        expected = version_of(site.manifest.deployment, running.variant, running.code.files.snapshot(live=True).digest)
        assert running.served.deployment_version == expected

    serve(site, test)
