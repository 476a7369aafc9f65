"""`Execution`: one run of an implementation in float64, as operations on values that can be run again."""

import math
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import nn

from filch.export import Graph, Node, record_run
from filch.export.common._memory import release_memory
from filch.export.evaluation._float64 import call_in_float64
from filch.export.graph._arguments import leaves_of, written_arguments
from filch.export.operators._in_float64 import in_float64
from filch.export.operators._registry import operator_name
from filch.export.tracing._replayable import ModuleOutput, RecordedCall, RecordedRun, RunResult, TensorReference
from filch.steal import ModuleInfo
from filch.steal.values._arguments import argument_tensors
from filch.steal.values._tensors import is_dense

from ..common._complex import complex_as_real
from ..common._plain_tensors import plain_tensors
from ..models._second_input import other_numbers
from ._mode import Float64Mode, Way, native_kernels

Tensors = Mapping[str, torch.Tensor]


class Replay(Protocol):
    """Runs the operations of an execution again."""

    def __call__(self, forced: Tensors, wanted: Collection[str]) -> dict[str, torch.Tensor]:
        """Return the wanted values, if later operations read the forced ones in place of the computed ones.

        Args:
            forced: numbers by the names of values, float64 in the shapes of the values.
            wanted: the names of the values to return, and keys of outputs (`RunResult.key`, such as `returned [0]` or
                `buffer running_mean`). A value is returned as its operation computed it, even if it is forced; an
                output as the caller gets it, with what later operations wrote to its memory.
        """
        ...

    def with_numbers(self, numbers: Tensors) -> "Replay":
        """Return the same with numbers in place of values and weights, in each run."""
        ...


@dataclass(frozen=True, eq=False)
class Output:
    """A tensor that an implementation leaves to its caller: one that it returns, or has changed.

    Attributes:
        result: what it is: returned, or an argument or buffer that the call has changed, with its path.
        tensor: float64, complex numbers as pairs; integers as they are.
        native: the same in the dtypes of the implementation; None if it is not known.
        problem: why float64 has other numbers than the implementation itself; `""` if it has not.
    """

    result: RunResult
    tensor: torch.Tensor = field(repr=False)
    native: torch.Tensor | None = field(default=None, repr=False)
    problem: str = ""


@dataclass(frozen=True, eq=False)
class Execution:
    """One run of an implementation, with values in float64.

    Attributes:
        name: what the implementation is called.
        graph: its operations.
        values: the inputs, constants and results by name: float64, complex numbers as pairs; integers as they are. The
            results of movements of one tensor are left out (see `roots`). A shape may be that of a later view.
        weights: the parameters and buffers by name, in their own dtypes.
        modules: the tensors that modules returned.
        offsets: the index of the first element in the weight of each view of a weight, by the name of the view.
        run_again: runs the operations again with other numbers; None if that is not possible.
        units: half a unit in the last place of the coarsest dtype on the way to each value in the model's own run.
        outputs: what it leaves to its caller.
        noisy: computes the values by name, and the outputs by their keys, if everything that an operation reads is
            changed by half a unit in the last place; None if that is not possible.
    """

    name: str
    graph: Graph
    values: Tensors = field(repr=False)
    weights: Tensors = field(repr=False)
    modules: tuple[ModuleOutput, ...] = field(default=(), repr=False)
    offsets: Mapping[str, int] = field(default_factory=dict, repr=False)
    run_again: Replay | None = field(default=None, repr=False)
    units: Mapping[str, float] = field(default_factory=dict, repr=False)
    outputs: tuple[Output, ...] = field(default=(), repr=False)
    noisy: Callable[[], Tensors] | None = field(default=None, repr=False)

    @cached_property
    def roots(self) -> Mapping[str, str]:
        """The value that was moved to make each value, by its name: the value itself if it was computed."""
        roots = {name: name for name in (*self.graph.inputs, *self.graph.constants)}
        for node in self.graph.nodes:
            moved = moved_value(node)
            for name in node.outputs:
                roots[name] = name if moved is None else roots.get(moved, moved)
        return roots

    def roots_read_by(self, node: Node) -> list[str]:
        """Return the roots of the values and weights that a node reads, each once, in the order of `Node.reads`."""
        return [*dict.fromkeys(self.roots[read] for read in node.reads)]

    @property
    def output_tensors(self) -> dict[str, torch.Tensor]:
        """The outputs by their keys."""
        return {output.result.key: output.tensor for output in self.outputs}

    @cached_property
    def readers(self) -> Mapping[str, Sequence[Node]]:
        """The operations that compute something from each value or from what was moved from it, by its name."""
        readers: dict[str, list[Node]] = {}
        for node in self.graph.nodes:
            if moved_value(node) is None:
                for root in dict.fromkeys(self.roots[read] for read in node.reads):
                    readers.setdefault(root, []).append(node)
        return readers

    def is_right(self, name: str, found: Container[str]) -> bool:
        """Whether a value is an input, a weight or a value that was found, or was moved from one."""
        root = self.roots.get(name, name)
        return root in found or root in self.weights or root in self.graph.inputs

    def with_numbers(self, given: Tensors, weights: Tensors | None = None) -> "Execution":
        """Return the run with other numbers in place of some values, for all that is computed from them.

        Args:
            given: numbers by the names of values, float64 in the shapes of the values.
            weights: weights in float64, by name.
        """
        if self.run_again is None or not (given or weights):
            return self
        again = self.run_again.with_numbers({**(weights or {}), **given})
        keys = [output.result.key for output in self.outputs]
        computed = again({}, {*self.values, *keys})
        outputs = tuple(replace(item, tensor=computed.pop(item.result.key, item.tensor)) for item in self.outputs)
        return replace(self, values={**self.values, **computed, **given}, run_again=again, outputs=outputs)

    @cached_property
    def modules_by_value(self) -> Mapping[str, tuple[ModuleOutput, ...]]:
        """The module outputs that have the numbers of each computed value, by its name."""
        found: dict[str, list[ModuleOutput]] = {}
        for output in self.modules:
            found.setdefault(self.roots.get(output.value, output.value), []).append(output)
        return {name: tuple(outputs) for name, outputs in found.items()}


