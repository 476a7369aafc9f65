"""Evaluate an exported program, or an ONNX program, in float64: whole, from given values, or each node by itself."""

import functools
import math
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from filch.export import ExportError, Graph, Node, Original, Program
from filch.export.evaluation._eager import can_replace
from filch.export.operators._in_float64 import in_float64
from filch.export.operators._registry import operator_of

from ..common._complex import complex_as_real
from ..common._errors import CompareError
from ..common._value_cache import ValueCache
from ..float64._decision_values import decided, differ
from ..float64._noise import unit_of, with_noise
from ..float64._values import Float64Values
from ..float64._verdict import Float64Value

_FLOAT32_UNIT = 2.0**-24
Units = Mapping[str, float]
TensorLookup = Callable[[str], torch.Tensor | None]
# A value in float64 and, if the run has noise, the same with noise: tensors, or lists of these, which are sequences of
# ONNX. Within a PyTorch program, complex tensors, numbers and tuples as well.
Variants = tuple[Any, ...]


class Float64Evaluator:
    """Evaluate the values of a program in float64.

    Args:
        program: the program.

    Attributes:
        original: the exported program.
        units: half a unit in the last place of each value, relative, by name: the root mean square of its noise.
        steps: see `Float64Values`.
        operations: the operations of the model that PyTorch runs, by the names of their results.
        eager_names: the names of those of their results that are no lists or tuples.
        aliases: the weights that nodes `Identity` return, by the names of what they return.

    Raises:
        CompareError: the program has no exported PyTorch program.
    """

    def __init__(self, program: Program) -> None:
        original = program.original
        if original is None:
            missing = f": {program.missing!r} is not beside the ONNX file" if program.missing else ""
            raise CompareError(
                f"float64 needs the exported program{missing}; "
                "use what export() returned, or a file saved by Program.save with its .pt2 beside it"
            )
        try:
            self.units = _units_of(original)
        except ExportError as error:
            raise CompareError(f"float64 needs the exported program: {error}") from error
        self.original, self._random = original, original.unpredictable
        self.steps = _steps_of(original)
        self.operations = {node.name: node for node in original.nodes if node.op == "call_function"}
        self.eager_names = frozenset(original.names)
        self.aliases = _aliases_of(original.graph)

    def of(self, inputs: Mapping[str, torch.Tensor], wanted: Collection[str], *, keep: bool) -> "ProgramRun":
        """Return the values of one call of the model.

        Args:
            inputs: the inputs of the call, by name.
            wanted: see `RunOptions`.
            keep: see `RunOptions`.
        """
        return ProgramRun(self, inputs, RunOptions(wanted, keep, self._random.random))

    def isolated(
        self,
        inputs: Mapping[str, torch.Tensor],
        reference: TensorLookup,
        ties: Mapping[int, int] = MappingProxyType({}),
        *,
        by_graph: bool = False,
    ) -> "ProgramRun":
        """Return the outputs of each node in one call, from references of what it reads.

        Args:
            inputs: the inputs of the call, by name.
            reference: returns the reference of a value by its name; see `RunOptions.known`.
            ties: see `RunOptions`.
            by_graph: see `RunOptions`.
        """
        unknown = self._random.replaced
        options = RunOptions(unknown=unknown, known=reference, change_decisions=True, ties=ties, by_graph=by_graph)
        return ProgramRun(self, inputs, options)


@dataclass(frozen=True)
class RunOptions:
    """How a program is run in float64.

    Attributes:
        wanted: the names of the values that will be requested, roughly in the order of the program. None if it can be
            any, in any order: then each request computes what it needs again, and keeps nothing.
        keep: whether to keep all values for a second pass.
        unknown: the names of values without a float64 value.
        known: returns what others read in place of a value, in its own dtype; it is not computed for them. None of a
            value that is computed from what its node reads.
        forced: returns what others read in place of a value when it was computed, by its name: that value itself, or
            another one of the same shape.
        noisy: whether each value is also computed with noise on everything that is read.
        change_decisions: whether noisy values are computed from the decisions that noise changed (see `Decisions`).
        ties: see `filch.export.operators.NodeCall`.
        by_graph: whether the nodes of the graph compute what reads a value within an operation of the model, if that is
            known; else the operation does.
        observe: called with each node of the graph that was computed, and with what it has read and returned, by name.
    """

    wanted: Collection[str] | None = None
    keep: bool = False
    unknown: Collection[str] = frozenset()
    known: TensorLookup = lambda _: None
    forced: Callable[[str, Any], Any] | None = None
    noisy: bool = True
    change_decisions: bool = False
    ties: Mapping[int, int] = field(default_factory=dict)
    by_graph: bool = False
    observe: Callable[[Node, Mapping[str, Any], Mapping[str, Any]], None] = lambda *_: None


