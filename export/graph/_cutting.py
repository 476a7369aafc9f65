"""Extract parts of an ONNX model; the values that a part reads from other nodes become its inputs."""

from collections.abc import Collection, Sequence

import onnx_ir as ir

from ._graph import Graph
from ._nodes import Node

AGAIN = "//again"  # suffix of an output that is computed although a value of the same name is an input


class Cutter:
    """Extracts parts of a model, which it does not change.

    Args:
        model: the model.
        graph: the model as a `Graph`.
    """

    def __init__(self, model: ir.Model, graph: Graph) -> None:
        self._model = model
        source = model.graph
        self._nodes = dict(zip((node.name for node in graph.nodes), source, strict=True))
        self._values = {
            value.name: value for value in (*source.inputs, *(out for node in source for out in node.outputs))
        }

    def cut(self, nodes: Sequence[Node], inside: Collection[str], *, wanted: Collection[str] | None = None) -> ir.Model:
        """Return a model of some nodes alone. Its inputs are the values that they read, its outputs their results.

        Args:
            nodes: the nodes, in order.
            inside: names of values that one of the nodes computes and others read directly. Any other value that is
                both computed and read becomes an input, and an output whose name ends with `AGAIN`.
            wanted: the names of the values to output; None for all.
        """
        source = self._model.graph
        computed = {name for node in nodes for name in node.outputs}
        read = sorted({name for node in nodes for name in node.reads if name not in inside})
        view = ir.GraphView(
            # Values that are computed and read become inputs below.
            [self._values[name] for name in read if name not in source.initializers and name not in computed],
            [],
            nodes=[self._nodes[node.name] for node in nodes],
            initializers=[source.initializers[name] for name in read if name in source.initializers],
            opset_imports=dict(source.opset_imports),
            name=source.name,
        )
        part = view.clone()
        outputs = [value for node in part for value in node.outputs if value.name]
        returned = [value for value in outputs if wanted is None or value.name in wanted]
        for value in outputs:
            if value.name in read:
                replacement = ir.Value(name=value.name, type=value.type, shape=value.shape)
                value.replace_all_uses_with(replacement)
                value.name += AGAIN
                part.inputs.append(replacement)
        part.outputs.extend(returned)
        functions = [function.clone() for function in self._model.functions.values()]
        return ir.Model(part, ir_version=self._model.ir_version, functions=functions)
