"""Types and functions that a stored scikit-learn model may hold: scikit-learn's own, and those that the manifest names.

A skops file names its types and functions, and opening it makes objects of those types. skops knows scikit-learn's
public estimators and NumPy's ufuncs; this adds the classes that fitted estimators consist of. It holds no class that
opens files or starts processes when it is made, and no function of a library that does more than compute.

What a file's arrays hold is not checked: as with every format of trees, a forged file can crash the process that runs
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module

OwnTypes = Mapping[str, Callable[[], object]]
"""Types and functions beyond scikit-learn's, named as skops does ("package.module.Name"), with what imports each."""

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


def skops_name(reference: str) -> str:
    """Return skops' name of what a reference ("package.module:Name") names."""
    return reference.replace(":", ".")


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
