"""Reads the graph that OpenVINO executes, and finds the exported values in it.

OpenVINO says of each layer that it executes which layers of the model it was made of, but its values have no names, and
a value may have been scaled or rounded on the way. What is known for sure is which layer gives a value that was asked
for as an output: if that layer is there when nothing is asked for, too, it has that value there.
"""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ...graph._graph import Graph
from ...graph._nodes import Dim, Node, Value

Port = tuple[str, int]  # a layer's name, and which of its outputs
Owners = Mapping[str, tuple[str, ...]]
Results = Mapping[str, tuple[tuple[str, ...], tuple[Dim, ...]]]  # names and shape, by the name of a layer
Key = tuple[str, str, str, tuple[str, ...]]
_NO_NODES = frozenset({"Const", "Input", "Output"})
_COPIES = frozenset({"Convert", "Reorder"})
_MOVES = _COPIES | {"Broadcast", "Concatenation", "Gather", "Reshape", "Split", "StridedSlice", "Transpose"}
_KINDS = {"f": "float", "i": "int", "u": "uint"}
_DTYPES = {f"{short}{bits}": f"{kind}{bits}" for short, kind in _KINDS.items() for bits in (8, 16, 32, 64)}
_DTYPES |= {"bf16": "bfloat16", "boolean": "bool"}
_NUMBER = re.compile(r"_\d+")


@dataclass(frozen=True)
class Layer:
    """One layer that is executed.

    Attributes:
        name: OpenVINO's; for one that it made itself, another one at each compilation.
        kind: its type.
        primitive: the kernel that runs it.
        precision: the type that it computes in.
        computes: names of exported nodes.
        key: what it is the same by in two compilations.
        inputs: where its inputs are from.
        values: types and shapes of its outputs.
    """

    name: str
    kind: str
    primitive: str
    precision: str
    computes: tuple[str, ...]
    key: Key
    inputs: tuple[Port, ...]
    values: tuple[Value, ...]

    @property
    def is_node(self) -> bool:
        """Whether it computes something."""
        return self.kind not in _NO_NODES


@dataclass(frozen=True)
class Border:
    """An exported value between layers.

    Attributes:
        layers: the names of those that make it; if none says so, of those that read it.
        made: whether one says that it makes it: else it may well be inside of one.
        op: the exported operator that makes it.
    """

    layers: frozenset[str]
    made: bool
    op: str


def owners_of(model: Any, graph: Graph) -> Owners:
    """The exported nodes that the layers of a model that was read are (parts of the translation of), by layer name."""
    found: dict[str, tuple[str, ...]] = {}
    for op in reversed(model.get_ordered_ops()):
        names = [name for port in op.outputs() for name in port.get_names()]
        named = [graph.producer[name].name for name in names if name in graph.producer]
        users = [user.get_node().get_friendly_name() for port in op.outputs() for user in port.get_target_inputs()]
        owners = named or [owner for user in users for owner in found.get(user, ())]
        found[op.get_friendly_name()] = tuple(dict.fromkeys(owners))
    return found


