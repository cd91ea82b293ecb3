"""Models whose path leads elsewhere after a release: by a symbolic link, or mounted as Kubernetes mounts files."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.app_kit import Client
from tests.host_kit import HostClient, add_model, running_host
from tests.promotion_kit import save_model

HOOK = """
def postprocess(outputs):
    return ["{word}" for _ in outputs["y"]]
"""


def serve(test: Callable[[HostClient], Awaitable[None]], *paths: Path) -> None:
    async def main() -> None:
        async with running_host(*paths) as client:
            await test(client)

    asyncio.run(main())


def point(link: Path, target: Path | str) -> None:
    """Have a link lead to a target, in one step as a release does it."""
    link.parent.mkdir(exist_ok=True)
    new = link.with_name(f"..new-{link.name}")
    new.symlink_to(target)
    new.replace(link)


@pytest.fixture
def releases(tmp_path: Path) -> list[Path]:
    """Two releases of the model "risk", which answer with the factors 1 and 2."""
    return [add_model(tmp_path / f"v{number}", "risk", float(number)).parent for number in (1, 2)]


async def reloaded(client: HostClient, name: str) -> float:
    """Unload a model and load it; return the factor that it answers with."""
    assert (await client.unload(name)).status == 200
    reply = await client.load(name)
    assert (reply.status, reply.json) == (200, {})
    return await client.factor(name)


@pytest.mark.parametrize("form", ["folder", "alone", "beside another"])
def test_a_load_serves_the_release_that_the_link_leads_to_by_then(
    tmp_path: Path, releases: list[Path], form: str
) -> None:
    link = tmp_path / "models" / "risk"
    point(link, releases[0])
    other = add_model(tmp_path if form == "beside another" else tmp_path / "models", "other", 5.0)
    paths = {"folder": [link.parent], "alone": [link], "beside another": [link, other]}[form]

    async def test(client: HostClient) -> None:
        assert await client.factor("risk") == 1.0
        point(link, releases[1])
        assert await reloaded(client, "risk") == 2.0
        shutil.rmtree(releases[0])
        assert await reloaded(client, "risk") == 2.0
        assert set(await client.index()) == ({"risk"} if form == "alone" else {"risk", "other"})

    serve(test, *paths)


def test_a_load_without_an_unload_switches_to_the_release_and_until_then_all_executors_are_of_the_old_one(
    tmp_path: Path, releases: list[Path]
) -> None:
    link = tmp_path / "models" / "risk"
    point(link, releases[0])

    async def test(client: HostClient) -> None:
        point(link, releases[1])
        assert client.host.engine("risk").opened.variant.artifact == releases[0] / "model.onnx"
        assert await client.factor("risk") == 1.0
        assert (await client.load("risk")).status == 200
        assert await client.factor("risk") == 2.0

    serve(test, link.parent)


def test_files_that_kubernetes_mounts_are_read_again_after_their_update(tmp_path: Path) -> None:
    """Each file of a mounted folder is a link through ``..data``, which leads to the hidden folder of an update."""
    folder = add_model(tmp_path / "models", "risk").parent
    manifest = (folder / "tailcut.toml").read_text()
    for number in (1, 2):
        (folder / f"..v{number}").mkdir()
        (folder / f"..v{number}" / "tailcut.toml").write_text(manifest.replace("= 4", f"= {4 * number}"))
        save_model(folder / f"..v{number}" / "model.onnx", float(number))
    point(folder / "..data", "..v1")
    for name in ("tailcut.toml", "model.onnx"):
        point(folder / name, f"..data/{name}")
    add_model(tmp_path / "models", "other", 5.0)

    async def test(client: HostClient) -> None:
        assert await client.factor("risk") == 1.0
        point(folder / "..data", "..v2")
        shutil.rmtree(folder / "..v1")
        assert await reloaded(client, "risk") == 2.0
        assert (await client.get("/v2/models/risk/config")).json["max_batch_size"] == 8
        assert set(await client.index()) == {"risk", "other"}

    serve(test, tmp_path / "models")


def test_paths_start_in_the_folder_of_a_manifest_that_is_itself_a_link(tmp_path: Path) -> None:
    file = add_model(tmp_path / "models", "risk", 3.0)
    (tmp_path / "config").mkdir()
    os.rename(file, tmp_path / "config" / "tailcut.toml")
    point(file, tmp_path / "config" / "tailcut.toml")

    async def test(client: HostClient) -> None:
        assert await client.factor("risk") == 3.0

    serve(test, tmp_path / "models")


def test_hooks_of_another_release_are_told_of_as_edited_ones_are(tmp_path: Path, releases: list[Path]) -> None:
    for release in releases:
        file = release / "tailcut.toml"
        file.write_text(file.read_text().replace("[model]", '[model]\npostprocess = "release_hooks:postprocess"'))
        (release / "release_hooks.py").write_text(HOOK.format(word=release.parent.name))
    link = tmp_path / "models" / "risk"
    point(link, releases[0])

    async def said(client: Client) -> list[str]:
        reply = await client.post("/predict/risk", {"rows": [{"id": 1, "value": 2}]})
        found: list[str] = reply.json["predictions"]
        return found

    async def test(client: HostClient) -> None:
        engine = client.host.engine("risk")
        listed = engine.opened.code.files.code.modules["release_hooks"].file
        assert listed == "release_hooks.py", "from the manifest's folder, through the link"
        point(link, releases[1])
        await client.unload("risk")
        reply = await client.load("risk")
        assert (reply.status, reply.json["code"]["state"]) == (200, "outdated")
        assert "release_hooks.py changed on the disk" in reply.json["code"]["error"]
        assert await said(client) == ["v1"]

    serve(test, link.parent)
