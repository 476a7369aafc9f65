"""Grouping nodes by module call: the group of each node, and that boxes never form a cycle."""

import networkx as nx
import pytest
import torch
from torch import nn

from filch.export import Graph, Node, Value, export, optimize
from filch.export.graph._folding import Folding, fold
from support.models.small import module_of
from support.models.zoo import exported
from support.thorough import kept


def boxes_are_in_order(graph, folding):
    """Whether the boxes form no cycle at any level."""
    made = {name: place for place, node in enumerate(graph.nodes) for name in node.outputs if name}
    levels: dict[object, nx.DiGraph] = {}
    for place, node in enumerate(graph.nodes):
        for read in (made[name] for name in node.reads if name in made):
            ends = _enclosing(folding, read), _enclosing(folding, place)
            depth = next(depth for depth, pair in enumerate(zip(*ends, strict=False)) if pair[0] != pair[1])
            level = levels.setdefault(ends[0][:depth], nx.DiGraph())
            level.add_edge(ends[0][depth], ends[1][depth])
    return all(nx.is_directed_acyclic_graph(level) for level in levels.values())


def _enclosing(folding, node):
    path: list[object] = [("node", node)]
    group = folding.node_groups[node]
    while group is not None:
        path.insert(0, group)
        group = folding.groups[group].parent
    return tuple(path)


@pytest.mark.parametrize("name", kept(["llama", "albert", "swin"], "albert"))
def test_boxes_form_no_cycle_whichever_are_open(name):
    """Checked for models with shared layers and windows, as exported and optimized."""
    _, _, _, program = exported(name)

    for graph in (program.graph, optimize(program).graph):
        folding = fold(graph)
        assert boxes_are_in_order(graph, folding)
        assert all(group.parent is None or group.parent < place for place, group in enumerate(folding.groups))


def twice():
    """Calls one layer again on its own output, with another layer in between."""
    return module_of(
        lambda self, x: self.layer(self.between(self.layer(x))),
        layer=nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
        between=nn.Sigmoid(),
    )


def test_a_module_called_again_on_its_own_output_has_two_boxes():
    """One box would form a cycle with the sigmoid between its calls."""
    graph = export(twice().eval(), (torch.zeros(1, 4),)).graph

    folding = fold(graph)

    assert [str(group) for group in folding.groups if group.parent is None] == ["layer", "between", "layer (2)"]
    assert boxes_are_in_order(graph, folding)


def test_the_check_of_the_order_detects_a_cycle():
    """The same graph, with one box for both calls, has a cycle."""
    graph = export(twice().eval(), (torch.zeros(1, 4),)).graph
    right = fold(graph)
    first, last = (place for place, group in enumerate(right.groups) if group.path == "layer")
    wrong = Folding(tuple(right.groups), tuple(first if group == last else group for group in _tops(right)))

    assert not boxes_are_in_order(graph, wrong)


def _tops(folding):
    return [_enclosing(folding, place)[0] for place in range(len(folding.node_groups))]


def test_groups_are_named_relative_to_their_parent():
    """They have the module's class; an `nn.ModuleList`, which is never called, has no group."""
    model = module_of(lambda self, x: self.layers[0](x), layers=nn.ModuleList([nn.Sequential(nn.Linear(4, 4))]))
    groups = fold(export(nn.Sequential(model).eval(), (torch.zeros(1, 4),)).graph).groups

    assert [(group.path, group.name) for group in groups] == [
        ("0", "0"),
        ("0.layers.0", "layers.0"),
        ("0.layers.0.0", "0"),
    ]
    assert groups[2].type == "torch.nn.modules.linear.Linear"


def test_a_node_of_no_known_module_is_grouped_with_its_users():
    """A node without users is grouped with the producers of its inputs."""
    nodes = (
        Node("cast", "Cast", ("x",), ("c",)),
        Node("one", "Relu", ("c",), ("a",), module="block.act"),
        Node("two", "Neg", ("c",), ("b",), module="block.sign"),
        Node("last", "Cast", ("b",), ("y",)),
    )
    graph = Graph("", ("x",), ("a", "y"), (), nodes, {name: Value(name) for name in "xabcy"})

    folding = fold(graph)

    assert [None if place is None else folding.groups[place].path for place in folding.node_groups] == [
        "block",
        "block.act",
        "block.sign",
        "block.sign",
    ]


def test_a_kernel_of_several_modules_is_in_the_module_that_contains_them():
    """Its own `module` is the last of them; a kernel whose operations belong to one module is in that module."""
    kinds = {name: Value(name) for name in "xaby"}
    before = (
        Node("mm", "MatMul", ("x",), ("a",), module="block.linear"),
        Node("gelu", "Gelu", ("a",), ("b",), module="block.act"),
        Node("norm", "Norm", ("b",), ("y",), module="norm"),
    )
    source = Graph("", ("x",), ("y",), (), before, kinds)
    nodes = (
        Node("one", "fused", ("x",), ("b",), module="block.act", origins=("mm", "gelu")),
        Node("two", "fused", ("b",), ("y",), module="norm", origins=("norm",)),
        Node("all", "fused", ("x",), ("a",), module="norm", origins=("mm", "gelu", "norm")),
    )

    folding = fold(Graph("", ("x",), ("y",), (), nodes, kinds, source_graph=source))

    paths = [None if place is None else folding.groups[place].path for place in folding.node_groups]
    assert paths == ["block", "norm", None]
