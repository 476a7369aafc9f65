"""Read the graph that OpenVINO executes, and find the exported values in it.

OpenVINO reports the layers of the model from which each executed layer was made. Values have no names, and a value may
have been scaled or rounded. Only the layer that computes a requested output is certain: if the compilation without
further outputs has the same layer, it computes that value there, too.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ...graph._graph import Graph
from ...graph._nodes import Dim, Node, Value
from ...operators._operator import Operator
from ...operators._registry import operator_of

Port = tuple[str, int]  # the name of a layer, and the index of one of its outputs
NodesByLayer = Mapping[str, tuple[str, ...]]  # names of exported nodes, by the name of a layer
Key = tuple[str, str, str, tuple[str, ...]]  # see `Layer.key`
_NO_NODES = frozenset({"Const", "Input", "Output"})
_KINDS = {"f": "float", "i": "int", "u": "uint"}
_DTYPES = {f"{short}{bits}": f"{kind}{bits}" for short, kind in _KINDS.items() for bits in (8, 16, 32, 64)}
_DTYPES |= {"bf16": "bfloat16", "boolean": "bool"}
_NUMBER = re.compile(r"_\d+")


@dataclass(frozen=True)
class Layer:
    """One executed layer.

    Attributes:
        name: OpenVINO's name; layers that OpenVINO inserts get a new name in each compilation.
        kind: the type of the layer.
        primitive: the kernel that runs it.
        precision: the type in which it computes.
        computes: the names of the exported nodes that it computes, as OpenVINO reports.
        key: kind, primitive, precision, and the names of the layers from which it was made; the same in each
            compilation. Equal layers have the same key.
        inputs: the ports that it reads.
        values: types and shapes of its outputs, without names.
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
        """Whether the layer computes something."""
        return self.kind not in _NO_NODES

    @property
    def operator(self) -> Operator:
        """What is known of the type of the layer."""
        return operator_of(f"openvino::{self.kind}")

    @property
    def copies(self) -> bool:
        """Whether it has the numbers of its input, in another dtype or memory layout."""
        return self.operator.movement in ("copy", "cast")


@dataclass(frozen=True)
class BoundaryValue:
    """An exported value between layers.

    Attributes:
        layers: the names of the layers that compute it, or of those that read it if OpenVINO reports no such layer.
        computed: whether OpenVINO reports a layer that computes it; otherwise it may be inside of a layer.
        op: the exported operator that computes it.
    """

    layers: frozenset[str]
    computed: bool
    op: str


@dataclass(frozen=True)
class RequestedOutput:
    """An output of the model that is compiled: all names of the value, and its shape before compilation."""

    names: tuple[str, ...]
    shape: tuple[Dim, ...]


def translated_nodes(model: Any, graph: Graph) -> NodesByLayer:
    """Return the exported nodes that each layer of an imported model translates (in part), by the name of the layer.

    A layer without an exported value belongs to the nodes of the layers that read it.
    """
    nodes_by_layer: dict[str, tuple[str, ...]] = {}
    for op in reversed(model.get_ordered_ops()):
        names = [name for port in op.outputs() for name in port.get_names()]
        named = [graph.producer[name].name for name in names if name in graph.producer]
        users = [user.get_node().get_friendly_name() for port in op.outputs() for user in port.get_target_inputs()]
        nodes = named or [node for user in users for node in nodes_by_layer.get(user, ())]
        nodes_by_layer[op.get_friendly_name()] = tuple(dict.fromkeys(nodes))
    return nodes_by_layer


