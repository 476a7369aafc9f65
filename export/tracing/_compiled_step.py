"""The graphs of a step as torch.compile runs it: Inductor's kernels, and the operations that they come from."""

import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import Any
from weakref import ref

import torch
from torch import fx
from torch._dynamo import config as dynamo

from .._errors import TraceError
from ..backends.inductor._compiled_fx import CompiledGraph, Part
from ..backends.inductor._kernel_graph import own_kernels
from ..common._quiet import quiet
from ..graph._graph import Graph
from ..graph._nodes import Node, Value
from ._dispatched import Dispatched, Watching
from ._module_calls import Calls
from ._recorded_part import Joint, Operations, Reader
from ._step import Function, Step, Unwatched, failing, run


def compiled_step(step: Step) -> Graph:
    """Run a step compiled by Inductor, and record what it ran.

    The optimiser is compiled too, if that works; if not, its ATen calls are recorded one by one.

    Args:
        step: what to run; first in eager PyTorch, without gradients, which tells where its modules are called.

    Returns:
        the graph of what was executed: Inductor's kernels, and the ATen calls that nobody compiled (autograd hands
        gradients over by some); its `before` is the graph of operations, forward and backward, as AOTAutograd made
        them.

    Raises:
        TraceError: see `run`; or nothing was compiled.
        BackendError: Inductor can't compile it, or this version of torch does not tell what its kernels compute.
    """
    name = type(step.model).__name__
    calls = Calls(step.model)
    as_written = torch.compiler.set_stance("force_eager")
    with failing(f"{name} itself fails on these inputs"), as_written, calls.heard():
        run(replace(step, loss=None, optimizer=None), Unwatched())
    tracer = CompiledStep(step, calls, whole=True)
    with failing(f"backend 'inductor' can't trace {name}"):
        try:
            tracer.run(step)
        except Exception:
            if not tracer.updating:
                raise
            tracer = CompiledStep(step, calls, whole=False)
            tracer.run(step)
    if not tracer.compiled:
        raise TraceError(
            f"torch.compile compiled nothing of {name}: it is switched off, can't follow the model (an nn.LSTM, say), "
            "or there is nothing to compute; backend='eager' traces what runs"
        )
    return tracer.graph()


_OFTEN = 10_000


