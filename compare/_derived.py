"""Reference values for what the translation of an operation has inside.

An exporter translates one operation of the torch program into several ONNX nodes. Eager PyTorch has the value at the
end of them, not those between. These are had by running the untouched translation once, with every value that eager has
cut and fed from eager: each operation then starts from the truth, and is believed if it ends at it.
"""

from collections.abc import Mapping

import onnx_ir as ir
import torch

from filch.export import BackendError, Graph, Node, Original, Program
from filch.export.backends import Compiled, get_backend

from ._metrics import compare_tensors

AGAIN = "//again"


class Derivation:
    """The cut graph of one program.

    Args:
        original: what the program was translated from.
        eager: the names of the values that eager PyTorch has.
    """

    def __init__(self, original: Original, eager: frozenset[str]) -> None:
        graph = original.graph
        fed = {*eager, *graph.inputs, *graph.constants}
        self._inside = {name for name in graph.producer if name not in fed}
        self._nodes = [node for node in graph.nodes if self._inside & {*node.outputs, *node.reads}]
        self._backend = get_backend("onnxruntime-cpu")
        self._compiled = self._compile(original, graph) if self._inside else None

    def run(self, eager: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The values inside of translations, by name, where the translation is to be believed."""
        if self._compiled is None:
            return {}
        feeds = {name: eager[name] if name in eager else inputs[name] for name in self._compiled.graph.inputs}
        try:
            found = self._backend.run(self._compiled, feeds)
        except BackendError:
            return {}
        believed = self._believed(eager, found)
        return {name: tensor for name, tensor in found.items() if name in believed}

    def _compile(self, original: Original, graph: Graph) -> Compiled | None:
        model = cut(original.model.clone(), graph, self._nodes, self._inside)
        try:
            return self._backend.compile(Program(model), optimize=False)
        except BackendError:
            return None

    def _believed(self, eager: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> set[str]:
        """The values inside whose every way on ends at eager's value."""
        users: dict[str, list[Node]] = {}
        for node in self._nodes:
            for name in node.reads:
                users.setdefault(name, []).append(node)
        sound: dict[str, bool] = {}
        for node in reversed(self._nodes):
            sound[node.name] = all(
                all(sound[user.name] for user in users.get(name, ()))
                if name in self._inside
                else _reproduced(eager.get(name), found.get(name + AGAIN, found.get(name)))
                for name in node.outputs
                if name
            )
        return {name for node in self._nodes if sound[node.name] for name in node.outputs if name in self._inside}


def _reproduced(eager: torch.Tensor | None, again: torch.Tensor | None) -> bool:
    return eager is None or compare_tensors(eager, again).close


def cut(model: ir.Model, graph: Graph, nodes: list[Node], inside: set[str]) -> ir.Model:
    """Only `nodes`; what they read of eager's becomes an input, what they make of it an output of another name."""
    kept = {node.name for node in nodes}
    names = [node.name for node in graph.nodes]
    read = {name for node in nodes for name in node.reads if name not in inside and name not in graph.constants}
    whole = model.graph
    values = {value.name: value for value in (*whole.inputs, *(out for node in whole for out in node.outputs))}
    whole.outputs.clear()
    feeds = {}
    for name in sorted(read):
        old = values[name]
        new = ir.Value(name=name, type=old.type, shape=old.shape)
        old.replace_all_uses_with(new)
        old.name = name + AGAIN
        feeds[name] = new
    for node, name in zip(list(whole), names, strict=True):
        if name in kept:
            whole.outputs.extend(out for out in node.outputs if out.name)
    whole.inputs.clear()
    whole.inputs.extend(feeds.values())
    for node, name in reversed(list(zip(list(whole), names, strict=True))):
        if name not in kept:
            whole.remove(node, safe=True)
    for name in [name for name, value in whole.initializers.items() if not value.uses()]:
        del whole.initializers[name]
    return model
