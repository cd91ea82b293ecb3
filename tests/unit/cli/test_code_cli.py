"""``tailcut registry`` and the user's code: refusals with the files that differ, the copy, and notes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.code_kit import SITE_FILES, Site, imported
from tests.promotion_kit import save_model

from tailcut.cli.app import run
from tailcut.cli.console import ExitCode
from tailcut.code import archive
from tailcut.errors import ArtifactError
from tailcut.registry import NewVariant, Version, VersionEvidence
from tailcut.registry.checking import nothing, refuse

pytestmark = pytest.mark.slow

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with imported():
        yield Site(tmp_path / "app")


def tailcut(site: Site, capsys: Capture, *arguments: str, code: ExitCode = ExitCode.OK) -> str:
    """Run a command in the site's folder; what it wrote, what it said on stderr after it."""
    assert run(["registry", *arguments, "--manifest", str(site.folder)]) == code
    seen = capsys.readouterr()
    return seen.out + seen.err


def two_versions(site: Site) -> tuple[Version, Version]:
    """Build and promote two, between which a helper was edited."""
    first = site.build(1.0)
    site.promote(first)
    site.write("scaling.py", "F = 10\n")
    second = site.build(2.0)
    site.promote(second)
    return first, second


def test_a_rollback_to_other_code_is_refused_unless_the_code_is_back_or_it_is_forced(
    site: Site, capsys: Capture
) -> None:
    first, second = two_versions(site)
    refused = tailcut(site, capsys, "rollback", code=ExitCode.NOT_STARTED)
    assert f"version {first.id} was built with other code than {site.folder} has: scaling.py" in refused
    assert f"`tailcut registry code {first.id} FOLDER`" in refused
    found = site.registry.promotion("m")
    assert found is not None
    assert found.version == second.id
    assert first.id in tailcut(site, capsys, "rollback", "--force")
    site.promote(second)
    site.write("scaling.py", "F = 1\n")
    assert first.id in tailcut(site, capsys, "rollback")


def test_a_promotion_of_other_code_is_refused_unless_it_is_forced(site: Site, capsys: Capture) -> None:
    first, second = two_versions(site)
    tailcut(site, capsys, "promote", "onnx", "--version", second.id)
    refused = tailcut(site, capsys, "promote", "onnx", "--version", first.id, code=ExitCode.NOT_STARTED)
    assert "scaling.py" in refused
    assert first.id in tailcut(site, capsys, "promote", "onnx", "--version", first.id, "--force")


def test_a_variant_that_the_gate_refused_is_refused_with_both_reasons(site: Site) -> None:
    """--force allows both: who says it has to have seen both."""
    built = site.build(1.0)
    refused = replace(
        built, variants={**built.variants, "onnx": replace(built.variants["onnx"], refused="accuracy fell by 9 points")}
    )

    def check(version: Version, name: str) -> None:
        raise ArtifactError(f"{name} was built with other code", hint="put it back")

    with pytest.raises(ArtifactError, match="refused: accuracy fell by 9 points; and onnx was built with other code"):
        refuse(refused, "onnx", check, force=False)
    with pytest.raises(ArtifactError, match=r"refused: accuracy fell by 9 points\n"):
        refuse(refused, "onnx", nothing, force=False)
    refuse(refused, "onnx", nothing, force=True)
    refuse(built, "onnx", nothing, force=False)


def test_code_of_another_model_is_not_compared_with_the_manifests(site: Site, capsys: Capture) -> None:
    site.build(1.0)
    manifest = SITE_FILES["tailcut.toml"].replace('name = "m"\n', 'name = "other"\n', 1)
    site.write("tailcut.toml", manifest)
    said = tailcut(site, capsys, "promote", "onnx", "--quick", "--model", "m", code=ExitCode.NOT_STARTED)
    assert "the code of model 'm'" in said
    assert "'other'" in said
    tailcut(site, capsys, "promote", "onnx", "--quick", "--model", "m", "--force")


def test_verify_goes_on_after_damaged_evidence(site: Site, capsys: Capture) -> None:
    first, second = two_versions(site)
    (damaged,) = (file for file in site.registry.root.rglob("*evidence*") if first.id in str(file))
    damaged.write_bytes(b"{}")
    site.write("scaling.py", "F = 3\n")
    said = tailcut(site, capsys, "verify", "--quick", code=ExitCode.FAILED)
    assert f"m {second.id} needs other code" in said


def test_a_version_of_another_manifest_is_refused_unless_it_is_forced(site: Site, capsys: Capture) -> None:
    first = site.build(1.0)
    site.promote(first)
    site.write("hooks.py", SITE_FILES["hooks.py"].replace("def preprocess", "def other") + "preprocess = other\n")
    site.write("tailcut.toml", SITE_FILES["tailcut.toml"].replace("hooks:preprocess", "hooks:other"))
    second = site.build(2.0)
    tailcut(site, capsys, "promote", "onnx", "--version", second.id)
    site.write("hooks.py", SITE_FILES["hooks.py"] + "other = preprocess\n")
    for arguments in (["rollback"], ["promote", "onnx", "--version", first.id]):
        refused = tailcut(site, capsys, *arguments, code=ExitCode.NOT_STARTED)
        assert (
            f"built with another manifest than the one in {site.folder}: model.preprocess was 'hooks:preprocess'"
            in refused
        )
    assert first.id in tailcut(site, capsys, "rollback", "--force")


