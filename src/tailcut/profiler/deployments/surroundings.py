"""What a manifest says about how its deployment, or its pilot, is asked: databases, traffic, import path."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from tailcut.manifest import Manifest, resolve

Tell = Callable[[str], None]


@contextmanager
def surroundings(manifest: Manifest, tell: Tell) -> Iterator[Mapping[str, str]]:
    """Enter the ladder's setup, where there is one, and hand out the environment for what is profiled.

    Its variables hold in this process too: the traffic may need them.

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
        try:
            folders = [str((manifest.directory / one).resolve()) for one in manifest.deployment.python_path]
            path = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH", "")])])
            yield {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
        finally:
            os.environ.clear()
            os.environ.update(before)