class ExecutedLayers:
    """The layers of one compilation, in the order in which they run.

    Args:
        model: the result of `get_runtime_model`.
        nodes: see `translated_nodes`.
        requested: the outputs of the model by the names of the layers that return them. One whose result has another
            number of elements is discarded: OpenVINO 2026 returns the result of RoPE for all channels under the name of
            the sum of the rotated ones.

    Attributes:
        layers: the layers by name.
        results: the port that each output is returned from, by each of its names.
    """

    def __init__(self, model: Any, nodes: NodesByLayer, requested: Mapping[str, RequestedOutput]) -> None:
        ops = sorted(model.get_ordered_ops(), key=lambda op: int(_info(op, "execOrder")))
        self.layers = {layer.name: layer for layer in (_layer(op, nodes) for op in ops)}
        self.results: dict[str, Port] = {}
        for layer in self.layers.values():
            if layer.kind == "Output" and (output := requested.get(layer.name)) is not None:
                source, index = layer.inputs[0]
                if _may_have_same_size(self.layers[source].values[index].shape, output.shape):
                    self.results |= dict.fromkeys(output.names, (source, index))

    @cached_property
    def by_key(self) -> Mapping[Key, list[Layer]]:
        """The layers that compute something, by `key`."""
        layers: dict[Key, list[Layer]] = {}
        for layer in self.layers.values():
            if layer.is_node:
                layers.setdefault(layer.key, []).append(layer)
        return layers

    def boundary_values(self, graph: Graph) -> Mapping[str, BoundaryValue]:
        """Return the exported values between layers, and those that a layer reads and none is reported to compute."""
        nodes = {node.name: node for node in graph.nodes}
        producers: dict[str, set[str]] = {}
        readers: dict[str, set[str]] = {}
        read_outside: set[str] = set()  # values that a layer computes and others read
        for layer in self.layers.values():
            inside = [nodes[name] for name in layer.computes]
            computed = {name for node in inside for name in node.outputs if name}
            for name in computed:
                producers.setdefault(name, set()).add(layer.name)
                if name in graph.outputs or any(user not in inside for user in graph.consumers.get(name, ())):
                    read_outside.add(name)
            for name in {name for node in inside for name in node.reads} - computed:
                readers.setdefault(name, set()).add(layer.name)
        return {
            name: BoundaryValue(frozenset(producers.get(name, readers.get(name, ()))), name in producers, node.op)
            for node in graph.nodes
            for name in node.outputs
            if name not in graph.constant_values and (name in read_outside or name in readers)
        }

    def missing_in(self, other: "ExecutedLayers") -> tuple[str, ...]:
        """Return the layers that another compilation lacks, except copies, which depend on the outputs."""
        return tuple(
            layer.name
            for key, layers in self.by_key.items()
            for layer in layers[len(other.by_key.get(key, ())) :]  # of equal layers, as many as are missing
            if not layer.copies
        )

    def nearest_values(self, changed: Collection[str], requested: Mapping[str, BoundaryValue]) -> set[str]:
        """Return the requested values that are nearest to changed layers: they may have caused the change.

        Of equally near ones, those that may be inside of a layer are returned, if there are any.

        Args:
            changed: names of layers.
            requested: the requested values.
        """
        near = {*changed} | {name for layer in changed for name, _ in self.layers[layer].inputs}
        while True:
            values = {name for name, value in requested.items() if value.layers & near}
            wider = near.union(*map(self._neighbors, near))
            if values or wider == near:
                return {name for name in values if not requested[name].computed} or values
            near = wider

    def _neighbors(self, name: str) -> set[str]:
        """Return the names of the layers that a layer reads or that read it."""
        read = (source for source, _ in self.layers[name].inputs)
        return {source for source in read if self.layers[source].is_node} | self._users[name]  # constants are shared

    def ports_of(self, other: "ExecutedLayers") -> Mapping[str, Port]:
        """Return the ports of this compilation that have the results of another one, by the names of the values.

        The layer of a port computes the same from the same inputs in both. It is identified by its key, and among equal
        layers by its position.
        """
        ports = {}
        for value, returned_from in other.results.items():
            name, index = self._before_copies(other, returned_from)
            layer = other.layers[name]
            if layer.is_node and self._has_layer(other, layer) and self._has_input_layers(other, layer):
                position = other.by_key[layer.key].index(layer)
                ports[value] = (self.by_key[layer.key][position].name, index)
        return ports

    def _has_layer(self, other: "ExecutedLayers", layer: Layer) -> bool:
        """Return whether this compilation has as many layers like a layer of another one as that has."""
        return len(self.by_key.get(layer.key, ())) == len(other.by_key[layer.key])

    def _has_input_layers(self, other: "ExecutedLayers", layer: Layer) -> bool:
        """Return whether this compilation has the layers that compute the inputs of a layer of another one.

        Layers that only move data are skipped: a factor may have been moved over a transpose into an earlier product.
        """
        read = [other.layers[name] for name, _ in layer.inputs if other.layers[name].is_node]
        return all(
            (source.copies or self._has_layer(other, source))
            and (not source.operator.movement or self._has_input_layers(other, source))
            for source in read
        )

    def _before_copies(self, other: "ExecutedLayers", port: Port) -> Port:
        """Return the port of another compilation before the copies and casts that OpenVINO added for an output."""
        layer = other.layers[port[0]]
        sources = [source for source in layer.inputs if other.layers[source[0]].is_node]
        is_in_both = bool(layer.computes) and layer.key in self.by_key  # so it was not added for the output
        if len(sources) != 1 or is_in_both:
            return port
        # A layer that is reported to compute nothing else than its source only prepares the output.
        repeats_source = {*layer.computes} <= {*other.layers[sources[0][0]].computes}
        return self._before_copies(other, sources[0]) if layer.copies or repeats_source else port

    def origins(self, exported: Graph, found: Mapping[str, Port]) -> Mapping[str, tuple[str, ...]]:
        """Return the exported nodes that each layer computes, by the name of the layer.

        Nodes that no layer reports (because OpenVINO moved a factor, for example) belong to the layer that computes the
        next value that was found.

        Args:
            exported: the exported graph.
            found: the ports of exported values, by their names.
        """
        reported = {name for layer in self.layers.values() for name in layer.computes}
        mapped = {name for name, _ in [*found.values(), *self.results.values()]}
        origins = {
            last: dict.fromkeys(node for layer in layers for node in layer.computes)
            for last, layers in self.groups(mapped).items()
        }
        stop = frozenset({*found, *self.results, *exported.constant_values})
        for value, (name, _) in found.items():
            computed = exported.cone([value], stop)
            origins[name] |= dict.fromkeys(node.name for node in computed if node.name not in reported)
        return {name: tuple(nodes) for name, nodes in origins.items() if nodes}

    def graph(self, exported: Graph, found: Mapping[str, Port]) -> Graph:
        """Return a graph of the layers; layers without an exported value between them are one node.

        Args:
            exported: the exported graph.
            found: the ports of exported values, by their names.
        """
        names: dict[Port, str] = {}
        for value, port in [*self.results.items(), *found.items()]:
            names.setdefault(port, value)
        groups = self.groups({name for name, _ in names})
        names |= {(name, 0): name for name, layer in self.layers.items() if not layer.is_node}
        values = [
            replace(value, name=_name_of((name, index), names))
            for name, layer in self.layers.items()
            for index, value in enumerate(layer.values)
        ]
        return Graph(
            name=exported.name,
            inputs=exported.inputs,
            outputs=exported.outputs,
            constants=tuple(name for name, layer in self.layers.items() if layer.kind == "Const"),
            nodes=tuple(_node(layers, names) for layers in groups.values()),
            values={value.name: value for value in values},
        )

    def groups(self, mapped: Collection[str]) -> Mapping[str, tuple[Layer, ...]]:
        """Return groups of layers by the name of the last one.

        A layer without an exported value is grouped with its only consumer if OpenVINO reports no exported node for it
        (copies and inserted layers), if both are parts of one exported node, or if the consumer only moves data.

        Args:
            mapped: names of layers with an exported value.
        """
        last: dict[str, str] = {}  # the last layer of the group of each layer
        groups: dict[str, tuple[Layer, ...]] = {}
        for layer in reversed([layer for layer in self.layers.values() if layer.is_node]):
            consumers = {last.get(user, user) for user in self._users[layer.name]}
            consumer = consumers.pop() if len(consumers) == 1 and layer.name not in mapped else ""
            is_grouped = consumer in groups and _belongs_to(layer, groups[consumer])
            last[layer.name] = consumer if is_grouped else layer.name
            groups[last[layer.name]] = (layer, *groups.get(last[layer.name], ()))
        return {name: groups[name] for name in self.layers if name in groups}

    @cached_property
    def _users(self) -> Mapping[str, set[str]]:
        """The names of the layers that read each layer."""
        users: dict[str, set[str]] = {name: set() for name in self.layers}
        for layer in self.layers.values():
            for name, _ in layer.inputs:
                users[name].add(layer.name)
        return users


