"""Graphs folded along module calls: which group a node is in, and that no box waits for itself."""

import networkx as nx
import pytest
import torch
from torch import nn
from zoo import ZOO

from filch.export import Graph, Node, Value, export, optimize
from filch.export.graph._folding import Folding, fold


def boxes_are_in_order(graph: Graph, folding: Folding) -> bool:
    """Whether no box depends on what depends on it, at any level."""
    made = {name: place for place, node in enumerate(graph.nodes) for name in node.outputs if name}
    levels: dict[object, nx.DiGraph] = {}
    for place, node in enumerate(graph.nodes):
        for read in (made[name] for name in node.reads if name in made):
            ends = _around(folding, read), _around(folding, place)
            depth = next(depth for depth, pair in enumerate(zip(*ends, strict=False)) if pair[0] != pair[1])
            level = levels.setdefault(ends[0][:depth], nx.DiGraph())
            level.add_edge(ends[0][depth], ends[1][depth])
    return all(nx.is_directed_acyclic_graph(level) for level in levels.values())


def _around(folding: Folding, node: int) -> tuple[object, ...]:
    found: list[object] = [("node", node)]
    group = folding.places[node]
    while group is not None:
        found.insert(0, group)
        group = folding.groups[group].parent
    return tuple(found)


@pytest.mark.parametrize("name", ["llama", "albert", "swin"])
def test_no_box_waits_for_itself_whatever_is_opened(name: str) -> None:
    """Shared layers, windows: exported, and optimised, where nodes of several modules are one."""
    model, args, kwargs = ZOO[name]()
    program = export(model, args, kwargs)

    for graph in (program.graph, optimize(program).graph):
        folding = fold(graph)
        assert boxes_are_in_order(graph, folding)
        assert all(group.parent is None or group.parent < place for place, group in enumerate(folding.groups))


class Twice(nn.Module):
    """Calls one layer on what it gave, with another one in between."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.between = nn.Sigmoid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.between(self.layer(x)))


def test_a_module_called_again_on_what_it_gave_makes_two_boxes() -> None:
    """One box would have to stand before and behind the sigmoid."""
    graph = export(Twice().eval(), (torch.zeros(1, 4),)).graph

    folding = fold(graph)

    assert [str(group) for group in folding.groups if group.parent is None] == ["layer", "between", "layer (2)"]
    assert boxes_are_in_order(graph, folding)


def test_the_check_of_the_order_sees_a_ring() -> None:
    """The same graph in one box for both calls."""
    graph = export(Twice().eval(), (torch.zeros(1, 4),)).graph
    right = fold(graph)
    first, last = (place for place, group in enumerate(right.groups) if group.path == "layer")
    wrong = Folding(tuple(right.groups), tuple(first if group == last else group for group in _tops(right)))

    assert not boxes_are_in_order(graph, wrong)


def _tops(folding: Folding) -> list[object]:
    return [_around(folding, place)[0] for place in range(len(folding.places))]


def test_groups_are_named_as_the_group_around_them_knows_them() -> None:
    """With the module's class; a list of modules, which is never called, is no group."""

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Sequential(nn.Linear(4, 4))])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers[0](x)

    groups = fold(export(nn.Sequential(Stack()).eval(), (torch.zeros(1, 4),)).graph).groups

    assert [(group.path, group.name) for group in groups] == [
        ("0", "0"),
        ("0.layers.0", "layers.0"),
        ("0.layers.0.0", "0"),
    ]
    assert groups[2].type == "torch.nn.modules.linear.Linear"


def test_a_node_of_no_known_module_stands_with_those_that_read_it() -> None:
    """A folded constant is drawn where it is used; what nobody reads, where its inputs are from."""
    nodes = (
        Node("cast", "Cast", ("x",), ("c",)),
        Node("one", "Relu", ("c",), ("a",), module="block.act"),
        Node("two", "Neg", ("c",), ("b",), module="block.sign"),
        Node("last", "Cast", ("b",), ("y",)),
    )
    graph = Graph("", ("x",), ("a", "y"), (), nodes, {name: Value(name) for name in "xabcy"})

    folding = fold(graph)

    assert [None if place is None else folding.groups[place].path for place in folding.places] == [
        "block",
        "block.act",
        "block.sign",
        "block.sign",
    ]


def test_a_kernel_of_several_modules_stands_in_the_one_around_them() -> None:
    """It calls the last of them its own; one whose operations are all of one module stands there."""
    kinds = {name: Value(name) for name in "xaby"}
    before = (
        Node("mm", "MatMul", ("x",), ("a",), module="block.linear"),
        Node("gelu", "Gelu", ("a",), ("b",), module="block.act"),
        Node("norm", "Norm", ("b",), ("y",), module="norm"),
    )
    made_of = Graph("", ("x",), ("y",), (), before, kinds)
    nodes = (
        Node("one", "fused", ("x",), ("b",), module="block.act", origins=("mm", "gelu")),
        Node("two", "fused", ("b",), ("y",), module="norm", origins=("norm",)),
        Node("all", "fused", ("x",), ("a",), module="norm", origins=("mm", "gelu", "norm")),
    )

    folding = fold(Graph("", ("x",), ("y",), (), nodes, kinds, source_graph=made_of))

    paths = [None if place is None else folding.groups[place].path for place in folding.places]
    assert paths == ["block", "norm", None]