@dataclass(frozen=True)
class _ProgramValues:
    """The values that nodes have read or computed.

    Attributes:
        known: see `RunOptions`.
        cache: the computed values that are still needed, by name.
        done: the ids of the nodes that were computed, also in vain.
    """

    known: TensorLookup
    cache: ValueCache[Variants]
    done: set[int]


class ProgramRun(Float64Values):
    """The values of one call of a program in float64, each of which is computed when it is requested.

    Operations run in PyTorch; values inside an operation's ONNX decomposition are computed from those, node by node.

    Args:
        program: the program.
        inputs: the inputs of the call, by name.
        options: from what values are computed.
    """

    def __init__(self, program: Float64Evaluator, inputs: Mapping[str, torch.Tensor], options: RunOptions) -> None:
        super().__init__()
        self.steps, self.fully_cached = program.steps, options.keep or options.wanted is None
        self._program, self._inputs, self._options = program, inputs, options
        self._original: Original = program.original
        self._values = None if options.wanted is None else self._values_for(options.wanted)
        self._wanted = {*(options.wanted or ())}
        self._with_changed_decisions: ProgramRun | None = None

    def _values_for(self, wanted: Collection[str]) -> _ProgramValues:
        """Return a cache for what the wanted values are computed from."""
        values = _ProgramValues(functools.cache(self._options.known), ValueCache({}), set())
        uses = Counter(name for node in self._pending(wanted, values) for name in self._needed(node))
        buffer = math.inf if self._options.keep else 0
        return replace(values, cache=ValueCache(uses, wanted, buffer=buffer))

    def get(self, name: str) -> Float64Value | None:
        """Return the float64 value of a value, without and with noise; None if there is none, as for a sequence."""
        try:
            both = None if name in self._options.unknown else self.computed(name)
        except ExportError as error:
            self.problem = str(error)
            return None
        if both is None or not all(isinstance(item, torch.Tensor) for item in both) or both[0].shape != both[1].shape:
            return None
        return Float64Value(both[0], both[1], self._unit_or_default(name))

    def get_with_changed_decisions(self, name: str) -> Float64Value | None:
        """Return a value whose noisy value is computed from the decisions that noise changed; None if there are none.

        It is computed by a further run, which begins with the first request.
        """
        if not self.changed_decisions:
            return None
        if self._with_changed_decisions is None:
            self._with_changed_decisions = self._again(change_decisions=True)
        return self._with_changed_decisions.get(name)

    def with_decisions(self, decisions: Mapping[str, torch.Tensor]) -> "ProgramRun":
        """Return a further run of the same call in which later values are computed from other decisions, by name.

        If any value may be requested in any order, decisions are known values, and what is computed from them is not
        known any more.
        """
        if self._options.wanted is not None:
            return self._again(forced=lambda name, value: self._decided(name, value, decisions.get(name)))
        following, pending = {*decisions}, [*decisions]
        while pending:
            found = {*self._original.readers.get(pending.pop(), ())} - following
            following |= found
            pending += found
        known = self._options.known
        return self._again(known=lambda name: decisions.get(name) if name in following else known(name))

    def _again(self, **changes: Any) -> "ProgramRun":
        """Return a run of the same call with some other options, for the values that are still wanted."""
        wanted = None if self._options.wanted is None else {*self._wanted}
        return ProgramRun(self._program, self._inputs, replace(self._options, wanted=wanted, **changes))

    def unit(self, name: str) -> float:
        """Return half a unit in the last place of a value in the model's dtype, relative; 0 if it has none."""
        return self._program.units.get(name, 0.0)

    def is_inner(self, name: str) -> bool:
        """Return whether a value is within an operation of the model, which does not return it.

        Without a PyTorch program, as of an ONNX program that is the reference, no operations are known.
        """
        return bool(self._program.eager_names) and name not in self._program.eager_names

    def reads(self, name: str) -> Sequence[str]:
        """Return the names of what a value is computed from."""
        return self._original.reads.get(name, ())

    def release(self, name: str) -> None:
        """Declare that a value will not be requested again."""
        if self._values is None:
            return
        self._values.cache.release(name)
        if not self.fully_cached:
            self._wanted.discard(name)
        if self._with_changed_decisions is not None:
            self._with_changed_decisions.release(name)

    def computed(self, name: str) -> Variants | None:
        """Return a value as it is computed: complex numbers as pairs, and a sequence as a list; None if it can't be.

        Raises:
            ExportError: an operation of the model can't be run, or a node takes longer than the time limit.
        """
        values = self._values or self._values_for([name])
        if name not in values.cache.values and values.cache.needs(name):
            for node in self._pending([name], values):
                self._compute(node, values)
        found = values.cache.values.get(name)
        return None if found is None else (*map(_in_graph, found),)

    def read(self, name: str) -> Variants | None:
        """Return what others read in place of a value (see `computed`)."""
        found = self.computed(name)
        return None if found is None else self._chosen(name, found)

    def _pending(self, names: Iterable[str], values: _ProgramValues) -> list[fx.Node | Node]:
        """Return the nodes that have to be computed for some values, in order."""
        order, visited, stack = dict[int, fx.Node | Node](), set[str](), [*names][::-1]
        while stack:
            name = stack[-1]
            node = self._node(name, values)
            if node is None or id(node) in values.done:
                stack.pop()
            elif name in visited:  # what it reads was on the stack above it, and is in order
                order[id(node)] = node
                stack.pop()
            else:
                visited.add(name)
                stack += (
                    item
                    for item in self._needed(node)
                    if item not in visited and not self._is_known(node, item, values)
                )
        return [*order.values()]

    def _node(self, name: str, values: _ProgramValues) -> fx.Node | Node | None:
        """Return what computes a value: an operation in PyTorch, or a node of the graph; None of inputs and weights."""
        operation, node = self._program.operations.get(name), self._original.graph.producer.get(name)
        if operation is None or (self._options.by_graph and node is not None and self._reads_inner(node, values)):
            return node
        return operation

    def _reads_inner(self, node: Node, values: _ProgramValues) -> bool:
        """Return whether a node reads a known value within an operation of the model (see `is_inner`)."""
        return any(self.is_inner(name) and values.known(name) is not None for name in node.reads)

    def _is_known(self, node: fx.Node | Node, name: str, values: _ProgramValues) -> bool:
        """Return whether a value that a node reads need not be computed any more."""
        return name in values.cache.values or self._known(node, name, values) is not None

    def _known(self, node: fx.Node | Node, name: str, values: _ProgramValues) -> torch.Tensor | None:
        """Return a value that a node reads and that is not computed; None if it has to be, or is a weight.

        Operations in PyTorch are given the inputs of the program in another way (see `_run`).
        """
        if isinstance(node, Node) and name in self._inputs:
            return complex_as_real(self._inputs[name])
        found = values.known(name)
        is_fit = found is None or isinstance(node, Node) or can_replace(self._program.operations[name], found)
        return found if is_fit else None

    def _compute(self, node: fx.Node | Node, values: _ProgramValues) -> None:
        """Compute a node, and keep those of its outputs that later nodes read or that were requested.

        Without `change_decisions`, a decision that differs between the exact and the noisy variant is recorded.
        """
        values.done.add(id(node))  # each is computed once, even if it fails
        results = self._evaluate(node, values) if isinstance(node, Node) else self._run(node, values)
        for name, both in results.items():
            if not self._options.change_decisions and len(both) > 1:
                first, second = map(_in_graph, both)
                if self.decides(name, first) and differ(first, second, self._unit_or_default(name)):
                    self.changed_decisions.add(name)
            if values.cache.needs(name):
                values.cache.put(name, both)
        values.cache.consume(self._needed(node))

    def _needed(self, node: fx.Node | Node) -> list[str]:
        """Return what has to be computed, or given, for a node: not the weights that it reads by other names.

        All of them would be in memory from the start of the run, in float64, until their last readers.
        """
        reads = _reads(node)
        if self._options.forced is not None or not isinstance(node, Node):
            return reads
        return [name for name in reads if name not in self._program.aliases]

    def _read(self, node: fx.Node | Node, name: str, values: _ProgramValues) -> Variants | None:
        """Return what a node reads of a value; None of a weight, or if the value can't be computed."""
        if (known := self._known(node, name, values)) is not None:
            return (known,) * (1 + self._options.noisy)
        found = values.cache.values.get(name)
        if found is None:
            return None
        return self._chosen(name, (*map(_in_graph, found),) if isinstance(node, Node) else found)

    def _chosen(self, name: str, both: Variants) -> Variants:
        """Return the variants of a computed value that the nodes after it read.

        They are the forced ones, if `RunOptions.forced` gives any. A noisy variant has the decisions of the exact one,
        except with `change_decisions`: so noise moves numbers, but selects no other ones.

        Args:
            name: the name of the value.
            both: its exact variant, and the noisy one if there is one.
        """
        forced = self._options.forced
        exact, *noisy = both if forced is None else (forced(name, variant) for variant in both)
        if self._options.change_decisions:
            return exact, *noisy
        return exact, *(self._decided(name, variant, exact) for variant in noisy)

    def _run(self, node: fx.Node, values: _ProgramValues) -> dict[str, Variants]:
        """Return the result of an operation in PyTorch by its name; after an error, a run computes no more."""
        reads = {name: self._read(node, name, values) for name in _reads(node)}
        if (self.problem and self._values is not None) or None in reads.values():
            return {}
        noises = (None, _noise(self._program.units))[: 1 + self._options.noisy]
        compute, found = self._original.float64.compute, []
        for index, add_noise in enumerate(noises):
            given = {name: both[index] for name, both in reads.items() if both is not None}
            found.append(compute(node.name, self._inputs, given, add_noise))
        return {node.name: (*found,)}

    def _evaluate(self, node: Node, values: _ProgramValues) -> dict[str, Variants]:
        """Return the outputs of an ONNX node by name; none if it is not supported, or reads what can't be computed."""
        add_noise = _noise(self._program.units, (*node.reads, *node.outputs))
        exact, noisy = dict[str, Any](), dict[str, Any]()
        for name in dict.fromkeys(node.reads):
            both = self._read(node, name, values)
            if both is None:
                if (weight := self._original.constant(self._program.aliases.get(name, name))) is None:
                    return {}
                both = (weight,) * (1 + self._options.noisy)
            exact[name], *others = map(in_float64, both)
            keeps_exact = _is_setting(node, name) or _is_whole_exponent(node, name, both[0])
            for item in others:
                noisy[name] = exact[name] if keeps_exact else add_noise(name, item)
        kinds = [(exact, None), (noisy, add_noise)][: 1 + self._options.noisy]
        found = [self._original.evaluate(node.name, read, noise, self._options.ties) for read, noise in kinds]
        self._options.observe(node, exact, found[0])
        names = (name for name in found[0] if all(name in outputs for outputs in found))
        return {name: (*(in_float64(outputs[name]) for outputs in found),) for name in names}

    def _decided(self, name: str, value: Any, other: torch.Tensor | None) -> Any:
        """Return a value with other decisions, if it has decisions of the same dtype and shape."""
        if other is None or not self.decides(name, value) or other.shape != value.shape:
            return value
        is_comparable = other.dtype == value.dtype or (other.is_floating_point() and value.is_floating_point())
        return decided(value, other, self._unit_or_default(name)) if is_comparable else value

    def _unit_or_default(self, name: str) -> float:
        """Return half a unit in the last place of a value, relative; that of float32 if it has none."""
        return self._program.units.get(name, _FLOAT32_UNIT)


