"""An exported program in float64: what it reads, and the types that it casts to."""

import contextlib
import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.fx.node import map_aggregate

from .._errors import ExportError, reason
from ..common._time_limit import limited
from ._eager import Interpreter, Read, bound, walk_eager

_DOING = "eager PyTorch", "to run an operation of the exported program in float64"


class Float64Program:
    """A program that computes in float64; integers stay as they are, and its nodes keep their names.

    Explicit casts, and the types that constants are made in, are float64; weights and inputs are raised as they are
    read, so that no second copy of them is held; and what torch computes of integers is float64, too.

    Args:
        program: decomposed; it is left as it is.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self._program = copy.copy(program)
        self._program._graph_module = _told(program.graph_module)  # noqa: SLF001  it has no setter
        self._one = Interpreter(self._program.graph_module, None)
        self._nodes = {node.name: node for node in self._one.graph.nodes}
        self._places = {node: place for place, node in enumerate(self._nodes.values())}
        self._last: tuple[Mapping[str, torch.Tensor], Mapping[fx.Node, Any]] | None = None

    def walk(
        self, inputs: Mapping[str, torch.Tensor], *, wanted: Collection[str], read: Read | None = None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Run it, and give each value that is wanted as soon as it is made.

        Args:
            inputs: in their own types, by the names of the program's placeholders.
            wanted: the names of the nodes to show.
            read: what a node is given in place of a value that it reads, by the value's name; it is shown that in
                float64.

        Raises:
            ExportError: an operation can't be run.
        """
        walk = walk_eager(self._program, inputs, wanted=wanted, read=_raising(read))
        while True:  # the default type is the whole process's: it is not for whoever looks at a value in between
            with limited(*_DOING, error=ExportError), _in_float64():
                found = next(walk, None)
            if found is None:
                return
            yield found

    def node(
        self,
        name: str,
        inputs: Mapping[str, torch.Tensor],
        given: Callable[[str], torch.Tensor | None],
        read: Read | None = None,
    ) -> Any:
        """What one node makes of what is given, and of what the nodes between that and it make of it.

        Args:
            name: the node's.
            inputs: as `walk` takes them.
            given: what another node is taken to have made, by its name; None has it run.
            read: as `walk` takes it.

        Raises:
            ExportError: an operation can't be run.
        """
        held: dict[fx.Node, Any] = {}
        pending, wanted = [self._nodes[name]], set()
        while pending:
            node = pending.pop()
            tensor = None if node.op != "call_function" or node.name == name else given(node.name)
            if tensor is not None and _fits(node, tensor):
                held[node] = tensor
            elif node not in wanted:
                wanted.add(node)
                pending += [item for item in node.all_input_nodes if item not in held]
        arguments = self._arguments(inputs)
        self._one.read, self._one.env = _raising(read), held
        try:
            with limited(*_DOING, error=ExportError), _in_float64(), torch.no_grad():
                for node in sorted(wanted, key=self._places.__getitem__):
                    held[node] = arguments[node] if node.op == "placeholder" else self._one.run_node(node)
        finally:
            self._one.env = {}
        return held[self._nodes[name]]

    def _arguments(self, inputs: Mapping[str, torch.Tensor]) -> Mapping[fx.Node, Any]:
        """What each placeholder stands for; the same call is asked for node after node."""
        if self._last is None or self._last[0] is not inputs:
            placeholders = self._one.graph.find_nodes(op="placeholder")
            self._last = inputs, dict(zip(placeholders, bound(self._program, inputs), strict=True))
        return self._last[1]


def in_float64(value: Any) -> Any:
    """A tensor of real or complex numbers in float64 or complex128; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_complex():
        return value.detach().to(torch.complex128)
    return value.detach().to(torch.float64) if value.is_floating_point() else value.detach()


def _raising(read: Read | None) -> Read:
    def reading(name: str, value: Any) -> Any:
        held = in_float64(value)
        return held if read is None else read(name, held)

    return reading


def _fits(node: fx.Node, tensor: torch.Tensor) -> bool:
    """Whether a tensor can stand for what a node makes: ONNX has complex numbers as pairs."""
    traced = node.meta.get("val")
    return (
        isinstance(traced, torch.Tensor) and traced.ndim == tensor.ndim and traced.is_complex() == tensor.is_complex()
    )


@contextlib.contextmanager
def _in_float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    except Exception as error:
        raise ExportError(f"the exported program can't be run in float64: {reason(error)}") from error
    finally:
        torch.set_default_dtype(before)


def _told(module: fx.GraphModule) -> fx.GraphModule:
    """The module, and the branches and bodies in it, with each operation that is told a type told float64."""
    made = fx.GraphModule(module, copy.deepcopy(module.graph))
    for node in made.graph.nodes:
        if node.op == "call_function" and node.target not in _BITS:
            node.args = map_aggregate(node.args, _finer)
            node.kwargs = map_aggregate(node.kwargs, _finer)
    for name, part in module.named_children():
        if isinstance(part, fx.GraphModule):
            setattr(made, name, _told(part))
    made.recompile()
    return made


def _finer(item: Any) -> Any:
    if not isinstance(item, torch.dtype):
        return item
    return torch.float64 if item.is_floating_point else torch.complex128 if item.is_complex else item


_BITS = {torch.ops.aten.view.dtype}  # the same bits as another type: of another width, they are other numbers
