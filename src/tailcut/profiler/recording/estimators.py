"""Estimators that are put together from others, as their spans are named. Runs in the profiled process.

What an estimator is put together from is read once from its attributes, and kept by the objects' identities. No object
of the user's is changed: it pickles, clones and answers as before.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from tailcut.profiler.recording.tracing import tracer

_LIBRARIES = {name: name for name in ("sklearn", "lightgbm", "xgboost", "catboost")} | {"imblearn": "sklearn"}
_MOST = 5_000


class Estimator:
    """An estimator that was called, or that one is put together from.

    Attributes:
        object: a weak reference to it.
        path: the steps that lead to it, " > " between them; empty where there are none.
        what: its class, or the function that it calls.
        where: " (file.py:line)" of the user's code that it runs; empty where that is a library's.
        library: that it belongs to; empty where it is no known one.
        parts: calls that it makes of other estimators have spans of their own; None: not looked at yet.
    """

    __slots__ = ("library", "names", "object", "parts", "path", "what", "where")

    def __init__(self, owner: Any, path: str) -> None:
        self.object = weakref.ref(owner)
        self.path = path
        self.parts: bool | None = None
        self.library = _LIBRARIES.get(type(owner).__module__.partition(".")[0], "")
        self.what, self.where = _described(owner)
        self.names: dict[str, str] = {}

    def name(self, method: str) -> str:
        """Name the span of a call."""
        found = self.names.get(method)
        if found is None:
            called = self.what if self.what.endswith("()") else f"{self.what}.{method}"
            found = self.names[method] = f"{self.path}: {called}{self.where}" if self.path else f"{called}{self.where}"
        return found


class Estimators:
    """Estimators by the identities of their objects.

    Attributes:
        hook: called with the class of each part, before it is called; ``hooks.estimators`` sets it.
    """

    def __init__(self, hook: Callable[[type], None] = lambda owner: None) -> None:
        self._known: dict[int, Estimator] = {}
        self.hook = hook

    def known(self, owner: Any) -> Estimator | None:
        """Find an estimator that was called before, or that one is put together from."""
        found = self._known.get(id(owner))
        return found if found is not None and found.object() is owner else None

    def learn(self, owner: Any) -> Estimator | None:
        """Find an estimator and read its parts; None where its class allows no weak reference."""
        found = self.known(owner)
        try:
            if found is None:
                found = self._add(owner, "")
            if found.parts is None:
                found.parts = self._read(owner, found)
        except Exception:  # whatever the user's object answers, its call must not fail of it
            return None
        return found

    def names_within(self, owner: Any) -> set[str]:
        """Return the names of all calls that were made of what an estimator is put together from."""
        found: set[str] = set()
        for _, part in parts_of(owner):
            known = self.known(part)
            if known is not None:
                found |= set(known.names.values()) | self.names_within(part)
        return found

    def _add(self, owner: Any, path: str) -> Estimator:
        if len(self._known) >= _MOST:
            self._known.clear()
        found = self._known[id(owner)] = Estimator(owner, path)
        return found

    def _read(self, owner: Any, found: Estimator) -> bool:
        several = False
        for name, part in parts_of(owner):
            several = True
            self.hook(type(part))
            # Also of one that was called by itself before, such as when the whole was fitted.
            self._add(part, " > ".join(filter(None, (found.path, name))))
        return several or is_users(type(owner))


estimators = Estimators()
"""Of this process."""


def parts_of(owner: Any) -> Iterator[tuple[str, Any]]:
    """List what an estimator calls by itself, by name; "" where it is only around that one.

    Trees of a forest, and the like, are no parts: there are hundreds of one kind.
    """
    held = getattr(owner, "__dict__", {})
    named: list[tuple[str, Any]] = []
    for attribute in ("steps", "transformer_list", "transformers_"):
        value = held.get(attribute)
        if isinstance(value, list):
            named += [(str(one[0]), one[1]) for one in value]
    if isinstance(held.get("named_estimators_"), dict):  # votes and stacks
        named += held["named_estimators_"].items()
        named.append(("final_estimator", held.get("final_estimator_")))
    around = [held.get("best_estimator_"), held.get("regressor_")]
    around += [getattr(one, "estimator", None) for one in held.get("calibrated_classifiers_", ())]
    if "estimators_" not in held:
        around.append(held.get("estimator_"))
    for name, part in (*named, *(("", one) for one in around)):
        if part is not None and not isinstance(part, (str, type)):
            yield name, part


def is_users(owner: type) -> bool:
    """Tell whether a class stands in the user's code."""
    module = sys.modules.get(owner.__module__)
    return tracer.places.is_user(getattr(module, "__file__", None) or "")


def _described(owner: Any) -> tuple[str, str]:
    """Name an estimator by its class, or by the user's function where it only calls one; with where that is."""
    function = getattr(owner, "func", None) if type(owner).__name__ == "FunctionTransformer" else None
    if callable(function):
        label, place, own = tracer.places.describe(function)
        return f"{label.replace('<lambda>', 'lambda')}()", f" ({place})" if own else ""
    if not is_users(type(owner)):
        return type(owner).__name__, ""
    method = next((vars(type(owner))[one] for one in ("transform", "predict") if one in vars(type(owner))), None)
    _, place, own = tracer.places.describe(method) if method is not None else ("", "", False)
    return type(owner).__name__, f" ({place})" if own else ""
