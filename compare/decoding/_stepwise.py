"""`Stepwise`: a backend that runs a program with a cache step by step, and returns its values by position."""

import re
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest

import torch

from filch.export import Program
from filch.export.backends import Backend, Compiled, Observes, ReferenceLookup, Stage, isolate

from ..common._errors import CompareError
from ..results._rows import Row
from ._axes import Axes, StepSpans, shape_in_one_call, value_in_one_call
from ._parts import Parts
from ._positioned_row import PositionedRow

Values = Mapping[str, torch.Tensor]
PAST, PRESENT = "past_key_values.", "present."  # what the names of the cache begin with, as inputs and outputs
_GROWING = (".key", ".value")  # what the names end with that have a row for each token
_KEYS = 2  # their axis
_ENCODER = re.compile(r"encoder_|past_key_values\.\d+\.encoder\.")
TOKENS, MASK, LOGITS, LENGTH = "input_ids", "attention_mask", "logits", ".length"


@dataclass
class Stepwise:
    """Runs a program on whole sequences step by step, with its own cache; see `StepSpans.of`.

    It takes and returns what one call with all tokens takes and returns, so that each value can be compared with that
    of one call. Of a value with an axis of queries, each step computes some; of the keys and values in a cache, each
    step has all up to its own, of which the ones that are furthest from the reference are returned. Numbers of queries
    and later keys, which no step computes, are those of the reference. Without a reference, or if it has another shape
    or dtype, the program also makes one call, which takes its place. Values without an axis of tokens that change from
    step to step, such as sizes, are not returned.

    Args:
        backend: runs the program.
        first: the number of tokens of the first step.
        last: the number of tokens of the last step.
        slots: the number of slots of a static cache; 0 for a dynamic one.
        sequences: if one call has the steps in its rows (see `StepSpans.in_rows`), the number of sequences. Each step
            then gets the cache of that call, because in recurrent states rounding errors add up.

    Attributes:
        references: returns the references of the values that are observed, by name; None for one without.
        records: where each compared value is wrong, by stage, kind of row and name.
        spans: the steps of the last run.
        logits: what the last run returned, float in the shape [rows, length, words].
    """

    backend: Backend
    first: int
    last: int = 1
    slots: int = 0
    sequences: int = 0
    name: str = field(init=False)
    stages: tuple[Stage, ...] = field(init=False)
    references: ReferenceLookup = field(default=lambda _: None, init=False)
    records: dict[tuple[Stage, str, str], PositionedRow] = field(default_factory=dict, init=False)
    spans: StepSpans = field(default_factory=lambda: StepSpans(0, (), 0), init=False)
    logits: torch.Tensor | None = field(default=None, init=False)
    _places: dict[str, tuple[Axes, list[int]]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.name, self.stages = self.backend.name, self.backend.stages

    def compile(self, program: Program, *, optimize: bool) -> Compiled:
        """See `Backend.compile`."""
        compiled = self.backend.compile(program, optimize=optimize)
        return replace(compiled, handle=_StepwiseProgram(compiled, program, optimize))

    def run(self, compiled: Compiled, inputs: Values, watch: Collection[str] = ()) -> Values:
        """See `Backend.run`."""
        handle: _StepwiseProgram = compiled.handle
        if watch:
            wanted = {*watch, *compiled.graph.outputs}
            return {name: value for name, value in self._observe(handle, inputs, 0) if name in wanted}
        outputs = self._run_steps(handle, inputs)
        one_call = _OneCall(lambda: self.backend.run(handle.inner, inputs).items())
        joined = dict(self._joined(handle, outputs, one_call, lambda _: None))
        self.logits = joined.get(LOGITS)
        return joined

    def observe(self, compiled: Compiled, inputs: Values, *, buffer: int) -> Iterator[tuple[str, torch.Tensor]]:
        """See `Observes.observe`."""
        return self._observe(compiled.handle, inputs, buffer)

    def set_references(self, references: ReferenceLookup) -> None:
        """See `CompareOptions.on_references`."""
        self.references = references

    def record(self, row: Row, value: torch.Tensor, reference: torch.Tensor) -> None:
        """Record at which positions a value differs; see `CompareOptions.on_row`."""
        places = self._places.get(row.value)
        if places is not None and (value.numel() or value.shape != reference.shape):
            has_shape = value.shape == reference.shape
            positioned = PositionedRow.of if has_shape else PositionedRow.of_other_shape
            self.records[row.stage, row.kind, row.value] = positioned(row, value, reference, *places)

    def isolate(
        self,
        compiled: Compiled,
        inputs: Values,  # noqa: ARG002  those of the steps are known
        references: ReferenceLookup,
        *,
        nodes: Collection[str] | None = None,
        buffer: int,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """See `Isolates.isolate`: in each step, the nodes read the numbers of its positions."""
        handle: _StepwiseProgram = compiled.handle
        known: dict[str, torch.Tensor | None] = {}

        def whole(name: str) -> torch.Tensor | None:
            if name not in known:
                known[name] = references(name) if name in handle.axes else None
            return known[name]

        def part(step: int) -> ReferenceLookup:
            return lambda name: None if (item := whole(name)) is None else handle.axes[name].part(item, step)

        runs = (
            isolate(
                self.backend,
                handle.program,
                handle.inner,
                step,
                part(index),
                optimize=handle.optimize,
                nodes=nodes,
                buffer=buffer + 2 * handle.weights,
            )
            for index, step in enumerate(handle.steps())
        )
        for name, parts in _same_nodes(runs):
            expected = whole(name)
            if expected is not None:
                yield name, handle.axes[name].joined(expected, parts).value

    def _observe(self, handle: "_StepwiseProgram", inputs: Values, buffer: int) -> Iterator[tuple[str, torch.Tensor]]:
        if not handle.inputs:
            raise CompareError("a program with a cache is run before its values are observed")
        parts: dict[str, Parts] = {}
        for step in handle.steps():
            for name, tensor in self._values(handle, step, buffer):
                parts.setdefault(name, Parts()).append(tensor)
        one_call = _OneCall(lambda: self._values(handle, inputs, buffer))
        yield from self._joined(handle, parts, one_call, self.references)

    def _values(self, handle: "_StepwiseProgram", inputs: Values, buffer: int) -> Iterable[tuple[str, torch.Tensor]]:
        """Return the values of one run of all tokens or of one step, in the order of execution.

        Args:
            handle: the program that was compiled.
            inputs: the inputs of the run, by name.
            buffer: how many bytes of values a backend that can observe may hold (see `Observes.observe`).
        """
        if isinstance(self.backend, Observes):
            # With less room than the weights take, some backends load them again for each run.
            return self.backend.observe(handle.inner, inputs, buffer=buffer + 2 * handle.weights)
        graph = handle.inner.graph
        values = self.backend.run(handle.inner, inputs, graph.producer)
        return ((name, values[name]) for node in graph.nodes for name in node.outputs if name in values)

    def _run_steps(self, handle: "_StepwiseProgram", inputs: Values) -> dict[str, Parts]:
        """Return the outputs of the steps by name; the cache of the next one is what a step returns."""
        shape = inputs[TOKENS].shape
        in_rows = bool(self.sequences)
        handle.spans = self.spans = (
            StepSpans.in_rows_of(self.sequences, shape[0] // self.sequences)
            if in_rows
            else StepSpans.of(shape, self.first, self.last, self.slots)
        )
        first = {name: tensor for name, tensor in inputs.items() if name.startswith(PAST) and not in_rows}
        given = [
            {name: self._part(name, item, start, end) for name, item in inputs.items() if name not in first}
            for start, end in handle.spans.all
        ]
        outputs: dict[str, Parts] = {}
        cache: Values = first
        for step in given:
            results = self.backend.run(handle.inner, {**step, **cache})
            cache = {name: _next_state(name, item, results) for name, item in cache.items()}
            for name, tensor in results.items():
                outputs.setdefault(name, Parts()).append(tensor)
        states = {name: _states(name, item, outputs, len(given)) for name, item in first.items()}
        handle.inputs = [
            {**step, **{name: items[index] for name, items in states.items()}} for index, step in enumerate(given)
        ]
        return outputs

    def _part(self, name: str, tensor: torch.Tensor, start: int, end: int) -> torch.Tensor:
        if self.sequences:
            rows = tensor.reshape(self.sequences, -1, *tensor.shape[1:])[:, start]
            if self.slots:
                return rows
            if name == MASK:
                return rows[:, max(rows.shape[1] - end, 0) :]
            return rows[:, :, max(rows.shape[2] - start, 0) :] if name.endswith(_GROWING) else rows
        if is_of_encoder(name):
            return tensor
        if name != MASK:
            return tensor[:, start:end]
        if not self.slots:
            return tensor[:, :end]
        mask = tensor.clone()
        mask[:, end:] = 0
        return mask

    def _joined(
        self, handle: "_StepwiseProgram", parts: dict[str, Parts], one_call: "_OneCall", references: ReferenceLookup
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the values of one call with the numbers of each step in their places; `parts` is emptied."""
        spans = handle.spans
        for name in [*parts]:
            items = parts.pop(name).tensors
            is_output = name in handle.inner.graph.outputs
            is_left_out = name in (handle.sizes if spans.in_rows else handle.past)
            if len(items) < len(spans.all) or (is_left_out and not is_output):
                continue
            expected = _known_value(spans, items, name, references)
            expected = one_call.get(name, parts) if expected is None else expected
            if expected is None:
                continue
            axes = Axes.of(spans, expected, items, is_fixed=name in handle.fixed)
            if axes is not None:
                joined = axes.joined(expected, items)
                handle.axes[name], self._places[name] = axes, (axes, joined.positions)
                yield name, joined.value
                continue
            if not is_output:
                continue
            if (step := _other_size(spans, name, expected, items)) is not None:
                self._places[name] = Axes(spans, (), ()), [spans.all[step][0]]
                yield name, items[step]
            elif items[-1].shape == expected.shape:
                steps = zip(spans.all, items, strict=True)
                wrong = (start for (start, end), item in steps if name.endswith(LENGTH) and int(item) != end)
                self._places[name] = Axes(spans, (), ()), [next(wrong, spans.length - 1)]
                yield name, items[-1]  # such as the number of tokens in a cache


class _OneCall:
    """The values of one call with all tokens, which is only made if one of them is asked for.

    Args:
        compute: returns the values in the order in which they are asked for.
    """

    def __init__(self, compute: Callable[[], Iterable[tuple[str, torch.Tensor]]]) -> None:
        self._pending = (item for _ in range(1) for item in compute())
        self._skipped: dict[str, torch.Tensor] = {}

    def get(self, name: str, later: Container[str]) -> torch.Tensor | None:
        """Return a value, None if there is none; of values before it, those in `later` can be asked for, too."""
        if name in self._skipped:
            return self._skipped.pop(name)
        for found, tensor in self._pending:
            if found == name:
                return tensor
            if found in later:
                self._skipped[found] = tensor
        return None


@dataclass
class _StepwiseProgram:
    """A compiled program, and what is known of its last run.

    Attributes:
        inner: the program as compiled by the backend.
        program: the program.
        optimize: see `Backend.compile`.
        spans: the steps of the run.
        inputs: their inputs; see `steps`.
        axes: the axes of the values, by name.
    """

    inner: Compiled
    program: Program
    optimize: bool
    spans: StepSpans = field(default_factory=lambda: StepSpans(0, (), 0))
    inputs: list[Values] = field(default_factory=list)
    axes: dict[str, Axes] = field(default_factory=dict)

    def steps(self) -> Iterator[Values]:
        """Yield the inputs of each step, of which states may be views of later ones."""
        return ({name: tensor.contiguous() for name, tensor in step.items()} for step in self.inputs)

    @cached_property
    def weights(self) -> int:
        """The size of the program's weights in bytes."""
        tensors = (value.const_value for value in self.program.model.graph.initializers.values())
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    @cached_property
    def past(self) -> frozenset[str]:
        """The values that are computed from the cache alone, before it has the tokens of a step."""
        graph = self.inner.graph
        cache = [name for name in graph.inputs if name.startswith(PAST) and not is_of_encoder(name)]
        others = [name for name in graph.inputs if name not in cache]
        return frozenset(self._computed_from(cache)) - graph.computed_from(others)

    @cached_property
    def sizes(self) -> frozenset[str]:
        """The integers that are computed from shapes alone, such as the indices of all rows."""
        graph = self.inner.graph
        types = {name: getattr(torch, value.dtype or "", torch.float32) for name, value in graph.values.items()}
        unknown = graph.producer.keys() - self._computed_from(graph.inputs)
        return frozenset(name for name in unknown if not types[name].is_floating_point)

    @cached_property
    def fixed(self) -> frozenset[str]:
        """The values that are computed from the states of an encoder alone."""
        inputs = self.inner.graph.inputs
        encoded = [name for name in inputs if is_of_encoder(name)]
        others = [name for name in inputs if name not in encoded]
        return frozenset(self._computed_from(encoded) - self._computed_from(others))

    def _computed_from(self, inputs: Iterable[str]) -> set[str]:
        """Return the inputs, and what is computed from their numbers and not only from their shapes."""
        found = {*inputs}
        for node in self.inner.graph.nodes:
            if not node.operator.reads_shape and not found.isdisjoint(node.reads):
                found.update(node.outputs)
        return found


def is_of_encoder(name: str) -> bool:
    """Return whether an input has what an encoder computed, which is the same in each step."""
    return _ENCODER.match(name) is not None


def _known_value(
    spans: StepSpans, parts: Sequence[torch.Tensor], name: str, references: ReferenceLookup
) -> torch.Tensor | None:
    """Return a value of one call as far as it is known without making the call: its reference, or all of its parts."""
    shape = shape_in_one_call(spans, parts)
    reference = None if shape is None else references(name)
    if reference is not None and (reference.shape, reference.dtype) == (shape, parts[0].dtype):
        return reference
    return value_in_one_call(spans, parts)


def _other_size(spans: StepSpans, name: str, whole: torch.Tensor, parts: Sequence[torch.Tensor]) -> int | None:
    """Return the first step with logits of other tokens, or that leaves another number of keys in the cache.

    None if each has as many as its tokens need.
    """
    if name == LOGITS and not spans.in_rows:
        axis, counts = 1, spans.counts
    elif name.startswith(PRESENT) and name.endswith(_GROWING) and not spans.slots and whole.dim() > _KEYS:
        axis, counts = _KEYS, [spans.keys_of(end, whole.shape[_KEYS])[1] for _, end in spans.all]
    else:
        return None
    sizes = [part.shape[axis] if part.dim() > axis else None for part in parts]
    return next((step for step, pair in enumerate(zip(sizes, counts, strict=True)) if pair[0] != pair[1]), None)


def _next_state(name: str, past: torch.Tensor, outputs: Values) -> torch.Tensor:
    """Return what the next step gets as an input of the cache; a program may leave out what an encoder computed."""
    present = PRESENT + name.removeprefix(PAST)
    return past if present not in outputs and is_of_encoder(name) else outputs[present]


def _states(name: str, first: torch.Tensor, outputs: Mapping[str, Parts], count: int) -> list[torch.Tensor]:
    """Return what each of some steps gets as an input of the cache."""
    parts = outputs.get(PRESENT + name.removeprefix(PAST))
    return [first] * count if parts is None else [first, *parts.tensors[:-1]]


def _same_nodes(
    runs: Iterable[Iterable[tuple[str, torch.Tensor]]],
) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Yield the values of the nodes that run in isolation in each step, as long as these are the same nodes.

    A backend that compiles again for other shapes may fuse differently. Then names stand for other values from there
    on, which are not judged by their nodes.
    """
    for items in zip_longest(*map(list, runs), fillvalue=None):
        known = [item for item in items if item is not None]
        if len(known) < len(items) or len({name for name, _ in known}) > 1:
            return
        yield known[0][0], [tensor for _, tensor in known]
