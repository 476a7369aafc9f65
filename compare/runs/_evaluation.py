"""Evaluate an exported program in float64, value by value: of the whole model, and of each node in isolation."""

import math
import zlib
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from filch.export import ExportError, Graph, Node, Original, Program
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
# A value in float64, and the same computed with noise: tensors, or lists of these, which are sequences of ONNX.
ExactAndNoisy = tuple[Any, Any]


class Float64Evaluator:
    """Evaluate the values of a program in float64.

    Args:
        program: the program.

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
            self._units = _units_of(original)
        except ExportError as error:
            raise CompareError(f"float64 needs the exported program: {error}") from error
        self._original, self._random = original, original.unpredictable
        self._steps = _steps_of(original)

    def of(self, inputs: Mapping[str, torch.Tensor], wanted: Collection[str], *, keep: bool) -> "Float64Values":
        """Return the values of one call of the model (see `Float64Run`)."""
        args = self._original, inputs, self._units, self._random.random, self._steps
        return Float64Run(*args, wanted=wanted, keep=keep)

    def isolated(
        self,
        inputs: Mapping[str, torch.Tensor],
        reference: TensorLookup,
        ties: Mapping[int, int] = MappingProxyType({}),
        *,
        by_graph: bool = False,
    ) -> "Float64Values":
        """Return the outputs of each node on its reference inputs in one call (see `Float64NodeRun`)."""
        args = self._original, inputs, self._units, self._random.replaced, self._steps
        return Float64NodeRun(*args, reference=reference, ties=ties, by_graph=by_graph)


class _ProgramValues(Float64Values):
    """The values of one call of a program.

    Args:
        original: the exported program.
        inputs: the inputs of the call, by name.
        units: half a unit in the last place of each value, relative, by name: the root mean square of its noise.
        unknown: the names of values without a float64 value.
        steps: see `Float64Values`.
        change_decisions: whether noisy values are computed from the decisions that noise changed (see `Decisions`).
    """

    def __init__(
        self,
        original: Original,
        inputs: Mapping[str, torch.Tensor],
        units: Units,
        unknown: Collection[str],
        steps: frozenset[str],
        *,
        change_decisions: bool,
    ) -> None:
        super().__init__()
        self.steps = steps
        self._change_decisions = change_decisions
        self._original, self._inputs, self._units, self._unknown = original, inputs, units, unknown
        self._eager_names = frozenset(original.names)
        self._ties: Mapping[int, int] = {}

    def get(self, name: str) -> Float64Value | None:
        """See `Float64Values.get`."""
        try:
            both = None if name in self._unknown else self._get(name)
        except ExportError as error:
            self.problem = str(error)
            return None
        if both is None or isinstance(both[0], list) or both[0].shape != both[1].shape:
            return None
        return Float64Value(*both, self._unit_or_default(name))

    def unit(self, name: str) -> float:
        """See `Float64Values.unit`."""
        return self._units.get(name, 0.0)

    @abstractmethod
    def _get(self, name: str) -> ExactAndNoisy | None: ...

    def is_inner(self, name: str) -> bool:
        """See `Float64Values.is_inner`."""
        return bool(self._eager_names) and name not in self._eager_names

    def reads(self, name: str) -> Sequence[str]:
        """See `Float64Values.reads`."""
        return self._original.reads.get(name, ())

    def _evaluate(self, node: Node, lookup: Callable[[str], ExactAndNoisy | None]) -> dict[str, ExactAndNoisy]:
        """Return the outputs of an ONNX node by name; `lookup` returns what it reads, except inputs and weights."""
        add_noise = _noise(self._units, (*node.reads, *node.outputs))
        exact, noisy = {}, {}
        for name in dict.fromkeys(node.reads):
            known = complex_as_real(self._inputs[name]) if name in self._inputs else None
            both = lookup(name) if known is None else (known, known)
            if both is None:
                if (weight := self._original.constant(name)) is None:
                    return {}
                both = weight, weight
            exact[name], changed = map(in_float64, both)
            if not self._change_decisions:
                changed = self._decided(name, changed, exact[name])
            keeps_exact = _is_setting(node, name) or _is_whole_exponent(node, name, both[0])
            noisy[name] = exact[name] if keeps_exact else add_noise(name, changed)
        evaluate = partial(self._original.evaluate, ties=self._ties) if self._ties else self._original.evaluate
        outputs, noisy_outputs = evaluate(node.name, exact), evaluate(node.name, noisy, add_noise)
        names = outputs.keys() & noisy_outputs.keys()
        return {name: (in_float64(outputs[name]), in_float64(noisy_outputs[name])) for name in names}

    def _decided(self, name: str, value: Any, other: torch.Tensor | None) -> Any:
        """Return a value with other decisions, if it has decisions of the same dtype and shape."""
        if other is None or not self.decides(name, value) or other.shape != value.shape:
            return value
        is_comparable = other.dtype == value.dtype or (other.is_floating_point() and value.is_floating_point())
        return decided(value, other, self._unit_or_default(name)) if is_comparable else value

    def _unit_or_default(self, name: str) -> float:
        return self._units.get(name, _FLOAT32_UNIT)


class Float64Run(_ProgramValues):
    """The values of one call of a program, each computed from earlier values in float64.

    Request them roughly in program order. Operations run in PyTorch; values inside an operation's ONNX decomposition
    are computed from those, node by node.

    Args:
        *args: see `_ProgramValues`.
        wanted: the names of the values that will be requested.
        keep: whether to keep all values for a second pass.
        change_decisions: see `_ProgramValues`.
        decisions: the decisions that replace those of float64 (see `Float64Values.with_decisions`).
    """

    def __init__(
        self,
        *args: Any,
        wanted: Collection[str],
        keep: bool,
        change_decisions: bool = False,
        decisions: Mapping[str, torch.Tensor] = MappingProxyType({}),
    ) -> None:
        super().__init__(*args, change_decisions=change_decisions)
        self._decisions = decisions
        self.fully_cached = keep
        self._wanted = {*wanted}
        self._with_changed_decisions: Float64Run | None = None
        nodes = self._decomposition_nodes(wanted)
        uses = Counter(name for node in nodes for name in {*node.reads})
        self._cache = ValueCache[ExactAndNoisy](uses, wanted, buffer=math.inf if keep else 0)
        self._producers = {name: node for node in nodes for name in node.outputs if name}
        self._eager = self._walk((uses.keys() | self._wanted) & self._eager_names)

    def get_with_changed_decisions(self, name: str) -> Float64Value | None:
        """See `Float64Values.get_with_changed_decisions`: a further run, which begins with the first request."""
        if not self.changed_decisions:
            return None
        if self._with_changed_decisions is None:
            self._with_changed_decisions = self._further_run(change_decisions=True)
        return self._with_changed_decisions.get(name)

    def with_decisions(self, decisions: Mapping[str, torch.Tensor]) -> "Float64Run":
        """See `Float64Values.with_decisions`: a further run, which begins with the first request."""
        return self._further_run(decisions=decisions)

    def _further_run(self, **options: Any) -> "Float64Run":
        args = self._original, self._inputs, self._units, self._unknown, self.steps
        return Float64Run(*args, wanted=self._wanted, keep=self.fully_cached, **options)

    def release(self, name: str) -> None:
        """See `Float64Values.release`."""
        self._cache.release(name)
        if not self.fully_cached:
            self._wanted.discard(name)
        if self._with_changed_decisions is not None:
            self._with_changed_decisions.release(name)

    def _walk(self, names: Collection[str]) -> Iterator[tuple[str, ExactAndNoisy]]:
        """Yield values by name, as soon as they are computed, and the decisions that they are computed from."""
        decisions = {name for name, dtype in self._original.types.items() if not unit_of(dtype)} | self.steps
        needed = {*names}
        for node in reversed(self._original.nodes):
            if node.name in needed:
                needed.update(item.name for item in node.all_input_nodes)
        if not needed:  # the reference is an ONNX program
            return
        walk, wanted = self._original.float64.walk, {*names, *(decisions & needed & self._eager_names)}
        exact_decisions: dict[str, torch.Tensor] = {}

        def chosen(name: str, value: torch.Tensor) -> Any:
            return self._chosen(name, self._decided(name, value, exact_decisions.get(name)))

        exact = walk(self._inputs, wanted=wanted, replace=chosen)
        noisy = walk(
            self._inputs,
            wanted=wanted,
            read=_noise(self._units),
            replace=None if self._change_decisions else chosen,
        )
        for (name, value), (_, noisy_value) in zip(exact, noisy, strict=True):
            exact_decisions.clear()
            if self.decides(name, value):
                exact_decisions[name] = value
            yield name, (complex_as_real(value), complex_as_real(noisy_value))

    def _chosen(self, name: str, value: Any) -> Any:
        """Return what later values are computed from in place of a value."""
        return self._decided(name, value, self._decisions.get(name))

    def _decomposition_nodes(self, wanted: Collection[str]) -> list[Node]:
        """Return the ONNX nodes that compute the wanted values which PyTorch does not compute, in order."""
        graph, needed = self._original.graph, {*wanted}
        available = {*self._eager_names, *graph.inputs, *graph.constants}
        nodes = []
        for node in reversed(graph.nodes):
            if any(name in needed and name not in available for name in node.outputs):
                nodes.append(node)
                needed.update(node.reads)
        return nodes[::-1]

    def _get(self, name: str) -> ExactAndNoisy | None:
        if name not in self._cache.values and self._cache.needs(name):
            if name in self._eager_names:
                self._advance(name)
            else:
                for node in self._pending(name):
                    self._compute(node)
        return self._cache.values.get(name)

    def _pending(self, name: str) -> Sequence[Node]:
        """Return the nodes that have to be computed for a value, in order: a node may stand for hundreds of them."""
        return _between(name, self._producers, self._original.graph, lambda read: read in self._cache.values)

    def _advance(self, name: str) -> None:
        """Run the program until it has computed a value; after an error it computes nothing more."""
        try:
            while name not in self._cache.values and (item := next(self._eager, None)):
                self._put(*item)
        except ExportError as error:
            self.problem, self._eager = str(error), iter(())

    def _compute(self, node: Node) -> None:
        for name, both in self._evaluate(node, self._read).items():
            self._put(name, both)
        self._cache.consume({*node.reads})
        for name in node.outputs:  # compute each node once, even if it failed
            self._producers.pop(name, None)

    def _read(self, name: str) -> ExactAndNoisy | None:
        both = self._get(name)
        return None if both is None else (self._chosen(name, both[0]), self._chosen(name, both[1]))

    def _put(self, name: str, both: ExactAndNoisy) -> None:
        if self.decides(name, both[0]) and differ(*both, self._unit_or_default(name)):
            self.changed_decisions.add(name)
        if self._cache.needs(name):
            self._cache.put(name, both)


class Float64NodeRun(_ProgramValues):
    """Values computed from reference inputs, each independently and in any order.

    Args:
        *args: see `_ProgramValues`.
        reference: returns the reference of a value by its name, in its own dtype; None has it computed from what its
            node reads.
        ties: see `filch.export.operators.NodeCall`.
        by_graph: whether the graph's nodes compute what reads a value within an operation of the model, if that has a
            reference; else the operation does.
    """

    def __init__(
        self,
        *args: Any,
        reference: TensorLookup,
        ties: Mapping[int, int] = MappingProxyType({}),
        by_graph: bool = False,
    ) -> None:
        super().__init__(*args, change_decisions=True)
        self._reference, self._ties, self._by_graph = reference, ties, by_graph

    def release(self, name: str) -> None:
        """See `Float64Values.release`: does nothing, because no value is cached."""

    def with_decisions(self, decisions: Mapping[str, torch.Tensor]) -> "Float64NodeRun":
        """See `Float64Values.with_decisions`: they are references, and what is computed from them has none."""
        following, users = {*decisions}, defaultdict[str, list[str]](list)
        for user, reads in self._original.reads.items():
            for read in reads:
                users[read].append(user)
        pending = [*decisions]
        while pending:
            found = {*users[pending.pop()]} - following
            following |= found
            pending += found

        def reference(name: str) -> torch.Tensor | None:
            return decisions.get(name) if name in following else self._reference(name)

        args = self._original, self._inputs, self._units, self._unknown, self.steps
        return Float64NodeRun(*args, reference=reference, ties=self._ties, by_graph=self._by_graph)

    def _reads_inner(self, name: str) -> bool:
        node = self._original.graph.producer.get(name) if self._by_graph else None
        return node is not None and any(
            self.is_inner(read) and self._reference(read) is not None for read in node.reads
        )

    def _get(self, name: str) -> ExactAndNoisy | None:
        if name in self._eager_names and not self._reads_inner(name):
            run, reads = self._original.float64.node, (None, _noise(self._units))
            exact, noisy = (run(name, self._inputs, self._reference, read) for read in reads)
            both = isinstance(exact, torch.Tensor) and isinstance(noisy, torch.Tensor)
            return (complex_as_real(exact), complex_as_real(noisy)) if both else None
        graph = self._original.graph
        known: dict[str, ExactAndNoisy] = {}

        def is_known(read: str) -> bool:
            if read not in known and (found := self._known(read)) is not None:
                known[read] = found
            return read in known or read in self._eager_names

        for node in _between(name, graph.producer, graph, is_known):
            known = self._evaluate(node, known.get) | known
        return known.get(name)

    def _known(self, name: str) -> ExactAndNoisy | None:
        """Return the reference of a value, or what the program computes; None has it computed by nodes of the graph."""
        reference = self._reference(name)
        if reference is None:
            return self._get(name) if name in self._eager_names else None
        return reference, reference


def _between(name: str, producers: Mapping[str, Node], graph: Graph, is_known: Callable[[str], bool]) -> Sequence[Node]:
    """Return the nodes among `producers` that compute a value from known ones, in the order of the graph."""
    pending, found = [name], dict[str, Node]()
    while pending:
        node = producers.get(pending.pop())
        if node is not None and node.name not in found:
            found[node.name] = node
            pending += [read for read in node.reads if not is_known(read)]
    return sorted(found.values(), key=lambda node: graph.node_indices[node.name])


def _units_of(original: Original) -> Units:
    """Return half a unit in the last place of each value, relative, by name.

    An input or weight that is only read to be cast to a finer dtype has the unit of that dtype: nothing is rounded to
    its own.
    """
    types, graph = original.types, original.graph
    readers = {name: [node.outputs[0] for node in graph.consumers.get(name, ())] for name in graph.inputs}
    readers |= {node.name: [user.name for user in node.users] for node in original.nodes}
    casts = {node.name for node in original.nodes if node.target == torch.ops.aten._to_copy.default}  # noqa: SLF001
    casts |= {name for node in graph.nodes if node.operator.movement == "cast" for name in node.outputs}
    readers |= {name: [node.outputs[0] for node in graph.consumers.get(name, ())] for name in graph.constants}
    leaves = {node.name for node in original.nodes if node.op == "placeholder"} | {*graph.inputs, *graph.constants}
    units = {name: unit for name, dtype in types.items() if (unit := unit_of(dtype))}
    for name in leaves & units.keys():
        if readers.get(name) and casts.issuperset(readers[name]):
            finest = max(units.get(reader, 0.0) for reader in readers[name])
            units[name] = min(units[name], finest or units[name])
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

    The function takes the name and the value, or a block of a large weight and where it begins (see `walk_eager`).

    Args:
        units: see `_ProgramValues`.
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
