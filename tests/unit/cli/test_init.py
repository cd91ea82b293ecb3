"""``tailcut init`` and what all commands share: exit codes, streams, errors, lazy loading, named flags."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import pytest
import typer

from tailcut import errors
from tailcut.cli import console
from tailcut.cli.app import run
from tailcut.cli.console import ExitCode
from tailcut.cli.options import ManifestPaths, Settings, examples, load_subject, manifest_option
from tailcut.manifest import load

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., object]], None]:
    """Put a function in place of ``tailcut check``, registered as the real commands are."""

    def put(function: Callable[..., object]) -> None:
        module = type(sys)("tailcut.cli.check")
        module.__spec__ = console.__spec__
        module.register = lambda app: app.command("check", epilog=examples(("tailcut check", "try [it]")))(function)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "tailcut.cli.check", module)

    return put


def test_init_writes_a_manifest_that_loads(tmp_path: Path, capsys: Capture) -> None:
    assert run(["init", str(tmp_path)]) == ExitCode.OK
    seen = capsys.readouterr()
    assert seen.out == f"{tmp_path / 'tailcut.toml'}\n"
    flag = f" --manifest {tmp_path / 'tailcut.toml'}"
    assert seen.err == (
        "first set [slo]: p95 or p99 (the latency limit) and rate (requests per second)\n"
        "then fill in name, [model] with its tensors (--from-model fills them in), [holdout] (labelled rows, from a "
        "function or a file), and run: "
        f"tailcut build{flag} && tailcut check{flag}\n"
        'to serve an .onnx file unchanged, without holdout and build: [serve] variant = "source"\n'
    )
    assert load(tmp_path, environment={}).deployment.name == "my-model"
    assert [one.name for one in tmp_path.iterdir()] == ["tailcut.toml"]


def test_init_makes_folders_and_takes_a_file_name(tmp_path: Path) -> None:
    assert run(["init", str(tmp_path / "a" / "b")]) == ExitCode.OK
    assert run(["init", str(tmp_path / "c" / "other.toml")]) == ExitCode.OK
    assert (tmp_path / "a" / "b" / "tailcut.toml").is_file()
    assert (tmp_path / "c" / "other.toml").is_file()


def test_init_does_not_overwrite_unless_forced(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "tailcut.toml"
    file.write_text("mine")
    assert run(["init", str(tmp_path)]) == ExitCode.USAGE
    assert (
        capsys.readouterr().err
        == f"error: {file} already exists\n\nhint: overwrite it with --force, or name another file\n"
    )
    assert file.read_text() == "mine"
    assert run(["init", str(tmp_path), "--force"]) == ExitCode.OK
    assert file.read_text() != "mine"
    assert [one.name for one in tmp_path.iterdir()] == ["tailcut.toml"]


def test_init_in_a_place_that_cannot_be_written(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").write_text("")
    assert run(["init", str(tmp_path / "file" / "x")]) == ExitCode.USAGE
    assert "cannot be written: Not a directory" in capsys.readouterr().err


def test_version(capsys: Capture) -> None:
    assert run(["--version"]) == ExitCode.OK
    assert capsys.readouterr().out.startswith("tailcut 0.")


def test_no_arguments_print_the_help(capsys: Capture) -> None:
    assert run([]) == ExitCode.USAGE
    seen = capsys.readouterr()
    assert "Write a commented tailcut.toml." in seen.out
    assert seen.err == ""


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["inti"], "No such command 'inti'. Did you mean 'init'?", "`tailcut --help` shows its options"),
        (["init", "--forc"], "No such option: --forc", "`tailcut init --help` shows its options"),
    ],
)
def test_a_wrong_command_line(arguments: list[str], error: str, hint: str, capsys: Capture) -> None:
    assert run(arguments) == ExitCode.USAGE
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.startswith(f"error: {error}")
    assert seen.err.endswith(f"\n\nhint: {hint}\n")


@pytest.mark.parametrize(
    ("raised", "code", "printed"),
    [
        (errors.ManifestError("m", hint="h"), 2, "error: m\n\nhint: h\n"),
        (errors.StartError("port 8700 is taken"), 3, "error: port 8700 is taken\n"),
        (errors.ArtifactError("a [bold]"), 3, "error: a [bold]\n"),
        (errors.LoadTestError("l"), 3, "error: l\n"),
        (errors.MissingExtra("m"), 4, "error: m\n"),
        (errors.BuildError("b"), 1, "error: b\n"),
        (typer.Exit(1), 1, ""),
        (KeyboardInterrupt(), 130, ""),
        (
            ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn"),
            4,
            "error: the package torch is not installed\n\nhint: pip install 'tailcut[torch]'\n",
        ),
        (
            ValueError("odd"),
            70,
            "error: unexpected ValueError: odd\n\n"
            "hint: run again with --debug for the traceback; please report a bug in tailcut\n",
        ),
    ],
)
def test_every_end_has_its_exit_code(
    raised: BaseException, code: int, printed: str, command: Callable[..., None], capsys: Capture
) -> None:
    def check() -> None:
        raise raised

    command(check)
    assert run(["check"]) == code
    assert capsys.readouterr().err == printed


def test_debug_prints_the_traceback_wherever_it_stands(command: Callable[..., None], capsys: Capture) -> None:
    def check() -> None:
        raise errors.StartError("no")

    command(check)
    for arguments in (["--debug", "check"], ["check", "--debug"]):
        assert run(arguments) == ExitCode.NOT_STARTED
        seen = capsys.readouterr().err
        assert "Traceback" in seen
        assert seen.endswith("error: no\n")
    assert run(["check"]) == ExitCode.NOT_STARTED
    assert "Traceback" not in capsys.readouterr().err


def test_commands_share_options_and_named_flags_come_from_the_manifest(
    command: Callable[..., None], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(
        manifest: ManifestPaths = None,
        settings: Settings = None,
        port: Annotated[str | None, manifest_option("server.port")] = None,
        variant: Annotated[str | None, manifest_option("serve.variant", "--variant", "-v")] = None,
    ) -> None:
        loaded = load_subject(manifest, "", settings, port, variant).manifest
        server = loaded.deployment.server
        console.write(f"{server.host} {server.port} {loaded.deployment.serve.variant} {sorted(loaded.origins)[-2:]}")

    command(check)
    run(["init", str(tmp_path)])
    capsys.readouterr()
    monkeypatch.setenv("TAILCUT_MANIFEST", str(tmp_path))
    monkeypatch.setenv("TAILCUT_SERVER__PORT", "9000")
    assert run(["check"]) == 0
    assert capsys.readouterr().out == "127.0.0.1 9000 promoted ['name', 'server.port']\n"
    line = [
        "check",
        "-m",
        str(tmp_path),
        "--set",
        "server.port=1",
        "--set",
        "server.host=::1",
        "--port",
        "2",
        "-v",
        "onnx",
    ]
    assert run(line) == 0
    assert capsys.readouterr().out == "::1 2 onnx ['server.host', 'server.port']\n"
    assert run(["check", "--port", "x"]) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith('error: server.port: "x" is not an integer from 0 to 65535\n\nhint: ')


def test_help_of_named_flags_is_the_schemas(
    command: Callable[..., None], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(
        manifest: ManifestPaths = None, port: Annotated[str | None, manifest_option("server.port")] = None
    ) -> None:
        """Check it."""

    command(check)
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["check", "--help"]) == 0
    text = capsys.readouterr().out
    assert "Port to listen on. [env: TAILCUT_SERVER__PORT]" in text
    assert "[default: (8700)]" in text or "[default: 8700]" in text
    assert "TAILCUT_MANIFEST" in text
    assert "tailcut check  # try [it]" in text


def test_a_flag_for_a_key_that_is_not_there_is_a_bug() -> None:
    with pytest.raises(KeyError):
        manifest_option("server.prot")


def test_a_command_that_is_not_there_is_a_wrong_command_line(capsys: Capture) -> None:
    assert run(["ghost"]) == ExitCode.USAGE
    assert capsys.readouterr().err == "error: No such command 'ghost'.\n\nhint: `tailcut --help` shows its options\n"


HEAVY = "import sys; print([m for m in ('numpy', 'torch', 'onnxruntime', 'granian', 'matplotlib') if m in sys.modules])"


@pytest.mark.parametrize("line", [["--help"], ["--version"], ["init", "--help"]])
def test_help_imports_nothing_heavy(line: list[str]) -> None:
    code = f"from tailcut.cli.app import run; code = run({line!r}); {HEAVY}; raise SystemExit(code)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_reading_a_manifest_imports_nothing_heavy(tmp_path: Path) -> None:
    assert run(["init", str(tmp_path)]) == ExitCode.OK
    code = f"from pathlib import Path; from tailcut.manifest import load; load(Path({str(tmp_path)!r})); {HEAVY}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_the_program_prints_errors_to_stderr_and_respects_no_color(
    tmp_path: Path, no_color: str, coloured: bool
) -> None:
    """FORCE_COLOR stands in for a terminal; 31 is red."""
    environment = {**os.environ, "FORCE_COLOR": "1", "NO_COLOR": no_color, "TERM": "xterm-256color"}
    (tmp_path / "tailcut.toml").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "tailcut", "init"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == ExitCode.USAGE
    assert done.stdout == ""
    assert "tailcut.toml already exists" in done.stderr
    assert ("31m" in done.stderr) is coloured