def _aliases_of(graph: Graph) -> Mapping[str, str]:
    """Return the weights that nodes `Identity` return, by the names of what they return."""
    found: dict[str, str] = {}
    for node in graph.nodes:
        if node.op == "Identity" and (weight := found.get(node.inputs[0], node.inputs[0])) in graph.constants:
            found[node.outputs[0]] = weight
    return found


def _reads(node: fx.Node | Node) -> list[str]:
    """Return the names of the values that a node reads; of a PyTorch program, those that operations compute."""
    if isinstance(node, Node):
        return [*dict.fromkeys(node.reads)]
    return [item.name for item in node.all_input_nodes if item.op == "call_function"]


def _in_graph(value: Any) -> Any:
    """Return a value of a PyTorch program as it is in a graph: complex numbers as pairs, and a size as a tensor."""
    if type(value) is int:
        return torch.tensor(value)
    return complex_as_real(value) if isinstance(value, torch.Tensor) else value


def _units_of(original: Original) -> Units:
    """Return half a unit in the last place of each value, relative, by name.

    An input or weight that is only read to be cast to a finer dtype has the unit of that dtype: nothing is rounded to
    its own.
    """
    types, graph = original.types, original.graph
    readers = {name: [node.outputs[0] for node in graph.consumers.get(name, ())] for name in graph.inputs}
    readers |= {node.name: [user.name for user in node.users] for node in original.nodes}  # inputs, too, have nodes
    casts = {node.name for node in original.nodes if node.target == torch.ops.aten._to_copy.default}  # noqa: SLF001
    casts |= {name for node in graph.nodes if node.operator.movement == "cast" for name in node.outputs}
    readers |= {name: [node.outputs[0] for node in graph.consumers.get(name, ())] for name in graph.constants}
    leaves = {node.name for node in original.nodes if node.op == "placeholder"} | {*graph.inputs, *graph.constants}
    units = {name: unit for name, dtype in types.items() if (unit := unit_of(dtype))}
    for name in leaves & units.keys():
        if readers.get(name) and casts.issuperset(readers[name]):
            coarsest_cast = max(units.get(reader, 0.0) for reader in readers[name])  # 0: to integers alone
            units[name] = min(units[name], coarsest_cast or units[name])
    return units


