"""`Stepwise`: a backend that runs a program with a cache step by step, and returns its values by position."""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial

import torch

from filch.export import Program
from filch.export.backends import Backend, Compiled, Observes, ReferenceLookup, Stage, isolate

from ..common._errors import CompareError
from ._axes import Axes, Steps, shape_in_one_call, value_in_one_call
from ._positioned_row import PositionedRows

Values = Mapping[str, torch.Tensor]
PAST, PRESENT = "past_key_values.", "present."  # what the names of the cache begin with, as inputs and outputs
_GROWING = (".key", ".value")  # what the names end with that have a row for each token
_KEYS = 2  # their axis
_ENCODER = re.compile(r"encoder_|past_key_values\.\d+\.encoder\.")
_SMALL = 2**16  # bytes of an equal tensor that may be kept in each step: to compare it with the last one takes time
TOKENS, MASK, LOGITS, LENGTH = "input_ids", "attention_mask", "logits", ".length"


@dataclass
class Stepwise:
    """Runs a program on whole sequences step by step, with its own cache; see `Steps.of`.

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
        sequences: if one call has the steps in its rows (see `Steps.in_rows`), the number of sequences. Each step
            then gets the cache of that call, because in recurrent states rounding errors add up.

    Attributes:
        references: returns the references of the values that are observed, by name; None for one without.
        positions: the positions of the tokens of what was returned, and where each compared value is wrong.
        steps: the steps of the last run.
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
    positions: PositionedRows = field(default_factory=PositionedRows, init=False)
    steps: Steps = field(default_factory=lambda: Steps(0, (), 0), init=False)
    logits: torch.Tensor | None = field(default=None, init=False)

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

        @cache
        def whole_reference(name: str) -> torch.Tensor | None:
            return references(name) if name in handle.axes else None

        def reference_in_step(step: int, name: str) -> torch.Tensor | None:
            whole = whole_reference(name)
            return None if whole is None else handle.axes[name].piece(whole, step)

        runs = (
            isolate(
                self.backend,
                handle.program,
                handle.inner,
                step_inputs,
                partial(reference_in_step, step),
                optimize=handle.optimize,
                nodes=nodes,
                buffer=buffer + 2 * handle.weights,
            )
            for step, step_inputs in enumerate(handle.inputs_of_steps())
        )
        for name, in_steps in _same_nodes(runs):
            if (whole := whole_reference(name)) is not None:
                yield name, handle.axes[name].joined(whole, in_steps).value

    def _observe(self, handle: "_StepwiseProgram", inputs: Values, buffer: int) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the values of the steps of the last run, joined, in the order of execution; see `observe`."""
        if not handle.inputs:
            raise CompareError("a program with a cache is run before its values are observed")
        values = defaultdict[str, StepTensors](StepTensors)
        for step_inputs in handle.inputs_of_steps():
            for name, tensor in self._values(handle, step_inputs, buffer):
                values[name].append(tensor)
        one_call = _OneCall(lambda: self._values(handle, inputs, buffer))
        yield from self._joined(handle, values, one_call, self.references)

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

    def _run_steps(self, handle: "_StepwiseProgram", inputs: Values) -> "dict[str, StepTensors]":
        """Return the outputs of the steps by name; the cache of the next one is what a step returns."""
        shape = inputs[TOKENS].shape
        if self.sequences:
            steps = Steps.in_rows_of(self.sequences, shape[0] // self.sequences)
        else:
            steps = Steps.of(shape, self.first, self.last, self.slots)
        handle.steps = self.steps = steps
        first_cache = {name: tensor for name, tensor in inputs.items() if name.startswith(PAST) and not steps.in_rows}
        given = [
            {name: self._input_of_step(name, item, *span) for name, item in inputs.items() if name not in first_cache}
            for span in steps.spans
        ]
        outputs = defaultdict[str, StepTensors](StepTensors)
        cache: Values = first_cache
        for step_inputs in given:
            results = self.backend.run(handle.inner, {**step_inputs, **cache})
            cache = {name: _next_state(name, item, results) for name, item in cache.items()}
            for name, tensor in results.items():
                outputs[name].append(tensor)
        states = {name: _states(name, item, outputs, len(given)) for name, item in first_cache.items()}
        handle.inputs = [
            step_inputs | {name: items[index] for name, items in states.items()}
            for index, step_inputs in enumerate(given)
        ]
        return outputs

    def _input_of_step(self, name: str, tensor: torch.Tensor, start: int, end: int) -> torch.Tensor:
        """Return what a step gets of an input of one call.

        Args:
            name: the name of the input.
            tensor: the input of one call.
            start: the first position of the step.
            end: the position after its last one.
        """
        if self.sequences:
            of_step = tensor.reshape(self.sequences, -1, *tensor.shape[1:])[:, start]
            if self.slots:
                return of_step
            if name == MASK:  # in a row, the tokens so far are the last ones
                return of_step[:, max(of_step.shape[1] - end, 0) :]
            return of_step[:, :, max(of_step.shape[2] - start, 0) :] if name.endswith(_GROWING) else of_step
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
        self,
        handle: "_StepwiseProgram",
        values: "dict[str, StepTensors]",
        one_call: "_OneCall",
        references: ReferenceLookup,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the values of one call with the numbers of each step in their places.

        Args:
            handle: the program that was compiled.
            values: the values of the steps by name; it is emptied, as they take much memory.
            one_call: the values of one call with all tokens.
            references: returns the reference of a value.
        """
        steps = handle.steps
        for name in [*values]:
            in_steps = values.pop(name).tensors
            is_output = name in handle.inner.graph.outputs
            # They depend on no token of the step, so that they are compared only if the program returns them.
            is_left_out = name in (handle.sizes if steps.in_rows else handle.past)
            if len(in_steps) < len(steps.spans) or (is_left_out and not is_output):
                continue
            whole = _known_value(steps, in_steps, name, references)
            whole = one_call.get(name, values) if whole is None else whole
            axes = None if whole is None else Axes.of(steps, whole, in_steps, is_fixed=name in handle.fixed)
            if whole is not None and axes is not None:
                joined = axes.joined(whole, in_steps)
                handle.axes[name], self.positions.of_tokens[name] = axes, (axes, joined.positions)
                yield name, joined.value
            elif whole is not None and is_output:
                judged = _judged_step(steps, name, whole, in_steps)
                if judged is not None:
                    position, tensor = judged
                    self.positions.of_tokens[name] = Axes(steps, (), ()), [position]
                    yield name, tensor


class _OneCall:
    """The values of one call with all tokens, which is only made if one of them is asked for.

    Args:
        compute: returns the values in the order in which they are asked for.
    """

    def __init__(self, compute: Callable[[], Iterable[tuple[str, torch.Tensor]]]) -> None:
        self._pending = (item for _ in range(1) for item in compute())  # calls `compute` when it is first iterated
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
        steps: the steps of the run.
        inputs: their inputs; see `inputs_of_steps`.
        axes: the axes of the values, by name.
    """

    inner: Compiled
    program: Program
    optimize: bool
    steps: Steps = field(default_factory=lambda: Steps(0, (), 0))
    inputs: list[Values] = field(default_factory=list)
    axes: dict[str, Axes] = field(default_factory=dict)

    def inputs_of_steps(self) -> Iterator[Values]:
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


class StepTensors:
    """The tensors of a value in the steps so far.

    The keys in a cache grow from step to step. A tensor with which that of the next step begins is a view of it, so
    that all steps take the memory of the last one.
    """

    def __init__(self) -> None:
        self._parts: list[torch.Tensor | tuple[int, int]] = []  # or the axis and the size of a view of the next one

    def __len__(self) -> int:
        return len(self._parts)

    def append(self, tensor: torch.Tensor) -> None:
        """Add the tensor of the next step, which must not be changed any more."""
        last = self._parts[-1] if self._parts else None
        if isinstance(last, torch.Tensor) and last.dtype == tensor.dtype:
            axis = _growing_axis(last, tensor)
            if axis is not None and torch.equal(tensor.narrow(axis, 0, last.shape[axis]), last):
                self._parts[-1] = axis, last.shape[axis]
        self._parts.append(tensor)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensor of each step."""
        found: list[torch.Tensor] = []
        for part in reversed(self._parts):
            found.append(part if isinstance(part, torch.Tensor) else found[-1].narrow(part[0], 0, part[1]))
        return found[::-1]


def _growing_axis(last: torch.Tensor, tensor: torch.Tensor) -> int | None:
    """Return the axis in which a tensor may begin with the last one; None if there is no such axis."""
    if last.dim() != tensor.dim() or not last.dim():
        return None
    sizes = zip(last.shape, tensor.shape, strict=True)
    axes = [axis for axis, (before, after) in enumerate(sizes) if before != after]
    if not axes:
        return None if last.nbytes <= _SMALL else 0
    return axes[0] if len(axes) == 1 and last.shape[axes[0]] < tensor.shape[axes[0]] else None


def is_of_encoder(name: str) -> bool:
    """Return whether an input has what an encoder computed, which is the same in each step."""
    return _ENCODER.match(name) is not None


def _known_value(
    steps: Steps, in_steps: Sequence[torch.Tensor], name: str, references: ReferenceLookup
) -> torch.Tensor | None:
    """Return a value of one call as far as it is known without making the call: its reference, or that of the steps."""
    shape = shape_in_one_call(steps, in_steps)
    reference = None if shape is None else references(name)
    if reference is not None and (reference.shape, reference.dtype) == (shape, in_steps[0].dtype):
        return reference
    return value_in_one_call(steps, in_steps)


def _judged_step(
    steps: Steps, name: str, whole: torch.Tensor, in_steps: Sequence[torch.Tensor]
) -> tuple[int, torch.Tensor] | None:
    """Return what is compared with `whole` for an output without known axes, and its position; None if nothing can be.

    It is the tensor of the first step that has another size than its tokens need, else that of the last step. If steps
    count other numbers of tokens in a cache than there are, it is the number in one call plus the error of the first.
    """
    if (step := _other_size(steps, name, whole, in_steps)) is not None:
        return steps.spans[step][0], in_steps[step]
    if in_steps[-1].shape != whole.shape:
        return None
    counts = zip(steps.spans, steps.ends, in_steps, strict=True) if name.endswith(LENGTH) else ()
    wrong = ((start, whole + (count - end)) for (start, _), end, count in counts if int(count) != end)
    return next(wrong, (steps.length - 1, in_steps[-1]))


def _other_size(steps: Steps, name: str, whole: torch.Tensor, in_steps: Sequence[torch.Tensor]) -> int | None:
    """Return the first step with logits of other tokens, or that leaves another number of keys in the cache.

    None if each has as many as its tokens need.
    """
    if name == LOGITS and not steps.in_rows:
        axis, counts = 1, steps.counts
    elif name.startswith(PRESENT) and name.endswith(_GROWING) and not steps.slots and whole.dim() > _KEYS:
        axis, counts = _KEYS, [steps.keys_of(end, whole.shape[_KEYS])[1] for end in steps.ends]
    else:
        return None
    pairs = zip(in_steps, counts, strict=True)
    return next((step for step, (item, count) in enumerate(pairs) if item.shape[axis : axis + 1] != (count,)), None)


def _next_state(name: str, past: torch.Tensor, outputs: Values) -> torch.Tensor:
    """Return what the next step gets as an input of the cache; a program may leave out what an encoder computed."""
    present = PRESENT + name.removeprefix(PAST)
    return past if present not in outputs and is_of_encoder(name) else outputs[present]


def _states(name: str, first: torch.Tensor, outputs: Mapping[str, StepTensors], count: int) -> list[torch.Tensor]:
    """Return what each of `count` steps gets as an input of the cache: first a given state, then the one before it."""
    present = PRESENT + name.removeprefix(PAST)
    return [first, *outputs[present].tensors[:-1]] if present in outputs else [first] * count


def _same_nodes(
    runs: Iterable[Iterable[tuple[str, torch.Tensor]]],
) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Yield the values of the nodes that run in isolation in each step, as long as these are the same nodes.

    A backend that compiles again for other shapes may fuse differently. Then names stand for other values from there
    on, which are not judged by their nodes.
    """
    for items in zip(*map(list, runs), strict=False):
        if len({name for name, _ in items}) > 1:
            return
        yield items[0][0], [tensor for _, tensor in items]