class CompiledStep(Dispatched):
    """Records the kernels of what is compiled, and what torch dispatches besides; see `Tracer`.

    Args:
        step: what runs.
        calls: where its modules were called in eager PyTorch.
        whole: whether the optimiser is compiled, too.

    Attributes:
        updating: whether the optimiser runs.
        compiled: whether anything that was compiled has run.
    """

    def __init__(self, step: Step, calls: Calls, *, whole: bool) -> None:
        super().__init__(calls, type(step.model).__name__)
        self.updating = False
        self.compiled = False
        self._whole = whole
        self._executed: list[Node] = []
        self._buffers: dict[str, Value] = {}
        self._stored: set[str] = set()
        self._views: dict[str, str] = {}

    def run(self, step: Step) -> None:
        """Run a step; the model's own warnings were heard in eager PyTorch, and Dynamo's are for those who compile."""
        # Where it breaks the graph, Dynamo counts versions of the model's own code, and those of earlier traces, too.
        often = dynamo.patch(recompile_limit=_OFTEN, accumulated_recompile_limit=_OFTEN)
        with warnings.catch_warnings(), often, Watching(self):  # no hooks: Dynamo would compile them
            warnings.simplefilter("ignore")
            run(step, self)

    def ready(self, function: Function) -> Function:
        """See `Tracer.ready`: it is compiled."""
        # Dynamo keeps what it compiled with the code, and among the globals; it stops compiling after some versions.
        fresh = FunctionType(function.__code__.replace(), {**function.__globals__}, function.__name__)
        return torch.compile(fresh, backend=partial(_compiled_for, ref(self)), dynamic=False)

    def step_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """See `Dispatched.step_optimizer`."""
        self.updating = True
        with quiet():  # Dynamo says that it leaves the profiler's marks out
            (self.ready(_step_of) if self._whole else _step_of)(optimizer)
        self.updating = False

    def keep(self, node: Node) -> None:
        """See `Dispatched.keep`: what is dispatched is executed by itself."""
        super().keep(node)
        self._executed.append(replace(node, origins=(node.name,)))

    def graph(self) -> Graph:
        """See `Dispatched.graph`."""
        before = super().graph()
        values = {**before.values, **self._buffers}
        nodes = self._joined(before)
        known = {*before.inputs, *before.constants, *(name for node in nodes for name in node.outputs)}
        outputs = tuple(self._base(name, known) for name in before.outputs)
        return replace(before, nodes=nodes, outputs=outputs, values=values, source_graph=before)

    def _joined(self, before: Graph) -> tuple[Node, ...]:
        """What was executed, each reading what another one has written."""
        known = {*before.inputs, *before.constants, *(name for node in self._executed for name in node.outputs)}
        joined: list[Node] = []
        computed: dict[str, int] = {}  # by operation, the place of what has computed it last
        for node in self._executed:
            inputs = tuple(dict.fromkeys(self._base(name, known) for name in node.inputs))
            for name in (name for name in inputs if name not in known and name in before.producer):
                place = computed.get(before.producer[name].name)
                if place is not None:  # Inductor does not say which of its buffers has it
                    joined[place] = replace(joined[place], outputs=(*joined[place].outputs, name))
                    known.add(name)
            computed.update(dict.fromkeys(node.origins, len(joined)))
            joined.append(replace(node, inputs=inputs))
        return tuple(joined)

    def _base(self, name: str, known: Container[str]) -> str:
        """What memory holds of a value: something that it is a view of, if it is not there itself."""
        for _ in self._views:
            if name in known or name not in self._views:
                break
            name = self._views[name]
        return name

    def compile(self, module: fx.GraphModule, inputs: Sequence[Any]) -> CompiledGraph:
        """What Dynamo asks for with each graph that it has found."""
        made = CompiledGraph(module, inputs, {})
        made.observer = partial(_run_for, ref(self), Joint(self.calls.sites))
        return made

    def run_part(self, joint: Joint, part: Part, inputs: list[Any]) -> Any:
        """Run generated code, and record what it ran."""
        reader = Reader(part, list(inputs), self.recording, joint, self.calls.running)  # what runs empties the list
        before, self.paused = self.paused, True
        try:
            outputs = part.plain(inputs)
        finally:
            self.paused = before
        self.compiled = True
        operations = reader.read(outputs)
        for node in operations.nodes:
            super().keep(node)
        if operations.nodes:
            self.claim(operations.nodes[-1])
        self._executed += self._kernels(part, operations)
        return outputs

    def _kernels(self, part: Part, operations: Operations) -> Iterator[Node]:
        """What a part executed, in the words of the recording."""
        made = own_kernels(part)
        names = {name: values[0] for name, values in operations.values.items()}
        for name in (name for node in made.graph.nodes for name in node.outputs if name not in names):
            names[name] = self.recording.unique(name)
            self._buffers[names[name]] = Value(names[name])
        self._views |= operations.views
        held = ((operations.values[name][0], names[label]) for name, label in made.buffers.items())
        self._views |= {name: label for name, label in held if name != label}
        for node in made.graph.nodes:
            origins = (operations.by_name.get(name) for name in made.computed[node.name])
            computed = {origin.name: origin for origin in origins if origin is not None}
            yield self._kernel(node, names, [*computed.values()])

    def _kernel(self, node: Node, names: Mapping[str, str], computed: Sequence[Node]) -> Node:
        # What is written back to what Inductor was given is not always a buffer of its own.
        back = [name for item in computed for name in item.outputs if "@" in name]
        outputs = [name for name in (*(names[name] for name in node.outputs), *back) if name not in self._stored]
        self._stored.update(outputs)
        derivatives = [item.gradient_of for item in computed if item.gradient_of is not None]
        last = computed[-1] if computed else node
        return replace(
            node,
            name=self.recording.unique(node.name),
            inputs=tuple(dict.fromkeys(names.get(name, name) for name in node.inputs)),
            outputs=tuple(dict.fromkeys(outputs)),
            module=last.module,
            stack=last.stack,
            origins=tuple(item.name for item in computed),
            gradient_of=derivatives[-1] if derivatives and len(derivatives) == len(computed) else None,
        )


# Dynamo keeps backends, and what they made, for good; they must not keep the tracer, and with it the model.
def _compiled_for(tracer: "ref[CompiledStep]", module: fx.GraphModule, inputs: Sequence[Any]) -> Function:
    alive = tracer()
    return module.forward if alive is None else alive.compile(module, inputs)


def _run_for(tracer: "ref[CompiledStep]", joint: Joint, part: Part, inputs: list[Any]) -> Any:
    alive = tracer()
    return part.plain(inputs) if alive is None else alive.run_part(joint, part, inputs)


def _step_of(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
