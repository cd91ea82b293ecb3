"""Names in an ONNX graph: what a recipe adds never has the name of a value that is there.

Quantizers and converters derive names from those they find: "x_scale" from "x", which may be another input's name. So
they are given a graph whose names are plain numbers, and the names come back afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def rename(graph: Any, new: Callable[[str], str]) -> None:
    """Rename the values of a graph and of the graphs inside it, in place; ``new`` gives each name's new one."""
    for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        value.name = new(value.name)
    for node in graph.node:
        node.input[:] = [name and new(name) for name in node.input]
        node.output[:] = [name and new(name) for name in node.output]
        for inner in _inside(node):
            rename(inner, new)


def taken(graph: Any) -> set[str]:
    """Return the names of all values of a graph and of the graphs inside it."""
    names = {value.name for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info)}
    for node in graph.node:
        names.update(node.input, node.output)
        for inner in _inside(node):
            names |= taken(inner)
    return names


def free(name: str, names: set[str]) -> str:
    """Return a name like this one that is not among ``names``, and put it there."""
    while name in names:
        name += "_"
    names.add(name)
    return name


def name_nodes(graph: Any) -> None:
    """Give every node a name of its own, in place: some tools choose nodes by name."""
    names: set[str] = {""}
    for place, node in enumerate(graph.node):
        node.name = free(node.name or f"{node.op_type}_{place}", names)


class Numbered:
    """A model whose values and nodes have numbers for names, until ``restore``.

    Attributes:
        values, nodes: the number that stands for each name.
    """

    def __init__(self, model: Any) -> None:
        """Rename what ``model`` holds, in place."""
        self.values = {name: f"t{place}" for place, name in enumerate(sorted(taken(model.graph) - {""}))}
        self.nodes = {name: f"n{place}" for place, name in enumerate(sorted(_node_names(model.graph)))}
        rename(model.graph, self.values.__getitem__)
        _rename_nodes(model.graph, self.nodes)

    def restore(self, model: Any) -> None:
        """Give the names back, in place; what was added meanwhile makes room for them."""
        rename(model.graph, _back(self.values, taken(model.graph) - {""}).__getitem__)
        _rename_nodes(model.graph, _back(self.nodes, _node_names(model.graph)))

    def restore_file(self, path: Path) -> None:
        """Give the names back in a file that a tool has made of the model."""
        import onnx

        made = onnx.load(str(path))
        self.restore(made)
        onnx.save(made, str(path))


def _back(new: dict[str, str], present: set[str]) -> dict[str, str]:
    found = {number: name for name, number in new.items() if number in present}
    names = set(found.values())
    return {**found, **{name: free(name, names) for name in sorted(present - set(found))}}


def _all_nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for inner in _inside(node):
            yield from _all_nodes(inner)


def _node_names(graph: Any) -> set[str]:
    return {node.name for node in _all_nodes(graph)} - {""}


def _rename_nodes(graph: Any, names: dict[str, str]) -> None:
    for node in _all_nodes(graph):
        if node.name in names:
            node.name = names[node.name]


def _inside(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        yield from [attribute.g] if attribute.HasField("g") else attribute.graphs
