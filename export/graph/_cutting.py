"""Cuts an ONNX graph at its values, so that what is read is fed and not what was made before it."""

from collections.abc import Collection, Sequence

import onnx_ir as ir

from ._graph import Graph
from ._nodes import Node

AGAIN = "//again"  # behind the name of what is made, where a value of the name itself is fed


class Cutter:
    """Cuts parts out of a model that is left as it is.

    Args:
        model: the whole.
        graph: the same as `Graph`.
    """

    def __init__(self, model: ir.Model, graph: Graph) -> None:
        self._model = model
        whole = model.graph
        self._nodes = dict(zip((node.name for node in graph.nodes), whole, strict=True))
        self._values = {
            value.name: value for value in (*whole.inputs, *(out for node in whole for out in node.outputs))
        }

    def cut(self, nodes: Sequence[Node], inside: Collection[str], *, wanted: Collection[str] | None = None) -> ir.Model:
        """Some nodes alone: what they make is an output, what they read an input, but for values inside.

        Args:
            nodes: which, in order.
            inside: the names of values that one of the nodes makes and others read of it. A value that is made and read
                and is none of these is both an input, and, with `AGAIN` behind its name, an output.
            wanted: the names of the values that are to be outputs; None is all.
        """
        whole = self._model.graph
        made = {name for node in nodes for name in node.outputs}
        read = sorted({name for node in nodes for name in node.reads if name not in inside})
        view = ir.GraphView(
            [self._values[name] for name in read if name not in whole.initializers and name not in made],
            [],
            nodes=[self._nodes[node.name] for node in nodes],
            initializers=[whole.initializers[name] for name in read if name in whole.initializers],
            opset_imports=dict(whole.opset_imports),
            name=whole.name,
        )
        part = view.clone()
        outputs = [value for node in part for value in node.outputs if value.name]
        asked = [value for value in outputs if wanted is None or value.name in wanted]
        for value in outputs:
            if value.name in read:
                fed = ir.Value(name=value.name, type=value.type, shape=value.shape)
                value.replace_all_uses_with(fed)
                value.name += AGAIN
                part.inputs.append(fed)
        part.outputs.extend(asked)
        functions = [function.clone() for function in self._model.functions.values()]
        return ir.Model(part, ir_version=self._model.ir_version, functions=functions)
