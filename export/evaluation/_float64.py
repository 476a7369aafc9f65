"""Run an exported program in float64."""

import contextlib
import copy
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.fx.node import map_aggregate

from .._errors import ExportError, reason
from ..common._time_limit import limited
from ..graph._arguments import map_leaves
from ..operators._in_float64 import float64_dtype, float64_operator, in_float64
from ._devices import changed_copy
from ._eager import Interpreter, Read, placeholder_values

# The subject and the task in the message of an exceeded time limit, see `limited`.
_STEP = "eager PyTorch", "to run an operation of the exported program in float64"


class Float64Program:
    """A program that computes in float64. Integers stay integers, and nodes keep their names.

    Casts and constants become float64, and so do floating-point results of integers. Weights and inputs are converted
    when they are read, so that no second copy of them stays in memory.

    Args:
        program: the decomposed program; it is not changed.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self._program = copy.copy(program)
        self._program._graph_module = _with_float64(program.graph_module)  # noqa: SLF001  it has no setter
        self._interpreter = Interpreter(self._program.graph_module)
        self._nodes = {node.name: node for node in self._interpreter.graph.nodes}
        self._cache: tuple[Mapping[str, torch.Tensor], dict[fx.Node, Any]] | None = None

    def compute(
        self,
        name: str,
        inputs: Mapping[str, torch.Tensor],
        values: Mapping[str, Any],
        read: Read | None = None,
    ) -> Any:
        """Return the value of one node.

        Args:
            name: the node's name.
            inputs: the inputs in their own dtypes, by the names of the program's placeholders.
            values: the values of the nodes that it reads, by name; of any width.
            read: see `Interpreter`; called with values in float64.

        Raises:
            ExportError: the operation can't be run.
        """
        node, run = self._nodes[name], self._interpreter.run_node
        known = ChainMap({self._nodes[read]: value for read, value in values.items()}, self._arguments(inputs))
        self._interpreter.read = _read_float64(read)
        try:
            with limited(*_STEP, error=ExportError), _in_float64(), torch.no_grad():
                read_nodes = node.all_input_nodes  # those without a value, such as `get_attr`, are run
                self._interpreter.env = {item: known[item] if item in known else run(item) for item in read_nodes}
                return run(node)
        finally:
            self._interpreter.env = {}

    def _arguments(self, inputs: Mapping[str, torch.Tensor]) -> dict[fx.Node, Any]:
        """Return the value of each placeholder; cached, because many nodes are computed with the same inputs."""
        if self._cache is None or self._cache[0] is not inputs:
            placeholders = self._interpreter.graph.find_nodes(op="placeholder")
            self._cache = inputs, dict(zip(placeholders, placeholder_values(self._program, inputs), strict=True))
        return self._cache[1]


def call_in_float64(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], read: Callable[[Any], Any]) -> Any:
    """Call an operator with float64 in place of each dtype, and with what `read` returns for each other argument."""

    def converted(item: Any) -> Any:
        return float64_dtype(item) if isinstance(item, torch.dtype) else read(item)

    args, kwargs = map_leaves(converted, (tuple(args), dict(kwargs)))
    return float64_operator(operator)(*args, **kwargs)


def _read_float64(read: Read | None) -> Read:
    """Return a function that converts a value to float64 before it calls `read`."""

    def convert(name: str, value: Any, start: int | None) -> Any:
        converted = in_float64(value)
        return converted if read is None else read(name, converted, start)

    return convert


@contextlib.contextmanager
def _in_float64() -> Iterator[None]:
    """Make float64 torch's default dtype in the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    except Exception as error:
        raise ExportError(f"the exported program can't be run in float64: {reason(error)}") from error
    finally:
        torch.set_default_dtype(before)


def _with_float64(module: fx.GraphModule) -> fx.GraphModule:
    """Copy a module and its submodules (branches, loop bodies) with float64 as the dtype argument of each operation."""

    def widen(node: fx.Node) -> None:
        if node.op == "call_function" and node.target not in _REINTERPRETING:
            node.args, node.kwargs = map_aggregate(node.args, _wide_dtype), map_aggregate(node.kwargs, _wide_dtype)
            node.target = float64_operator(node.target)

    return changed_copy(module, widen)


def _wide_dtype(item: Any) -> Any:
    """Return float64 in place of a floating-point dtype; any other argument as it is."""
    return float64_dtype(item) if isinstance(item, torch.dtype) else item


_REINTERPRETING = {torch.ops.aten.view.dtype}  # reinterprets bits, so that another width would give other numbers