def _belongs_to(layer: Layer, group: tuple[Layer, ...]) -> bool:
    """Return whether a layer belongs to the group of its only consumer; see `ExecutedLayers.groups`."""
    shared = any(name in later.computes for name in layer.computes for later in group)
    return not layer.computes or shared or bool(group[0].operator.movement)


def _layer(op: Any, nodes: NodesByLayer) -> Layer:
    """Return a layer from a node of OpenVINO's runtime model; `nodes` is that of `ExecutedLayers`."""
    kind, primitive, precision = (_info(op, name) for name in ("layerType", "primitiveType", "runtimePrecision"))
    original_layers = [name for name in _info(op, "originalLayersNames").split(",") if name]
    computed = [node for name in original_layers if kind not in _NO_NODES for node in _nodes_of(name, nodes)]
    sources = [port.get_source_output() for port in op.inputs()]
    precisions = _info(op, "outputPrecisions").split(",")
    return Layer(
        name=op.get_friendly_name(),
        kind=kind,
        primitive=primitive,
        precision=precision,
        computes=tuple(dict.fromkeys(computed)),
        key=(kind, primitive, precision, tuple(sorted({*computed, *_unnumbered(original_layers, nodes)}))),
        inputs=tuple((source.get_node().get_friendly_name(), source.get_index()) for source in sources),
        values=tuple(
            Value("", _DTYPES.get(dtype, dtype), shape_of(port.get_partial_shape()))
            for dtype, port in zip(precisions * len(op.outputs()), op.outputs(), strict=False)  # one may be for all
        ),
    )