def moved_value(node: Node) -> str | None:
    """Return the value whose numbers a node only moves; None if it computes or joins numbers."""
    operator = node.operator
    if not operator.rearranges or operator.reads_sequence or operator.returns_sequence or not node.reads:
        return None
    if operator.source:  # the first tensor is one to copy into
        return node.reads[operator.source] if len(node.reads) == operator.source + 1 else None
    # The names of ONNX's own operators begin with a capital letter; what they read besides are shapes, indices, etc.
    computed = [*dict.fromkeys(node.reads)]
    return computed[0] if len(computed) == 1 or node.op[0].isupper() else None


@dataclass(frozen=True, eq=False)
class ModelSource:
    """A model with its arguments as an implementation.

    Attributes:
        model: the model.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What it is called."""
        return type(self.model).__name__

    @property
    def weights(self) -> Tensors:
        """The tensors of its state dictionary, by name."""
        return plain_tensors(self.model.state_dict())

    @property
    def inputs(self) -> Tensors:
        """The tensors among its arguments, by path."""
        return argument_tensors(ModuleInfo.of(self.model).parameters, self.args, self.kwargs)

    def with_other_numbers(self) -> "ModelSource":
        """Return the model with other numbers in arguments of the same shapes."""
        args, kwargs = other_numbers((self.args, dict(self.kwargs)))
        return replace(self, args=args, kwargs=kwargs)

    def run(self) -> Execution:
        """Run the model in float64.

        Raises:
            TraceError: the model fails.
        """
        execution = run_model(self.model, self.args, self.kwargs)
        release_memory()
        return execution


def run_model(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], *, native: bool = False) -> Execution:
    """Run a model in float64 and record its operations.

    The model runs in its own dtypes, so that it takes its usual branches; each operation runs a second time in float64.

    Args:
        model: the model.
        args: its positional arguments.
        kwargs: its keyword arguments.
        native: whether the values are those that the model itself computes, in its own dtypes; then it runs only once.

    Raises:
        TraceError: the model fails on these inputs.
    """

    def noisy() -> Tensors:
        """Return the values and outputs of another run, with noise; see `Execution.noisy`."""
        run = _run_in(Float64Mode("exact", "noisy"), model, args, kwargs, "noisy")
        return {**run.values, **run.output_tensors}

    mode = None if native else Float64Mode("exact")
    return replace(_run_in(mode, model, args, kwargs), noisy=None if native else noisy)


