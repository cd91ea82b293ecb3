"""Which recipes a build tries, and why not the others: pure decisions over the manifest, the machine and the source."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

import msgspec

from tailcut.builder.host_capabilities import HostCapabilities
from tailcut.builder.recipes import catalog
from tailcut.builder.recipes.base import Recipe, Subject
from tailcut.builder.sources import SOURCES
from tailcut.errors import ManifestError


class Applicable(msgspec.Struct, frozen=True, kw_only=True):
    """One recipe and whether it applies; ``why_not`` is empty where it does."""

    name: str
    summary: str
    why_not: str


def applicable(subject: Subject, here: HostCapabilities) -> list[Applicable]:
    """List recipes and whether each applies to ``subject`` on this machine, in the order in which they are made."""
    return [
        Applicable(
            name=each.name, summary=each.summary, why_not=each.why_not(subject, here) or _unwanted(each, subject)
        )
        for each in catalog()
    ]


def _unwanted(recipe: Recipe, subject: Subject) -> str:
    """Say why the manifest does not ask for a recipe; empty where it does."""
    wanted = subject.deployment.build.recipes
    if wanted:
        return "" if recipe.name in wanted else "not among build.recipes"
    if recipe.precision == "int8" and not subject.deployment.build.quantize:
        return "off by default: set build.quantize = true"
    return ""


def check_names(names: Collection[str]) -> None:
    """Refuse names of recipes that do not exist. A source model's own name, such as "torch", asks for it alone.

    Raises:
        ManifestError: naming the nearest.
    """
    known = [recipe.name for recipe in catalog()]
    alone = {source.variant for source in SOURCES}
    for name in names:
        if name not in known and name not in alone:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ManifestError(
                f"build.recipes: there is no recipe {name!r}", hint=f"{hint}the recipes are {', '.join(known)}"
            )


def base_of(recipe: Recipe, made: Collection[str]) -> str:
    """Name the variant that ``recipe`` is made from: the first of its bases that was made; empty where none was."""
    return next((name for name in recipe.base if name in made), "")
