"""What a manifest says about how its deployment, or its pilot, is asked: databases, traffic, import path."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from tailcut.manifest import Manifest, resolve
from tailcut.manifest.references import folders_of

Tell = Callable[[str], None]


@contextmanager
def surroundings(manifest: Manifest, tell: Tell) -> Iterator[tuple[Mapping[str, str], Mapping[str, str]]]:
    """Enter the ladder's setup, where there is one.

    Its variables hold in this process too: the traffic may need them.

    Yields:
        the whole environment of what is started, and the setup's own variables.

    Raises:
        ManifestError: the setup cannot be imported.
    """
    setup = manifest.deployment.ladder.setup
    context: AbstractContextManager[Mapping[str, str]] = nullcontext({})
    if setup:
        tell(f"setting up: {setup}")
        context = resolve(setup, manifest)(manifest)
    began_s = time.monotonic()
    with context as variables:
        if setup:
            tell(f"set up in {time.monotonic() - began_s:.1f} s")
        before = dict(os.environ)
        os.environ.update(variables)
        path = os.pathsep.join([*folders_of(manifest), *filter(None, [os.environ.get("PYTHONPATH", "")])])
        try:
            yield {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}, variables
        finally:
            os.environ.clear()
            os.environ.update(before)