def _run_in(
    mode: Float64Mode | None, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], way: Way = "exact"
) -> Execution:
    """Run a model in a mode, and record its operations with the values that are computed in one way."""
    values: dict[str, torch.Tensor] = {}
    weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    units: dict[str, float] = {}

    storages = {tensor.untyped_storage().data_ptr(): name for name, tensor in weights.items() if is_dense(tensor)}
    offsets: dict[str, int] = {}

    def visit(name: str, tensor: torch.Tensor) -> None:
        """Keep an input, constant or result of an operation; of a view of a weight, only where it begins."""
        if name in weights:
            return
        if is_dense(tensor) and tensor.untyped_storage().data_ptr() in storages:
            offsets[name] = int(tensor.storage_offset())
            if "@" not in name:  # a view of a weight, and not what was written to it
                return
        if mode is None:
            values[name] = complex_as_real(_dense(tensor.detach())).clone()
        else:
            values[name], units[name] = in_float64(_dense(mode.value(tensor, way))), mode.unit(tensor)

    outputs: list[Output] = []

    def leave(result: RunResult, tensor: torch.Tensor) -> None:
        """Keep what the call returns or has changed."""
        own = complex_as_real(_dense(tensor.detach())).clone()
        value = own if mode is None else in_float64(_dense(mode.value(tensor, way)))
        outputs.append(Output(result, value, own, "" if mode is None else mode.problem))

    recorded = record_run(model, args, kwargs, visit, within=mode.running if mode else nullcontext, on_result=leave)
    graph = recorded.graph
    kept = in_finest_shapes(graph, values)
    own = {name: tensor.detach() for name, tensor in weights.items() if name in graph.known}
    again = _Replay(recorded, kept, own)
    plain = plain_tensors(own)
    return Execution(type(model).__name__, graph, kept, plain, recorded.outputs, offsets, again, units, tuple(outputs))


def in_finest_shapes(graph: Graph, values: Tensors) -> dict[str, torch.Tensor]:
    """Return values without those that only move others.

    Each has the shape with the most dimensions in which it is read, without another order of its elements.

    Args:
        graph: a graph that has the shapes of all values.
        values: the values by name.
    """
    movements = {name for node in graph.nodes if moved_value(node) is not None for name in node.outputs}
    found = {name: value for name, value in values.items() if name not in movements}
    sources: dict[str, str] = {}
    for node in graph.nodes:
        if node.operator.movement == "reshape" and moved_value(node) is not None:
            source = sources.get(node.reads[0], node.reads[0])
            shape = graph.values[node.outputs[0]].shape or ()
            sizes = tuple(size for size in shape if isinstance(size, int))
            value = found.get(source)
            if value is None or len(sizes) != len(shape) or math.prod(sizes) != value.numel():
                continue
            sources[node.outputs[0]] = source
            if _dimensions(sizes) > _dimensions(value.shape):
                found[source] = value.reshape(sizes)
    return found


def _dimensions(shape: Sequence[int]) -> int:
    """Return the number of dimensions of more than one element."""
    return sum(size > 1 for size in shape)


