"""Puts together what ``tailcut profile`` was asked for: its flags, and what a manifest adds to them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

from tailcut.cli._load_flags import objectives
from tailcut.cli._profiling import DEFAULT_RATE, Wanted, kind_of
from tailcut.cli.console import usage
from tailcut.cli.options import load_subject
from tailcut.common.redaction import command_without_secrets
from tailcut.errors import ManifestError, ProfileError
from tailcut.manifest.host import is_one_manifest

if TYPE_CHECKING:
    from tailcut.load import LoadPlan
    from tailcut.manifest import Manifest
    from tailcut.profiler.child_channel import Loop
    from tailcut.profiler.layers.search import InputShape


def read_wanted(
    target: str,
    manifest: list[Path] | None,
    model: str,
    settings: list[str] | None,
    plan: LoadPlan,
    slo: str,
    app_dir: Path,
    loop: str,
    ready_s: float,
    layers: str,
    shape: list[str] | None,
    log: Path | None,
) -> Wanted:
    """Put together what was asked for, and what the manifest adds to it."""
    kind = kind_of(target)
    paths = _manifest_paths(kind, target, manifest)
    subject = load_subject(paths, model, settings, keep_unset=True) if paths else None
    loaded = subject.manifest if subject is not None else None
    if subject is not None and kind == "deployment":
        subject.refuse_missing()
    with usage():
        if kind == "pilot":
            _check_application(target, app_dir)
        return Wanted(
            kind=kind,
            target=target,
            subject=subject,
            plan=_plan(kind, target, plan, loaded),
            slo=objectives(slo),
            directory=app_dir,
            loop=_loop(loop),
            ready_s=ready_s,
            layers=None if layers == "off" else layers,
            shapes=read_shapes(shape or []),
            log=log,
            command=shlex.join(command_without_secrets(["tailcut", *sys.argv[1:]])),
        )


def _check_application(target: str, app_dir: Path) -> None:
    from tailcut.profiler.diagnosis import check_target

    check_target(target)
    if not app_dir.is_dir():
        raise ProfileError(f"there is no folder {app_dir}", hint="give the application's folder with --app-dir")


def _manifest_paths(kind: str, target: str, manifest: list[Path] | None) -> list[Path]:
    given = manifest or []
    if kind != "deployment":
        return given
    if target and any(path.resolve() != Path(target).resolve() for path in given):
        named = " ".join(f"--manifest {path}" for path in given)
        raise ManifestError(
            f"both {target} and {named} name a deployment",
            hint="give one of them; of several models name each with --manifest",
        )
    if not target and not given and is_one_manifest([Path()]) and not Path("tailcut.toml").is_file():
        raise ManifestError(
            "no target was given, and this folder has no tailcut.toml",
            hint="name what to profile: an application (app:app), a folder with a tailcut.toml, or a URL",
        )
    return [Path(target)] if target else given or [Path()]


def _plan(kind: str, target: str, plan: LoadPlan, manifest: Manifest | None) -> LoadPlan:
    """Fill in what the flags left open."""
    import msgspec

    from tailcut.load.payloads import check_payloads
    from tailcut.load.plan import check_plan, parse_url

    changes: dict[str, object] = {}
    if plan.rate is None:
        changes["rate"] = manifest.deployment.slo.rate if manifest is not None else DEFAULT_RATE
    if plan.url and not plan.url.startswith("/"):
        changes["url"] = f"/{plan.url}"
    if manifest is not None:
        ladder = manifest.deployment.ladder
        if not plan.payloads and ladder.traffic:
            _importable(manifest)
            changes["payloads"] = ladder.traffic
        if not plan.url and kind == "pilot":
            changes["url"] = ladder.pilot_path
    if kind == "url":
        if plan.url:
            raise ManifestError(f"--path {plan.url} was given together with a URL", hint="write the path into the URL")
        parse_url(target)
        changes["url"] = target
    if ":" not in plan.payloads or Path(plan.payloads).exists():
        check_payloads(plan)  # a function may need the set-up that is to come
    plan = msgspec.structs.replace(plan, **changes)
    check_plan(msgspec.structs.replace(plan, url=target if kind == "url" else "http://127.0.0.1:1/"))
    return plan


def _importable(manifest: Manifest) -> None:
    """Put the manifest's folders on the import path, for its traffic."""
    folders = [str((manifest.directory / folder).resolve()) for folder in manifest.deployment.python_path]
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]


def _loop(name: str) -> Loop:
    from tailcut.profiler import child_channel

    if name in get_args(child_channel.Loop):
        return cast(child_channel.Loop, name)
    raise ManifestError(f"--loop is {name!r}", hint="use asyncio, uvloop, or auto (uvicorn's choice)")


def read_shapes(texts: list[str]) -> tuple[InputShape, ...]:
    """Read --shape texts.

    Raises:
        ManifestError: one is written otherwise.
    """
    from tailcut.profiler.layers.search import parse_shape

    try:
        return tuple(parse_shape(text) for text in texts)
    except ProfileError as error:
        raise ManifestError(f"--shape: {error.message}", hint=error.hint) from error