def _steps_of(original: Original) -> frozenset[str]:
    """Return the names of the values, of the program and of its graph, that are constant but for jumps."""
    traced = (
        node.name for node in original.nodes if node.op == "call_function" and operator_of(str(node.target)).jumps
    )
    return frozenset(
        (*traced, *(name for node in original.graph.nodes if node.operator.jumps for name in node.outputs))
    )


def _noise(units: Units, others: Iterable[str] = ()) -> Callable[..., Any]:
    """Return a function that changes each number of a value by about half a unit in the last place, up or down.

    The function takes the name and the value, or a block of a large weight and where it begins (see `Interpreter`).

    Args:
        units: half a unit in the last place of each value, relative, by name.
        others: names of values; the largest of their units is that of a value that is not in `units`.
    """
    default = max((units[name] for name in others if name in units), default=_FLOAT32_UNIT)

    def add_noise(name: str, value: Any, start: int | None = None) -> Any:
        if isinstance(value, list):
            return [add_noise(f"{name}[{index}]", item) for index, item in enumerate(value)]
        if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
            return value
        seed = zlib.crc32(name.encode())  # the same for every reader
        return with_noise(value, units.get(name, default), seed=seed, start=start)

    return add_noise


def _is_setting(node: Node, name: str) -> bool:
    """Whether a value is a setting of a node, such as the scales of a `Resize`: noise may change the outputs' shape."""
    return any(node.inputs[at : at + 1] == (name,) for at in node.operator.settings)


def _is_whole_exponent(node: Node, name: str, tensor: torch.Tensor) -> bool:
    """Whether a value is the exponent of a power and has whole numbers; with noise, `(-2) ** 2` would be NaN."""
    at = node.operator.exponent
    is_exponent = at is not None and node.inputs[at : at + 1] == (name,) and tensor.is_floating_point()
    return is_exponent and torch.equal(tensor, tensor.round())
