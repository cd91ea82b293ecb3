"""The settings of a comparison with the pilot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tailcut.errors import LoadTestError, ManifestError
from tailcut.load.plan import parse_url
from tailcut.parity.analysis.mapping import FieldPair
from tailcut.parity.analysis.request_form import RequestForm
from tailcut.parity.analysis.tolerance import Tolerance

DEFAULT_REQUESTS = 500


@dataclass(frozen=True)
class ParityPlan:
    """What is asked, of whom, and how answers are compared.

    Attributes:
        pilot: URL, or "module:attribute" of an ASGI application; empty: the manifest's ``ladder.pilot``.
        payloads: a .jsonl file, or "module:callable" of (seed); empty: the manifest's ``ladder.traffic``.
        path: of the pilot; empty: the URL's, the manifest's ``ladder.pilot_path`` or the only route that takes POST.
        requests: most requests that are sent.
        concurrency: requests at a time.
        variants: names of those that are asked; empty: all that may be served.
        deployment: URL of a deployment that runs; empty: each variant is started here.
        pairs: fields that belong together; empty: they are guessed.
        form: how the deployment's request is made; None: it is guessed.
        tolerances: by the name of the output; "" is for all others.
        headers: (name, value) pairs sent to the pilot.
        deployment_headers: those sent to the deployment that runs.
        timeout_s: of one request.
        directory: folder that the application is imported from and runs in.
        ready_s: longest wait for the start of the pilot and of each variant.
        seed: of payloads that a function makes.
        explain: whether causes of differences are looked for.
        command: the command line, for the record.
    """

    pilot: str = ""
    payloads: str = ""
    path: str = ""
    requests: int = DEFAULT_REQUESTS
    concurrency: int = 1
    variants: tuple[str, ...] = ()
    deployment: str = ""
    pairs: tuple[FieldPair, ...] = ()
    form: RequestForm | None = None
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)
    headers: tuple[tuple[str, str], ...] = ()
    deployment_headers: tuple[tuple[str, str], ...] = ()
    timeout_s: float = 30.0
    directory: Path = Path()
    ready_s: float = 120.0
    seed: int = 0
    explain: bool = True
    command: str = "tailcut parity"


def check_plan(plan: ParityPlan) -> None:
    """Refuse what makes no sense before anything is started.

    Raises:
        ManifestError: a number out of range, flags that exclude one another, or a URL that cannot be asked.
    """
    if plan.requests < 1 or plan.concurrency < 1:
        raise ManifestError(
            f"--requests is {plan.requests} and --concurrency {plan.concurrency}", hint="give at least 1 for both"
        )
    if plan.deployment and plan.variants:
        raise ManifestError(
            "--variant with --deployment: a running server answers with its own variant",
            hint="leave one of them out",
        )
    if plan.deployment_headers and not plan.deployment:
        raise ManifestError(
            "--deployment-header without --deployment: variants started here need no tokens",
            hint="leave it out, or give --deployment URL",
        )
    pilot = plan.pilot if is_url(plan.pilot) else ""
    for url, option in ((pilot, "--header"), (plan.deployment, "--deployment-header")):
        try:
            _ = parse_url(url) if url else None
        except LoadTestError as error:
            raise ManifestError(error.message, hint=error.hint.replace("--header", option)) from error


def is_url(target: str) -> bool:
    """Tell a URL from an application's reference."""
    return target.lower().startswith(("http://", "https://"))
