"""The command ``tailcut``: which commands there are, and how their errors and exit codes come out.

One file per command in this folder. Each exports ``register(app: typer.Typer) -> None``, which adds the command (or,
with ``app.add_typer``, a group of commands) under the name that ``COMMANDS`` has for it. Only the module of the
command that was asked for is imported; the others stand in the help with their line below. A command ends with
``raise typer.Exit(ExitCode...)``, or by raising a ``TailcutError``; ``main`` prints it and chooses the exit code.
"""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import tailcut
from tailcut.cli.console import ExitCode, flush, print_error, report, write
from tailcut.cli.options import examples
from tailcut.errors import TailcutError

COMMANDS: dict[str, tuple[str, str]] = {
    "profile": (
        "tailcut.cli.profile",
        "Show where an application spends its time and how much each lever would save.",
    ),
    "init": ("tailcut.cli.init", "Write a commented tailcut.toml."),
    "check": ("tailcut.cli.check", "Load everything, send one row through every stage and report each stage."),
    "build": ("tailcut.cli.build", "Build variants of the model, judge their quality and speed, store them."),
    "registry": ("tailcut.cli.registry", "List, promote and verify the variants in the registry."),
    "serve": ("tailcut.cli.serve", "Serve the deployment."),
    "load": ("tailcut.cli.load", "Send open-loop load to a URL and compare the latencies with an SLO."),
    "top": ("tailcut.cli.top", "Show what a server does now: rates, latency by stage, SLO, queue, caches."),
    "simulate": ("tailcut.cli.simulate", "Predict latency and goodput at other rates and executor counts."),
    "parity": ("tailcut.cli.parity", "Compare the deployment's answers with the pilot's and look for causes."),
    "export": ("tailcut.cli.export", "Write a Grafana dashboard, or alert rules for Prometheus."),
    "compare": ("tailcut.cli.compare", "Say which stage grew since an earlier span of the server's history."),
    "ladder": ("tailcut.cli.ladder", "Measure the pilot, then one more lever per rung, under the same traffic."),
}
"""Name -> (module with ``register``, one line of help), in the order of the help."""

_STOPPING = (signal.SIGTERM, signal.SIGHUP)
_EPILOG = examples(
    ("tailcut profile app:app --payloads bodies.jsonl", "profile an unchanged application"),
    ("tailcut init", "write a commented tailcut.toml"),
    ("tailcut check", "send one row through every stage"),
    ("tailcut build && tailcut serve", "build variants and serve the best one"),
    ("tailcut load http://127.0.0.1:8700/predict/my-model --slo p95=25ms", "load test it"),
)
# Both libraries that Typer was built on call it so; Typer does not export it.
_CommandLineError: Any = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")


def main() -> None:
    """Run ``tailcut`` with the arguments of this process and exit.

    Told to stop (SIGTERM, as service managers and time limits do it; SIGHUP, as a terminal that closes), every command
    cleans up as at Ctrl-C: the servers and build steps that it started are in sessions of their own and would go on.
    It then ends by that signal, as who sent it expects. ``serve`` drains instead, see ``transport.lifecycle``.
    """
    arguments, told = sys.argv[1:], []

    def stop(number: int, _: object) -> None:
        told.append(number)
        for one in _STOPPING:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    if _command(arguments) != "serve":
        for one in _STOPPING:
            # nohup and its like: what is ignored stays ignored.
            if signal.getsignal(one) is signal.SIG_DFL:
                signal.signal(one, stop)
    code = run(arguments)
    try:
        flush()
    except TailcutError as error:
        code = report(error, debug=False)
    for number in told:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; errors are printed, never raised."""
    debug = "--debug" in arguments
    rest = [argument for argument in arguments if argument != "--debug"]
    name = _command(rest)
    try:
        result = build(name)(args=rest, prog_name="tailcut", standalone_mode=False)
    except _CommandLineError as error:
        if type(error).__name__ != "NoArgsIsHelpError":
            command = f"tailcut {name}" if name in COMMANDS else "tailcut"
            print_error(error.format_message(), f"`{command} --help` shows its options")
        return ExitCode.USAGE
    except (KeyboardInterrupt, typer.Abort):
        print_error("interrupted")
        return ExitCode.INTERRUPTED
    except Exception as error:
        return report(error, debug=debug)
    return result if isinstance(result, int) else ExitCode.OK


def build(name: str) -> typer.Typer:
    """Make the application with one command loaded and the others by their line of help only."""
    app = typer.Typer(
        name="tailcut", no_args_is_help=True, add_completion=False, rich_markup_mode="rich", epilog=_EPILOG
    )
    app.callback()(_tailcut)
    for other, (module, line) in COMMANDS.items():
        if other == name:
            importlib.import_module(module).register(app)
        else:
            app.command(other, help=line)(_not_loaded)
    return app


def _tailcut(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_version, help="Print the version."),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print tracebacks; allowed anywhere on the line.")] = False,
) -> None:
    """Take a trained model from pilot to production inside a latency SLO, with the evidence."""


def _version(wanted: bool) -> None:
    if wanted:
        write(f"tailcut {tailcut.__version__}")
        raise typer.Exit


def _command(arguments: Sequence[str]) -> str:
    return next((argument for argument in arguments if not argument.startswith("-")), "")


def _not_loaded() -> None:
    raise AssertionError("only the command that was asked for is ever run")