class Executed:
    """The layers of one compilation, in the order in which they run.

    Args:
        model: what `get_runtime_model` returned.
        owners: see `owners_of`.
        results: the values that were asked for, by the names of the layers that return them. One that is returned with
            another number of elements is none of them: OpenVINO 2026 gives what RoPE makes of all channels under the
            name of the sum of those that are rotated, if it is asked for that.
    """

    def __init__(self, model: Any, owners: Owners, results: Results) -> None:
        ops = sorted(model.get_ordered_ops(), key=lambda op: int(_info(op, "execOrder")))
        self.layers = {layer.name: layer for layer in (_layer(op, owners) for op in ops)}
        ends = [layer for layer in self.layers.values() if layer.kind == "Output"]
        self.results: dict[str, Port] = {}
        for layer in ends:
            names, shape = results.get(layer.name, ((), ()))
            source, index = layer.inputs[0]
            if _has_as_many(self.layers[source].values[index].shape, shape):
                self.results |= dict.fromkeys(names, (source, index))

    @cached_property
    def by_key(self) -> Mapping[Key, tuple[Layer, ...]]:
        """The layers that compute something, by what they are the same by."""
        found: dict[Key, tuple[Layer, ...]] = {}
        for layer in self.layers.values():
            if layer.is_node:
                found[layer.key] = (*found.get(layer.key, ()), layer)
        return found

    def borders(self, graph: Graph) -> Mapping[str, Border]:
        """The exported values that one layer makes and others read, or that it reads and no layer says it makes."""
        nodes = {node.name: node for node in graph.nodes}
        makers: dict[str, set[str]] = {}
        readers: dict[str, set[str]] = {}
        left: set[str] = set()
        for layer in self.layers.values():
            inside = [nodes[name] for name in layer.computes]
            made = {name for node in inside for name in node.outputs if name}
            for name in made:
                makers.setdefault(name, set()).add(layer.name)
                if name in graph.outputs or any(user not in inside for user in graph.consumers.get(name, ())):
                    left.add(name)
            for name in {name for node in inside for name in node.reads} - made:
                readers.setdefault(name, set()).add(layer.name)
        return {
            name: Border(frozenset(makers.get(name, readers.get(name, ()))), name in makers, node.op)
            for node in graph.nodes
            for name in node.outputs
            if name not in graph.constant_values and (name in left or name in readers)
        }

    def changed_in(self, other: "Executed") -> tuple[str, ...]:
        """The layers that another compilation does not have; copies aside, which come and go with the outputs."""
        there = {key: len(layers) for key, layers in other.by_key.items()}
        return tuple(
            layer.name
            for key, layers in self.by_key.items()
            for layer in layers[there.get(key, 0) :]
            if layer.kind not in _COPIES
        )

    def guilty(self, changed: Collection[str], asked: Mapping[str, Border]) -> set[str]:
        """The values that are nearest to changed layers: asking for them may be what changed these.

        Args:
            changed: names of layers.
            asked: the values that were asked for.
        """
        near = {*changed} | {name for layer in changed for name, _ in self.layers[layer].inputs}
        while near:
            found = {name for name, border in asked.items() if border.layers & near}
            if found:
                return {name for name in found if not asked[name].made} or found
            wider = near.union(*(self._neighbours(name) for name in near))
            if wider == near:
                break
            near = wider
        return set()

    def where(self, other: "Executed") -> Mapping[str, Port]:
        """Which of our layers has the results of another compilation, as far as it is there, on the same inputs."""
        found = {}
        for value, end in other.results.items():
            name, index = self._before_copies(other, end)
            layer = other.layers[name]
            if layer.is_node and self._has(other, layer) and self._reads_the_same(other, layer):
                found[value] = (self.by_key[layer.key][other.by_key[layer.key].index(layer)].name, index)
        return found

    def _has(self, other: "Executed", layer: Layer) -> bool:
        return len(self.by_key.get(layer.key, ())) == len(other.by_key[layer.key])

    def _reads_the_same(self, other: "Executed", layer: Layer) -> bool:
        """Whether the layers that make what a layer of another compilation reads, before it is moved, are ours too.

        A factor may have been moved over a transpose into the product before it, or no longer so.
        """
        read = [other.layers[name] for name, _ in layer.inputs if other.layers[name].is_node]
        return all(
            (source.kind in _COPIES or self._has(other, source))
            and (source.kind not in _MOVES or self._reads_the_same(other, source))
            for source in read
        )

    def _before_copies(self, other: "Executed", port: Port) -> Port:
        """What is copied into an output: copies and casts come with asking for it; those of the model's own do not."""
        layer = other.layers[port[0]]
        sources = [source for source in layer.inputs if other.layers[source[0]].is_node]
        if len(sources) != 1 or (layer.computes and layer.key in self.by_key):
            return port
        repeats = {*layer.computes} <= {*other.layers[sources[0][0]].computes}
        return self._before_copies(other, sources[0]) if layer.kind in _COPIES or repeats else port

    def _neighbours(self, name: str) -> set[str]:
        read = (source for source, _ in self.layers[name].inputs)
        return {source for source in read if self.layers[source].is_node} | self._users[name]  # constants are shared

    def origins(self, exported: Graph, known: Mapping[str, Port]) -> Mapping[str, tuple[str, ...]]:
        """The exported nodes that each layer computes, by its name.

        Nodes that OpenVINO names nowhere (it moved a factor, say) belong to the layer at whose value they end.
        """
        judged = {name for name, _ in [*known.values(), *self.results.values()]}
        named = {name for layer in self.layers.values() for name in layer.computes}
        found = {
            head: dict.fromkeys(node for layer in layers for node in layer.computes)
            for head, layers in self.together(judged).items()
        }
        stop = frozenset({*known, *self.results, *exported.constant_values})
        for value, (name, _) in known.items():
            found[name] |= dict.fromkeys(node.name for node in exported.cone([value], stop) if node.name not in named)
        return {name: tuple(nodes) for name, nodes in found.items() if nodes}

    def graph(self, exported: Graph, known: Mapping[str, Port]) -> Graph:
        """The layers as a graph, whose nodes are the layers, or several of them where no exported value is between.

        Args:
            exported: what it was made of.
            known: which layers have the exported graph's values, by their names.
        """
        names: dict[Port, str] = {}
        for value, port in [*self.results.items(), *known.items()]:
            names.setdefault(port, value)
        names |= {(name, 0): name for name, layer in self.layers.items() if not layer.is_node}
        values = [
            replace(value, name=names.get((name, index), f"{name}:{index}"))
            for name, layer in self.layers.items()
            for index, value in enumerate(layer.values)
        ]
        return Graph(
            name=exported.name,
            inputs=exported.inputs,
            outputs=exported.outputs,
            constants=tuple(name for name, layer in self.layers.items() if layer.kind == "Const"),
            nodes=tuple(_node(layers, names) for layers in self.together({name for name, _ in names}).values()),
            values={value.name: value for value in values},
        )

    def together(self, judged: Collection[str]) -> Mapping[str, tuple[Layer, ...]]:
        """The layers, or several at a time, by the name of the last one.

        Together are a layer that has no exported value and the one that alone reads it, where OpenVINO names no
        exported node that the first one computes (copies, and what it made up), both are parts of one exported node,
        or the second one only moves what the first one makes.

        Args:
            judged: names of layers that have an exported value.
        """
        heads: dict[str, str] = {}
        found: dict[str, tuple[Layer, ...]] = {}
        for layer in reversed(self.layers.values()):
            users = {heads.get(user, user) for user in self._users[layer.name]}
            head = users.pop() if len(users) == 1 and layer.name not in judged else ""
            if layer.is_node:
                heads[layer.name] = head if head in found and _belong(layer, found[head]) else layer.name
                found[heads[layer.name]] = (layer, *found.get(heads[layer.name], ()))
        return {name: found[name] for name in self.layers if name in found}

    @cached_property
    def _users(self) -> Mapping[str, frozenset[str]]:
        found: dict[str, set[str]] = {name: set() for name in self.layers}
        for layer in self.layers.values():
            for name, _ in layer.inputs:
                found[name].add(layer.name)
        return {name: frozenset(names) for name, names in found.items()}