class _Replay:
    """Runs recorded calls in float64; see `Replay`."""

    def __init__(
        self, recorded: RecordedRun, values: Tensors, weights: Tensors, numbers: Tensors = MappingProxyType({})
    ) -> None:
        self._recorded, self._values, self._weights, self._numbers = recorded, values, weights, numbers
        # The index of the last call that reads each tensor, after which it is freed.
        self._last_reads = {handle: index for index, call in enumerate(recorded.calls) for handle in call.reads}

    def with_numbers(self, numbers: Tensors) -> Replay:
        """Return the same with numbers in place of values and weights, in each run."""
        return _Replay(self._recorded, self._values, self._weights, {**self._numbers, **numbers})

    def __call__(self, forced: Tensors, wanted: Collection[str]) -> dict[str, torch.Tensor]:
        """Return the wanted values, computed from forced ones (see `Replay.__call__`)."""
        forced = {**self._numbers, **forced}
        sources = (*self._recorded.graph.inputs, *self._recorded.graph.constants)
        values = {name: self._values[name] for name in sources if name in wanted and name in self._values}
        output_handles = {
            item.key: item.handle for item in self._recorded.results if item.handle and item.key in wanted
        }
        environment = {
            handle: tensor
            for handle, name in self._recorded.sources.items()
            if (tensor := self._source(name, copied=handle in self._overwritten)) is not None
        }
        with torch.no_grad(), native_kernels():
            for index, call in enumerate(self._recorded.calls):
                self._run(call, environment, forced, wanted, values)
                for handle in call.reads:
                    if self._last_reads[handle] == index and handle not in output_handles.values():
                        environment.pop(handle, None)
        outputs = {
            key: complex_as_real(in_float64(_dense(environment[handle]))).clone()
            for key, handle in output_handles.items()
            if handle in environment
        }
        return values | outputs

    def _run(
        self,
        call: RecordedCall,
        environment: dict[int, torch.Tensor],
        forced: Tensors,
        wanted: Collection[str],
        values: dict[str, torch.Tensor],
    ) -> None:
        """Run one call, and put its results into the environment and the wanted ones into `values`."""
        for (handle, name), tensor in zip(call.results, _results(call, environment), strict=False):
            numbers = complex_as_real(_dense(tensor))
            recorded = self._values.get(name)
            if name in wanted:  # other numbers may select more or fewer rows
                values[name] = numbers.clone()
                if recorded is not None and recorded.numel() == numbers.numel():
                    values[name] = values[name].reshape(recorded.shape)
            environment[handle] = tensor
            if name in forced and forced[name].numel() == numbers.numel() and tensor.layout is torch.strided:
                # With the same strides, for views; in the same memory if others read what is written there.
                replacement = tensor if handle in self._overwritten else torch.empty_like(tensor)
                complex_as_real(replacement).copy_(forced[name].reshape(numbers.shape))
                environment[handle] = replacement

    @cached_property
    def _overwritten(self) -> frozenset[int]:
        """The handles of the tensors whose memory calls write to, themselves or through views of them."""
        views = [call for call in self._recorded.calls if _has_views(call)]
        bases = {handle: call.reads[0] for call in views for handle, _ in call.results if handle not in call.reads}
        found: set[int] = set()
        for handle in (handle for call in self._recorded.calls for handle in _written(call)):
            base: int | None = handle
            while base is not None and base not in found:
                found.add(base)
                base = bases.get(base)
        return frozenset(found)

    def _source(self, name: str, *, copied: bool) -> torch.Tensor | None:
        """Return an input, constant or weight as calls read it, as a copy if they write to it; None if not known."""
        value = self._recorded.graph.values.get(name)
        known = self._values if name not in self._weights else self._numbers if name in self._numbers else self._weights
        if (tensor := known.get(name)) is None:
            return None
        if value is not None and (value.dtype or "").startswith("complex") and not tensor.is_complex():
            tensor = torch.view_as_complex(tensor.contiguous())
        return in_float64(tensor).clone() if copied else tensor


def _written(call: RecordedCall) -> list[int]:
    """Return the handles of the tensors that a call writes to."""
    items = leaves_of(written_arguments(call.operator, call.args, call.kwargs))
    return [item.handle for item in items if isinstance(item, TensorReference)]


def _has_views(call: RecordedCall) -> bool:
    """Whether a call returns views of the first tensor that it reads."""
    schema = getattr(call.operator, "_schema", None)
    return bool(call.reads) and any(item.alias_info is not None for item in (schema.returns if schema else ()))


def _results(call: RecordedCall, environment: dict[int, torch.Tensor]) -> list[torch.Tensor]:
    """Return what a call returns and writes in float64; nothing if it fails, as other numbers may select other rows."""

    def read(item: Any) -> Any:
        return in_float64(environment[item.handle]) if isinstance(item, TensorReference) else item

    try:
        returned = leaves_of(call_in_float64(call.operator, call.args, call.kwargs, read))
    except (IndexError, KeyError, RuntimeError):
        for handle, _ in call.results:
            environment.pop(handle, None)
        return []
    # What is made of no tensor has the usual dtype; later calls may write to its memory, also through views.
    results = [in_float64(item) for item in returned if isinstance(item, torch.Tensor)]
    written = [environment[handle] for handle in _written(call)]
    return results + [item for item in written if not any(item is other for other in results)]


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a tensor of any layout or of less than 16 bits, for which few operators exist."""
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor


def label_of(execution: Execution, name: str) -> str:
    """Return what a computed value is called: the module that returned it, or the operator with its line."""
    modules = execution.modules_by_value.get(name)
    if modules:
        innermost = modules[0]
        return f"{innermost.module}{innermost.path}" or "(the model)"
    node = execution.graph.producer.get(name)
    if node is None:
        return name
    place = f"{node.module}/{operator_name(node.op)}" if node.module else operator_name(node.op)
    return f"{place} at {line_of(node)}" if node.source else f"{place} ({name})"


def line_of(node: Node) -> str | None:
    """Return the line of code that a node was recorded at, without the folder."""
    return None if node.source is None else node.source.replace("\\", "/").rpartition("/")[2]
