"""The skops runtime: a fitted scikit-learn estimator that lies in the artifact. No pickled code is loaded.

The artifact is a skops file (a zip archive of arrays and a description) with one more member: rows and the answers that
the estimator gave to them when it was built. An estimator that answers them differently here is not served.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from tailcut.common.tensors import Array, Arrays
from tailcut.errors import ArtifactError, MissingExtra, TailcutError
from tailcut.models.runtimes.base import Openable, OpenOptions
from tailcut.models.runtimes.checks import AGAIN, load_library, named_line
from tailcut.models.runtimes.sklearn import SklearnRuntime, read_probes

PROBES = "probes.npz"
"""Member of the archive with the rows and their answers."""

_NOT_NEEDED = [f"sklearn.externals.array_api_compat.{library}" for library in ("torch", "cupy", "dask")]
"""skops lists scikit-learn's estimators, for which scikit-learn imports every package of its own, and with one of them
the whole of torch where that is installed: two seconds and 200 MiB for nothing."""

OwnTypes = Mapping[str, Callable[[], object]]
"""Types and functions beyond scikit-learn's, named as skops does ("package.module.Name"), with what imports each."""


class SkopsRuntime(SklearnRuntime):
    """A stored estimator or pipeline. Use ``open_runtime``.

    ``options.source`` gives the types that the manifest trusts (``model.trusted``); None where it trusts none.
    """

    _origin = "the stored model"
    _differs_hint = "install the library versions of the build (`tailcut registry show --json`), or build again"

    def _opened(self, variant: Openable, options: OpenOptions) -> Any:
        return load(variant.artifact, options.source() if options.source is not None else {}, variant.name)

    def _probes(self, artifact: Path) -> tuple[Arrays, Array]:
        with ZipFile(artifact) as archive:
            return read_probes(BytesIO(archive.read(PROBES)))


def load_skops() -> Any:
    """Import skops.

    Raises:
        MissingExtra: it is not installed.
    """
    for name in _NOT_NEEDED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # None blocks an import
    try:
        return load_library("skops.io", "a stored scikit-learn model needs skops")
    finally:
        for name in _NOT_NEEDED:
            if sys.modules.get(name, sys) is None:
                sys.modules.pop(name, None)  # not del: another thread may have done so since


def load(path: Path, own: OwnTypes, name: str = "sklearn") -> Any:
    """Open a stored estimator.

    Args:
        path: of the artifact.
        own: types that the manifest trusts.
        name: of the variant, for messages.

    Raises:
        ArtifactError: it holds types that nobody trusts, or cannot be read.
        ManifestError: a trusted type cannot be imported.
        MissingExtra: skops or a library of one of its steps is not installed.
    """
    skops = load_skops()
    what = f"{path} (variant {name!r})"
    try:
        names = skops.get_untrusted_types(file=path)
        if found := unknown_types(names, own):
            raise untrusted(found, what)
        for each in names:  # imported from the manifest's folders: types of other versions may be gone
            if each in own:
                own[each]()
        return skops.load(path, trusted=names)
    except TailcutError:
        raise
    except ImportError as error:
        raise MissingExtra(
            f"{what} needs {error.name or 'a package'}: {error}", hint=f"pip install {error.name or 'it'}"
        ) from error
    except Exception as error:  # skops raises whatever the state of a type makes it raise
        verb = "read" if isinstance(error, (BadZipFile, KeyError)) else "open"
        raise ArtifactError(f"cannot {verb} {what}: {named_line(error)}", hint=AGAIN) from error


def untrusted(names: list[str], what: str) -> ArtifactError:
    """Return the error for a model with unknown types."""
    listed = ", ".join(reference_of(name) for name in names)
    return ArtifactError(
        f"{what} holds {listed}, which scikit-learn does not define and model.trusted does not name",
        hint=f"if that code is yours, set model.trusted = {[reference_of(name) for name in names]}".replace("'", '"'),
    )


# -- Types -------------------------------------------------------------------------------------------------------------


# Types and functions that a stored scikit-learn model may hold: scikit-learn's own, and those that the manifest names.
#
# A skops file names its types and functions, and opening it makes objects of those types. skops knows scikit-learn's
# public estimators and NumPy's ufuncs; this adds the classes that fitted estimators consist of. It holds no class that
# opens files or starts processes when it is made, and no function of a library that does more than compute.
#
# What a file's arrays hold is not checked: as with every format of trees, a forged file can crash the process that runs
# it.

_KNOWN = frozenset(
    {
        "collections.OrderedDict",
        "functools.partial",
        "numpy.dtype",
        "scipy.interpolate._bsplines.BSpline",
        "lightgbm.basic.Booster",
        "lightgbm.sklearn.LGBMClassifier",
        "lightgbm.sklearn.LGBMRegressor",
        "xgboost.core.Booster",
        "xgboost.sklearn.XGBClassifier",
        "xgboost.sklearn.XGBRegressor",
        "xgboost.sklearn.XGBRFClassifier",
        "xgboost.sklearn.XGBRFRegressor",
    }
)

_FUNCTIONS = (
    "sklearn.feature_selection.",
    "sklearn.metrics.",
    "sklearn.preprocessing.",
    "sklearn.utils.validation.",
    "scipy._lib.array_api_compat.numpy.",
)
"""Packages whose functions only compute."""


def unknown_types(names: Iterable[str], own: Iterable[str] = ()) -> list[str]:
    """Return the names that are neither scikit-learn's nor among ``own``.

    Args:
        names: that skops does not trust by itself, such as "my_features.Ratio".
        own: that the manifest trusts.
    """
    trusted = frozenset(own)
    return [name for name in names if name not in trusted and not _is_known(name)]


def reference_of(name: str) -> str:
    """Return the reference of what skops names."""
    module, _, attribute = name.rpartition(".")
    return f"{module}:{attribute}"


def _is_known(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    if name in _KNOWN:
        return True
    functions = f"{module}.".startswith(_FUNCTIONS)
    if not functions and not module.startswith("sklearn."):
        return False
    try:
        found = getattr(import_module(module), attribute, None)
    except ImportError:
        return False
    # Only what is defined there: a module's namespace holds what it imported, too.
    return getattr(found, "__module__", None) == module and (functions or isinstance(found, type))