def _belong(layer: Layer, to: tuple[Layer, ...]) -> bool:
    common = any(name in later.computes for name in layer.computes for later in to)
    return not layer.computes or common or to[0].kind in _MOVES


def _layer(op: Any, owners: Owners) -> Layer:
    kind, primitive, precision = (_info(op, name) for name in ("layerType", "primitiveType", "runtimePrecision"))
    said = [name for name in _info(op, "originalLayersNames").split(",") if name]
    known = [owner for name in said if kind not in _NO_NODES for owner in _owned(name, owners)]
    wholes = {_plain(name) for name in said}
    # One compilation may have a part of a node (`…/WithoutBiases`) where another one has all of it in the layer.
    parts = {name for name in said if "/" in name and name.partition("/")[0] not in wholes}
    others = [_NUMBER.sub("", _plain(name)) for name in said if name in parts or not _owned(name, owners)]
    sources = [port.get_source_output() for port in op.inputs()]
    precisions = _info(op, "outputPrecisions").split(",")
    return Layer(
        name=op.get_friendly_name(),
        kind=kind,
        primitive=primitive,
        precision=precision,
        computes=tuple(dict.fromkeys(known)),
        key=(kind, primitive, precision, tuple(sorted({*known, *others}))),
        inputs=tuple((source.get_node().get_friendly_name(), source.get_index()) for source in sources),
        values=tuple(
            Value("", _DTYPES.get(dtype, dtype), shape_of(port.get_partial_shape()))
            for dtype, port in zip(precisions * len(op.outputs()), op.outputs(), strict=False)
        ),
    )