def _unnumbered(original_layers: Sequence[str], nodes: NodesByLayer) -> list[str]:
    """Return the names, without numbers, of the original layers that exported nodes do not identify.

    These are parts of a node, and layers of none. A layer may be a part (`…/WithoutBiases`) in one compilation and the
    whole node in another; then only the node identifies it.
    """
    whole = {_without_suffix(name) for name in original_layers}
    return [
        _NUMBER.sub("", _without_suffix(name))
        for name in original_layers
        if ("/" in name and name.partition("/")[0] not in whole) or not _nodes_of(name, nodes)
    ]


def _without_suffix(name: str) -> str:
    """Remove the suffix of a layer whose result is cast."""
    return re.sub(r"(\.\d+)+$", "", name)


def _nodes_of(name: str, nodes: NodesByLayer) -> tuple[str, ...]:
    """Return the exported nodes of an original layer: of its name, or without its suffix, or of the whole of a part."""
    return nodes.get(name) or nodes.get(_without_suffix(name)) or nodes.get(name.partition("/")[0], ())


def _info(op: Any, name: str) -> str:
    """Return a property of an executed layer, or `""`."""
    info = op.get_rt_info()
    return str(info[name].astype(str)) if name in info else ""


def _may_have_same_size(*shapes: tuple[Dim, ...] | None) -> bool:
    """Return whether two shapes may have the same number of elements; a shape that is not fully known may have any."""
    counts = set()
    for shape in shapes:
        sizes = [dim for dim in shape or () if isinstance(dim, int)]
        if shape is not None and len(sizes) == len(shape):
            counts.add(math.prod(sizes))
    return len(counts) < 2


def shape_of(shape: Any) -> tuple[Dim, ...]:
    """Return an OpenVINO shape; unknown dimensions are None."""
    return tuple(None if dim.is_dynamic else dim.get_length() for dim in shape)


def _name_of(port: Port, names: Mapping[Port, str]) -> str:
    """Return the name of the exported value at a port, or else one made of the layer's name."""
    return names.get(port, f"{port[0]}:{port[1]}")


def _node(layers: tuple[Layer, ...], names: Mapping[Port, str]) -> Node:
    """Return a group of layers as one node."""
    inside = {layer.name for layer in layers}
    read = dict.fromkeys(port for layer in layers for port in layer.inputs if port[0] not in inside)
    last = layers[-1]
    return Node(
        name=last.name,
        op="+".join(layer.kind for layer in layers),
        inputs=tuple(_name_of(port, names) for port in read),
        outputs=tuple(_name_of((last.name, index), names) for index in range(len(last.values))),
        attributes={
            "layers": [layer.name for layer in layers],
            "primitives": [layer.primitive for layer in layers],
            "precision": last.precision,
        },
    )


def by_pattern(boundary: Mapping[str, BoundaryValue]) -> Collection[Collection[str]]:
    """Partition values by operator and by name without its number: equal blocks of a model behave in the same way."""
    parts: dict[tuple[str, str, bool], list[str]] = {}
    for name, value in boundary.items():
        parts.setdefault((value.op, _NUMBER.sub("", name), value.computed), []).append(name)
    return parts.values()


def every_third(boundary: Mapping[str, BoundaryValue]) -> Collection[Collection[str]]:
    """Partition the values that layers are reported to compute, so that of three in a row no two are together."""
    values = [name for name, value in boundary.items() if value.computed]
    return [part for part in (values[::3], values[1::3], values[2::3]) if part]
