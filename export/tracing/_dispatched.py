"""The graph of a step as eager PyTorch runs it: a node for each ATen call, backward pass and optimiser included."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..graph._arguments import settings_of, tensors_of
from ..graph._from_fx import GRADIENT, operator_name
from ..graph._graph import Graph
from ..graph._nodes import Frame, Node, Value
from ._autograd_numbers import AutogradNumbers
from ._call_sites import line_frame, lines_within, outside
from ._module_calls import Calls, class_of
from ._recording import Recording
from ._step import Function, Step, failing, run

# What these write to, their schemas don't say.
_STATISTICS = {"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"}
_NUMBERS = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}  # what Python's are as tensors
_PASSED_OVER = ("profiler", "prim")  # marks in time, and questions to a tensor
LINES = 3  # that stand for the calls an operation runs in where no module does, as in Jittor


def dispatched(step: Step) -> Graph:
    """Run a step, and record each ATen call.

    A derivative is known by the number of the autograd node that runs: where gradients of one value are added up, that
    is the node whose gradient has just arrived.

    Raises:
        TraceError: see `run`; or this version of torch does not tell which operation a derivative is of.
    """
    name = type(step.model).__name__
    tracer = Dispatched(Calls(step.model), name)
    with (
        failing(f"{name} itself fails on these inputs"),
        torch.compiler.set_stance("force_eager"),  # what the user has compiled would be dispatched in part
        tracer.calls.heard(),
        Watching(tracer),
    ):
        run(step, tracer)
    return tracer.graph()


class Dispatched:
    """Records what torch dispatches; see `Tracer`.

    Args:
        calls: knows the modules.
        name: of the graph.

    Attributes:
        recording: the graph so far.
        calls: which modules' calls are running.
        paused: whether calls are not to be recorded.
        nodes: by name, what was recorded.
        numbers: knows which of them a derivative is of.
    """

    def __init__(self, calls: Calls, name: str) -> None:
        self.recording = Recording()
        self.paused = True
        self.calls = calls
        self._root = name
        self.nodes: dict[str, Node] = {}
        self.numbers = AutogradNumbers()
        self._seed: Node | None = None
        self._held: dict[int, str] = {}
        self._results: tuple[str, ...] = ()

    def begin(self, held: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> None:
        """See `Tracer.begin`."""
        self._held = {id(tensor): name for name, tensor in held.items()}
        for name, tensor in held.items():
            self.recording.hold(tensor, name)
        for name, tensor in given.items():
            self.recording.give(tensor, name)
        self.paused = False

    def ready(self, function: Function) -> Function:
        """See `Tracer.ready`: it is run as it is."""
        return function

    def backward(self, loss: torch.Tensor) -> None:
        """See `Tracer.backward`."""
        self._seed = self.recording.maker(self.recording.read(loss)[0])
        loss.backward()  # type: ignore[no-untyped-call]
        self._seed = None

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """See `Tracer.update`."""
        with self.calls.inside(Frame("optimizer", class_of(optimizer), outside(sys._getframe()))):  # noqa: SLF001  documented
            self.step_optimizer(optimizer)

    def step_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Run the optimiser."""
        optimizer.step()

    def end(self, results: Sequence[torch.Tensor]) -> None:
        """See `Tracer.end`."""
        self.paused = True
        self._results = tuple(dict.fromkeys(self.recording.read(tensor)[0] for tensor in results))

    def graph(self) -> Graph:
        """What was recorded."""
        return self.recording.graph(self._root, self._results)

    def call(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Make a call, and record it."""
        if self.paused or getattr(operator, "namespace", "") in _PASSED_OVER:
            return operator(*args, **kwargs)
        given = list(tensors_of(args, kwargs))
        reads = [name for tensor in given for name in self.recording.read(tensor)]
        output = operator(*args, **kwargs)
        written = list(_written(operator, args, kwargs))
        self._record(operator, settings_of(operator, args, kwargs), reads, output, written)
        return output

    def claim(self, node: Node) -> None:
        """A node has just run: see `AutogradNumbers.claim`."""
        self.numbers.claim(node.name, node.op)

    def keep(self, node: Node) -> None:
        """Add a node to the recording."""
        self.recording.add(node)
        self.nodes[node.name] = node

    def _record(
        self, operator: Any, settings: dict[str, Any], reads: list[str], output: Any, written: list[torch.Tensor]
    ) -> None:
        name = self.recording.unique(operator_name(operator))
        made = [item for item in pytree.tree_leaves(output) if isinstance(item, torch.Tensor)]
        changed = {id(tensor) for tensor in written}
        everything = [*made, *(tensor for tensor in written if not any(tensor is item for item in made))]
        names = [name if len(everything) == 1 else f"{name}:{index}" for index in range(len(everything))]
        outputs = tuple(
            (self.recording.write if id(tensor) in changed else self.recording.make)(tensor, value)
            for tensor, value in zip(everything, names, strict=True)
        )
        if not everything and type(output) in _NUMBERS:  # `item()`
            outputs = (self.recording.state(Value(name, _NUMBERS[type(output)], ())),)
        made_by = Node(name, operator_name(operator), tuple(dict.fromkeys(reads)), outputs, settings)
        self.keep(self._placed(made_by))
        self.claim(made_by)

    def _placed(self, node: Node) -> Node:
        """The node that has just run, with the calls that it ran in."""
        running = self.numbers.running()
        if running is None:
            return self.place(node)
        if running.name().endswith("AccumulateGrad"):  # no operation made the parameter
            owner = self.owner(running.variable)
            return replace(node, stack=(GRADIENT, *self.calls.seen.get(owner or "", ())), module=owner)
        return derivative(node, self.nodes.get(self.numbers.owner(running) or ""))

    def place(self, node: Node) -> Node:
        """A node that is no derivative, with the calls that it runs in."""
        if self._seed is not None:  # the derivative of the loss by itself, which is 1
            return derivative(node, self._seed)
        source = next(lines_within(sys._getframe(1), run.__code__), None)  # noqa: SLF001  documented
        return replace(node, stack=self.calls.running or _lines(), module=self.calls.label, source=source)

    def owner(self, parameter: torch.Tensor) -> str | None:
        """The path of the module that holds a parameter; None if not known."""
        return self._held.get(id(parameter), "").rpartition(".")[0]


def derivative(node: Node, of: Node | None) -> Node:
    """A node that is part of the derivative of another one, or of one that nobody knows."""
    if of is None:
        return replace(node, stack=(GRADIENT,))
    return replace(node, stack=(GRADIENT, *of.stack), module=of.module, gradient_of=of.name)


class Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside of the block, a tracer makes each ATen call of this thread, and of those that go back for it."""

    supports_higher_order_operators = True  # or `torch.cond` and flex attention would refuse to run

    def __init__(self, tracer: Dispatched) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tracer = tracer

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch compile what it would compile without us; it does not where another mode is on."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._tracer.call(func, args, kwargs or {})


def _written(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors that a call has changed in place."""
    if not isinstance(operator, OpOverload):
        return
    arguments = operator._schema.arguments  # noqa: SLF001  nothing public tells
    named = dict(zip((argument.name for argument in arguments), args, strict=False)) | dict(kwargs)
    for argument in arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors_of([named.get(argument.name)], {})
    if operator_name(operator) in _STATISTICS and named.get("training"):
        yield from tensors_of([named.get("running_mean"), named.get("running_var")], {})


def _lines() -> tuple[Frame, ...]:
    """The lines of Python that lead to an operation, where no module runs: the run's own, or the caller's of all."""
    here = sys._getframe(1)  # noqa: SLF001  documented
    lines = list(lines_within(here, run.__code__))[:LINES] or [line for line in [outside(here)] if line]
    return tuple(line_frame(line) for line in reversed(lines))