def test_without_functions_code_counts_for_the_variant_that_runs_the_source_alone(site: Site, capsys: Capture) -> None:
    manifest = SITE_FILES["tailcut.toml"].replace('preprocess = "hooks:preprocess"\n', "")
    site.write("tailcut.toml", manifest)
    version = site.build(1.0)
    site.write("train.py", SITE_FILES["train.py"] + "# edited\n")
    tailcut(site, capsys, "promote", "onnx")
    refused = tailcut(site, capsys, "promote", "own", code=ExitCode.NOT_STARTED)
    assert f"variant 'own' of version {version.id}" in refused
    assert "train.py" in refused


def test_a_registry_that_is_named_without_a_manifest_is_not_compared(site: Site, capsys: Capture) -> None:
    first, _ = two_versions(site)
    assert run(["registry", "rollback", "--registry", site.registry.url]) == ExitCode.OK
    assert first.id in capsys.readouterr().out


def test_verify_names_versions_of_other_code_and_they_are_no_fault(site: Site, capsys: Capture) -> None:
    first, second = two_versions(site)
    said = tailcut(site, capsys, "verify")
    assert f"m {first.id} needs other code than {site.folder} has: scaling.py" in said
    assert f"m {second.id} needs" not in said
    assert f"ok m {first.id} file code" in said


def test_the_code_of_a_version_is_written_out_as_it_was(site: Site, capsys: Capture, tmp_path: Path) -> None:
    first, _ = two_versions(site)
    written = tailcut(site, capsys, "code", first.id, str(tmp_path / "old")).split()
    kept = {name: text for name, text in SITE_FILES.items() if name != "tailcut.toml"}
    assert {str(Path(path).relative_to(tmp_path / "old")) for path in written} == set(kept)
    assert {name: (tmp_path / "old" / name).read_text() for name in kept} == kept
    tailcut(site, capsys, "code", first.id, str(tmp_path / "old"))
    refused = tailcut(site, capsys, "code", first.id, str(site.folder), code=ExitCode.USAGE)
    assert f"{site.folder} has other content in scaling.py" in refused
    assert (site.folder / "scaling.py").read_text() == "F = 10\n"
    tailcut(site, capsys, "code", first.id, str(site.folder), "--force")
    assert (site.folder / "scaling.py").read_text() == "F = 1\n"


def test_diff_names_files_and_distributions_that_differ(site: Site, capsys: Capture) -> None:
    first, second = two_versions(site)
    found = tailcut(site, capsys, "diff", first.id, second.id)
    assert "scaling.py: " in found
    assert "hooks.py" not in found


def test_without_keep_code_only_hashes_are_kept(site: Site, capsys: Capture, tmp_path: Path) -> None:
    site.write("tailcut.toml", SITE_FILES["tailcut.toml"] + "[registry]\nkeep_code = false\n")
    version = site.build(1.0)
    assert version.files == {}
    assert site.registry.version("m", version.id).evidence.code.modules["scaling"].sha256
    said = tailcut(site, capsys, "code", version.id, str(tmp_path / "old"), code=ExitCode.NOT_STARTED)
    assert "keeps no copy of the code" in said
    assert "registry.keep_code = true" in said


def test_code_over_the_limit_is_kept_without_data_or_not_at_all(
    site: Site, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MOST_BYTES", 2000)
    site.write("table.txt", "1" * 3000)
    version = site.build(1.0)
    written = tailcut(site, capsys, "code", version.id, str(tmp_path / "old"))
    assert "scaling.py" in written
    assert "table.txt" not in written
    monkeypatch.setattr(archive, "MOST_BYTES", 100)
    assert site.build(2.0).files == {}


def test_the_copy_of_the_same_code_is_the_same_file(site: Site) -> None:
    one, other = site.build(1.0), site.build(2.0)
    assert one.files["code"] == other.files["code"]


def test_a_damaged_copy_is_refused(site: Site, capsys: Capture, tmp_path: Path) -> None:
    version = site.build(1.0)
    kept = site.registry.file(version, "code")
    assert kept is not None
    kept.chmod(0o644)
    kept.write_bytes(kept.read_bytes()[:-5])
    assert "bytes" in tailcut(site, capsys, "code", version.id, str(tmp_path / "old"), code=ExitCode.NOT_STARTED)


def test_code_is_compared_by_the_modules_that_the_record_names(site: Site, capsys: Capture) -> None:
    site.write("notes.py", "")
    now = site.build(1.0)
    code = now.evidence.code
    named = {name: each for name, each in code.modules.items() if name != "notes"}
    listed = site.registry.add(
        "m",
        source="own",
        inputs=now.inputs,
        outputs=now.outputs,
        variants=[NewVariant("onnx", "onnxruntime", save_model(site.folder / "other.onnx", 3.0), base=True)],
        evidence=VersionEvidence(code=replace(code, modules=named)),
        manifest=now.manifest,
    )
    site.write("notes.py", "edited = 1")
    tailcut(site, capsys, "promote", "onnx", "--version", listed.id)
    site.write("scaling.py", "F = 10\n")
    assert f"m {listed.id} needs other code than {site.folder} has: scaling.py" in tailcut(site, capsys, "verify")