def _plain(name: str) -> str:
    """Without what is put behind the name of a layer whose result is cast."""
    return re.sub(r"(\.\d+)+$", "", name)


def _owned(name: str, owners: Owners) -> tuple[str, ...]:
    return owners.get(name) or owners.get(_plain(name)) or owners.get(name.partition("/")[0], ())


def _info(op: Any, name: str) -> str:
    found = op.get_rt_info()
    return str(found[name].astype(str)) if name in found else ""


def _has_as_many(shape: tuple[Dim, ...] | None, asked: tuple[Dim, ...]) -> bool:
    """Whether two shapes have the same number of elements, as far as they are known."""
    counts = [math.prod(dims) for dims in map(_sizes_of, (shape, asked)) if dims is not None]
    return len({*counts}) < 2


def _sizes_of(shape: tuple[Dim, ...] | None) -> tuple[int, ...] | None:
    """A shape that is known; None of one that is not."""
    dims = tuple(dim for dim in shape or () if isinstance(dim, int))
    return dims if shape is not None and len(dims) == len(shape) else None


def shape_of(shape: Any) -> tuple[Dim, ...]:
    return tuple(None if dim.is_dynamic else dim.get_length() for dim in shape)


def _node(layers: tuple[Layer, ...], names: Mapping[Port, str]) -> Node:
    inside = {layer.name for layer in layers}
    read = [port for layer in layers for port in layer.inputs if port[0] not in inside]
    head = layers[-1]
    return Node(
        name=head.name,
        op="+".join(layer.kind for layer in layers),
        inputs=tuple(names.get(port, f"{port[0]}:{port[1]}") for port in dict.fromkeys(read)),
        outputs=tuple(names.get((head.name, index), f"{head.name}:{index}") for index in range(len(head.values))),
        attributes={
            "layers": [layer.name for layer in layers],
            "primitives": [layer.primitive for layer in layers],
            "precision": head.precision,
        },
    )


def alike(borders: Mapping[str, Border]) -> tuple[tuple[str, ...], ...]:
    """Parts of values that have the same operator and name but for its number: equal blocks of a model do the same."""
    parts: dict[tuple[str, str, bool], tuple[str, ...]] = {}
    for name, border in borders.items():
        kind = border.op, _NUMBER.sub("", name), border.made
        parts[kind] = (*parts.get(kind, ()), name)
    return tuple(parts.values())


def spread(borders: Mapping[str, Border]) -> tuple[tuple[str, ...], ...]:
    """Parts of values that layers say they make; neighbours, and neighbours of neighbours, are not together."""
    values = [name for name, border in borders.items() if border.made]
    return tuple(tuple(part) for part in (values[::3], values[1::3], values[2::3]) if part)
