"""Compare two ONNX programs: what the second one computes with what the first one does."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx_ir import tensor_adapters
from torch import nn

from filch.export import BackendError, Graph, ModuleCall, Port, Program, as_program
from filch.export.backends import Backend, Compiled, get_backend, isolate, unrolled
from filch.export.backends._limited import limit_backend
from filch.export.operators._registry import find_operator
from filch.steal import Capture, describe, phase, steal_forward

from ._compare import Path, ProgramLike, compare, resolve_backend, time_limit
from .common._errors import CompareError
from .metrics._tolerance import is_coarser
from .models._constant_inputs import (
    Constants,
    as_tensor,
    common_constants,
    constant_inputs,
    draw_constants,
    with_constants,
)
from .models._drawn_inputs import Shapes, draw_inputs
from .models._input_files import load_inputs
from .pairing._observed import Observed
from .pairing._paired_value import Pairs
from .pairing._program_pairs import Rerun, pair_values
from .references._inputs import cast_inputs
from .references._reference_program import ReferenceProgram
from .results._report import Report

Array = np.ndarray | torch.Tensor | list[np.ndarray]
Inputs = Path | Mapping[str, Array] | Sequence[Mapping[str, Array]]
Tensors = Mapping[str, torch.Tensor]
REFERENCE_BACKEND = "onnxruntime-cpu"
_MAY_BE_OPTIONAL = frozenset({"Optional", "Identity"})  # whose results are tensors when they run, but not in the file


def compare_programs(
    reference: ProgramLike,
    program: ProgramLike,
    *,
    inputs: Inputs | None = None,
    seed: int = 0,
    shapes: Shapes | None = None,
    backend: str | Backend = "onnxruntime-cpu",
    reference_backend: str | Backend = REFERENCE_BACKEND,
    options: Mapping[str, Any] | None = None,
    lower_precision: bool = False,
    limit: float | None = None,
    **settings: Any,
) -> Report:
    """Run two ONNX programs on the same inputs and compare each value of the second with that of the first.

    The programs may be a model before and after an optimizer, a conversion to another opset or precision, or an edit by
    hand, or the files of two exporters. The first one is the reference: it runs on `reference_backend`, node by node,
    and its graph is also evaluated in float64, so that each value of the second is judged by its error relative to the
    rounding error of the first (see `compare`). Neither needs metadata of Filch.

    Inputs and outputs are matched by their names, else by their positions. Other values are matched by their names, if
    their numbers are similar or what they are computed from is the same; by the operator that computes them, if it
    reads the same values; else by nearly the same numbers (`Row.evidence` is then `inferred`, and a tolerance judges
    them). A value that the first program does not have is not judged, and its row says so. Outputs are always judged:
    strings by their hashes (int64), a sequence as one tensor of its elements, a map from classes to numbers by both.

    Args:
        reference: the path of an ONNX file, an ONNX model, a `Program`, or a graph read from one.
        program: the program to judge, likewise.
        inputs: the inputs of one call by name, or of several calls, or the path of a file (see `load_inputs`). None
            draws them: normally distributed numbers; indices within the dimension that they index, such as token ids,
            else integers from 1 to 9; ones for booleans and for inputs with `mask` in their names. Inputs that are
            strings, or sequences (lists of arrays, which are not drawn), become constants of both programs, so that
            they are the same in each call.
        seed: for drawn inputs; equal seeds give equal numbers.
        shapes: shapes of drawn inputs, by name. Other dynamic dimensions have size 1, unless an input in `shapes` gives
            the size of a dimension of the same name.
        backend: the backend that runs `program` (see `compare`).
        reference_backend: the backend that runs `reference`, without optimizations.
        options: see `compare`.
        lower_precision: see `compare`; needed for a program in float16, for example, or a quantized one.
        limit: see `compare`.
        **settings: further keyword arguments of `compare`.

    Returns:
        a `Report` as of `compare`, whose `interface` says which inputs and outputs are missing, added or exchanged.

    Raises:
        FilchError: a file is invalid; a program can't be run; the inputs do not fit.

    Example:
        >>> import torch
        >>> from filch.compare import compare_programs
        >>> from filch.export import export, optimize
        >>> program = export(torch.nn.Linear(3, 2), (torch.ones(1, 3),))
        >>> compare_programs(program, optimize(program)).close
        True
    """
    pair = pair_programs(
        reference,
        program,
        inputs=inputs,
        seed=seed,
        shapes=shapes,
        backend=backend,
        options=options,
        reference_backend=reference_backend,
        lower_precision=lower_precision,
        limit=limit,
    )
    common = {"options": options, "lower_precision": lower_precision, "limit": limit, **settings}
    return compare_pair(pair, backend=backend, **common)


def compare_pair(pair: "ProgramPair", **settings: Any) -> Report:
    """Return the report of two programs that run on the same inputs; `settings` are those of `compare`."""
    report = compare(pair.capture, pair.program, **settings)
    notes, interface = (*pair.notes, *report.notes), (*pair.interface, *report.interface)
    return replace(report, reference=pair.reference, program=pair.name, notes=notes, interface=interface)


def _is_same(reference: ProgramLike, program: ProgramLike) -> bool:
    """Whether two programs are one, or of one path, so that a run of one has the values of the other."""
    is_path = isinstance(reference, str | os.PathLike) and isinstance(program, str | os.PathLike)
    return reference is program or (is_path and reference == program)


@dataclass(frozen=True)
class ProgramPair:
    """Two programs, ready to be compared by `compare(pair.capture, pair.program)`.

    Attributes:
        capture: the inputs and outputs of the reference, as if it had been recorded.
        program: the program to judge, with the reference as the source of its values.
        reference: the name of the reference.
        name: the name of the program to judge.
        notes: remarks for the reader of a report.
        interface: a sentence for each output that is of another kind than the reference's, such as a sequence.
        graph: the graph of the reference.
        pairs: the values of the program to judge that are those of the reference, by their own names.
    """

    capture: Capture
    program: Program
    reference: str
    name: str
    notes: tuple[str, ...]
    interface: tuple[str, ...]
    graph: Graph
    pairs: Pairs


def pair_programs(
    reference: ProgramLike,
    program: ProgramLike,
    *,
    inputs: Inputs | None = None,
    seed: int = 0,
    shapes: Shapes | None = None,
    backend: str | Backend = "onnxruntime-cpu",
    options: Mapping[str, Any] | None = None,
    reference_backend: str | Backend = REFERENCE_BACKEND,
    lower_precision: bool = False,
    limit: float | None = None,
) -> ProgramPair:
    """Run two programs on the same inputs and match their values; see `compare_programs` for the arguments."""
    expected = ProgramSide.of(reference, "the reference", reference_backend)
    resolved = resolve_backend(backend, options)
    # Values are matched node by node, for which a backend that only optimizes the program is replaced.
    judged = ProgramSide.of(program, "the program", resolved if "exported" in resolved.stages else REFERENCE_BACKEND)
    if inputs is not None and shapes:
        raise CompareError("shapes are of drawn inputs: give either inputs or shapes")
    arrays = None if inputs is None else _calls(inputs)
    notes: list[str] = []
    if names := constant_inputs(expected.program):  # captures and float64 have tensors of numbers alone
        source, given = expected.program, shapes or {}
        constants = (
            draw_constants(source, names, seed, given) if arrays is None else common_constants(source, arrays, names)
        )
        counterparts = Ends.of(source.graph, judged.program.graph).inputs
        expected = expected.given(constants)
        judged = judged.given({counterparts[name]: item for name, item in constants.items()})
        shapes = shapes and {name: shape for name, shape in shapes.items() if name not in constants}
        arrays = arrays and [{name: item for name, item in call.items() if name not in constants} for call in arrays]
        notes = [f"the inputs {', '.join(names)} are strings or sequences, which were made constants of both programs"]
    graph = judged.program.graph
    ends = Ends.of(expected.program.graph, graph)
    if arrays is None:
        drawn = draw_inputs(expected.program.graph, seed=seed, shapes=shapes)
        feeds, notes = [drawn.tensors], [drawn.note, *notes]
    else:
        feeds = [expected.feed(_as_tensors(call)) for call in arrays]
    calls = [ends.feed(feed, graph, lower_precision=lower_precision) for feed in feeds]
    same_shapes = all(shapes_of(feed) == shapes_of(feeds[0]) for feed in feeds)
    with time_limit(judged.program, limit):
        before, written = expected.program, judged.program  # with their branches and loops
        expected = expected.unrolled(feeds)
        judged = judged.unrolled([cast_inputs(graph, call) for call in calls])
        graph = judged.program.graph
        compiled = expected.compile()
        # Values are matched by what both programs compute in the first call.
        observed = expected.observe(compiled, feeds[0])
        is_same = backend == reference_backend and not options and _is_same(reference, program)
        judged_values = observed if is_same else judged.observe(judged.compile(), cast_inputs(graph, calls[0]))
        with phase("matching the values of both programs"):
            pairs = pair_values(judged_values, observed, ends.names, reshaped=same_shapes, rerun=judged.rerun(calls[0]))
        original = ReferenceProgram(expected.program, pairs, graph, expected.backend, compiled, feeds, observed.values)
        capture = ends.capture(original, calls)
    # Only if all calls have the shapes of the first one are these those of the program.
    judged_program = ends.program(written, original, judged_values.values if same_shapes else {})
    notes += [*ends.notes, *_replacements(written, judged_values.values), pairs_note(pairs, graph)]
    kinds = ends.other_kinds(before, written)
    whole = expected.program.graph
    return ProgramPair(capture, judged_program, expected.name, judged.name, tuple(notes), kinds, whole, pairs)


@dataclass(frozen=True)
class ProgramSide:
    """One of two programs.

    Attributes:
        program: the program.
        name: its path, or what it is.
        backend: the backend that runs it node by node.
    """

    program: Program
    name: str
    backend: Backend

    @classmethod
    def of(cls, program: ProgramLike, what: str, backend: str | Backend) -> "ProgramSide":
        """Load a program.

        Args:
            program: a path, a model, a program or a graph.
            what: what it is called in messages if it has no path.
            backend: the backend that runs it node by node.

        Raises:
            CompareError: the backend does not run a program node by node.
        """
        loaded = as_program(program)
        if isinstance(program, onnx.ModelProto):  # `loaded` is a copy; converters append casts out of order
            loaded.model.graph.sort()
        loaded = loaded.snapshot()
        resolved = limit_backend(get_backend(backend) if isinstance(backend, str) else backend)
        if "exported" not in resolved.stages:
            raise CompareError(f"{what} can't run on {resolved.name!r}, which does not run a program node by node")
        return cls(loaded, str(loaded.path) if loaded.path else what, resolved)

    def given(self, constants: Constants) -> "ProgramSide":
        """Return the program with some inputs as constants."""
        return replace(self, program=with_constants(self.program, constants))

    def unrolled(self, feeds: Sequence[Tensors]) -> "ProgramSide":
        """Return the program with what it runs in place of its branches and loops; itself if it has none."""
        program, _ = unrolled(self.program, self.backend, feeds)
        return self if program is self.program else replace(self, program=program.snapshot())

    def compile(self) -> Compiled:
        """Compile the program without optimizations.

        Raises:
            CompareError: the backend can't.
        """
        try:
            return self.backend.compile(self.program, optimize=False)
        except BackendError as error:
            raise CompareError(f"{self.name} can't be run: {error}") from error

    def observe(self, compiled: Compiled, feed: Tensors) -> Observed:
        """Run the program and return all of its values.

        Raises:
            CompareError: the backend can't.
        """
        graph = self.program.graph
        feed = {name: feed[name] for name in compiled.graph.inputs if name in feed}
        try:
            values = self.backend.run(compiled, feed, tuple(compiled.graph.producer))
        except BackendError as error:
            raise CompareError(f"{self.name} can't be run: {error}") from error
        named = {compiled.exported_name(name): tensor for name, tensor in values.items()}
        return Observed(graph, {**feed, **named}, self.program.constant)

    def rerun(self, feed: Tensors) -> Rerun:
        """Return a function that runs each node on the values that a function returns, as far as it does."""

        def run(reference: Callable[[str], torch.Tensor | None]) -> dict[str, torch.Tensor]:
            compiled, inputs = self.compile(), cast_inputs(self.program.graph, feed)
            values = isolate(self.backend, self.program, compiled, inputs, reference, optimize=False)
            return {compiled.exported_name(name): tensor for name, tensor in values}

        return run

    def feed(self, call: Tensors) -> dict[str, torch.Tensor]:
        """Return the inputs of a call by the names of the program's inputs.

        Raises:
            CompareError: one is missing, or does not fit.
        """
        named = self.named(call)
        for name, tensor in named.items():
            _check_input(self.name, self.program.graph, name, tensor)
        return named

    def named(self, call: Tensors) -> dict[str, torch.Tensor]:
        """Return the inputs of a call by the names of the program's inputs, whatever their dtypes and shapes are.

        If a name is missing but the number of inputs is right, they are taken in the order of the program's inputs.

        Raises:
            CompareError: one is missing, and the number is not that of the program's inputs.
        """
        graph = self.program.graph
        if missing := [name for name in graph.inputs if name not in call]:
            if len(call) != len(graph.inputs):
                given = ", ".join(call) or "nothing"
                raise CompareError(f"{self.name} takes an input {missing[0]!r}, but the inputs have {given}")
            call = dict(zip(graph.inputs, call.values(), strict=True))  # unnamed arrays of an .npz, for example
        return {name: call[name] for name in graph.inputs}


def _check_input(program: str, graph: Graph, name: str, tensor: torch.Tensor) -> None:
    """Check that an input has the dtype and shape that a graph declares.

    Raises:
        CompareError: it has another one.
    """
    value, dtype = graph.values[name], str(tensor.dtype).removeprefix("torch.")
    dims = tensor.shape if value.shape is None else value.shape
    fits = len(dims) == tensor.ndim and all(
        dim == size for dim, size in zip(dims, tensor.shape, strict=True) if isinstance(dim, int)
    )
    if not fits or (value.dtype or dtype) != dtype:
        raise CompareError(f"{program} takes {name}: {value}, but the inputs have {describe(tensor)}")


def _calls(inputs: Inputs) -> list[Mapping[str, Array]]:
    """Return the inputs of each call."""
    if isinstance(inputs, str | os.PathLike):
        return [*load_inputs(inputs)]
    calls = [inputs] if isinstance(inputs, Mapping) else [*inputs]
    if not calls:
        raise CompareError("there are no inputs: give those of at least one call")
    return calls


def _as_tensors(call: Mapping[str, Array]) -> dict[str, torch.Tensor]:
    """Return the inputs of a call as tensors.

    Raises:
        CompareError: one has no numbers.
    """
    found = {name: as_tensor(array) for name, array in call.items()}
    if without := [name for name, tensor in found.items() if tensor is None]:
        given = call[without[0]]
        kind = given.dtype if isinstance(given, np.ndarray) else f"a {type(given).__name__}"
        raise CompareError(f"the input {without[0]!r} has {kind}, but the program takes numbers there")
    return {name: tensor for name, tensor in found.items() if tensor is not None}


@dataclass(frozen=True)
class Ends:
    """The inputs and outputs of two programs that correspond to each other.

    Attributes:
        inputs: for each input of the reference, in order, that of the program to judge, or the own name if it has none.
        outputs: likewise.
        names: the name in the reference, by the name of each input and output of the program to judge that has one.
        notes: which were matched by their positions.
        results: the counterparts of all outputs of the reference, which may list one several times.
    """

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    names: Mapping[str, str]
    notes: tuple[str, ...]
    results: tuple[str, ...]

    @classmethod
    def of(cls, reference: Graph, judged: Graph, paths: Mapping[str, str] | None = None) -> "Ends":
        """Match the inputs and outputs of two graphs; `paths` says what those of the reference are in its model."""
        paths = paths or {}
        inputs = _paired(reference, judged, reference.inputs, judged.inputs, paths)
        outputs = _paired(reference, judged, reference.outputs, judged.outputs, paths)
        known = {*judged.inputs, *judged.outputs}
        names = {name: source for source, name in {**inputs, **outputs}.items() if name in known}
        notes = [
            f"the {what} {name!r} of the reference is {other!r} in the program: they were matched by their positions"
            for what, pairs in (("input", inputs), ("output", outputs))
            for name, other in pairs.items()
            if name != other and not (name in paths and label_of(paths[name]) == label_of(other))
        ]
        return cls(inputs, outputs, names, tuple(notes), tuple(outputs[name] for name in reference.outputs))

    def feed(self, feed: Tensors, graph: Graph, *, lower_precision: bool) -> dict[str, torch.Tensor]:
        """Return the inputs of the program to judge.

        Raises:
            CompareError: it takes another one, or one of another shape or dtype.
        """
        found = {name: feed[source] for source, name in self.inputs.items() if name in graph.inputs}
        if len(found) < len(graph.inputs):
            raise CompareError(
                f"the program takes {', '.join(graph.inputs)}, which do not correspond to the inputs of the reference: "
                f"{', '.join(self.inputs) or 'none'}"
            )
        found = {name: in_dtype(graph, name, tensor) for name, tensor in found.items()}
        for name, tensor in (cast_inputs(graph, found) if lower_precision else found).items():
            _check_input("the program", graph, name, tensor)
        return found

    def capture(self, original: ReferenceProgram, calls: Sequence[Tensors]) -> Capture:
        """Return the calls of the reference, as if it had been recorded with the names of the program to judge."""
        module = _ReferenceCalls(original, self.outputs)
        with torch.no_grad(), steal_forward(module) as capture:
            for call in calls:
                module(**call)
        return capture

    def other_kinds(self, reference: Program, judged: Program) -> tuple[str, ...]:
        """Return a sentence for each output that is not of the reference's kind; see `_kinds`."""
        expected, actual = _kinds(reference), _kinds(judged)
        return tuple(
            f"the output {name!r:.80} is {actual[name]}, that of the reference {expected[source]}"
            for source, name in self.outputs.items()
            if name in actual and expected[source] != actual[name]
        )

    def program(self, program: Program, original: ReferenceProgram, values: Tensors) -> Program:
        """Return the program to judge with the other one as its original.

        Args:
            program: the program.
            original: the reference.
            values: its values, for their shapes and dtypes, which a file need not declare.
        """
        model = with_shapes(program.model, values)
        inputs = tuple(Port(name, name, "exact") for name in self.inputs.values())
        outputs = tuple(Port(f"[{name!r}]", name, "exact") for name in self.outputs.values())
        return Program(
            model,
            inputs={name: name for name in self.inputs.values()},
            module_calls={("", 0): ModuleCall("", 0, inputs, outputs)},
            original=original,
            path=program.path,
            outputs=self.results,
        )


_TENSOR, _STRINGS, _SEQUENCE = "a tensor", "a tensor of strings", "a sequence"
_IN_PLACE = {_STRINGS: "hashes of the strings are compared", _SEQUENCE: "its elements are compared as one tensor"}


def _kinds(program: Program) -> dict[str, str]:
    """Return what each output of a program is: a tensor, a sequence, or a map from which classes."""
    sequences = {value.name for value in program.model.graph.outputs if isinstance(value.type, ir.SequenceType)}
    strings = {name for name in program.graph.outputs if program.graph.values[name].dtype == "string"}
    kinds = {name: _STRINGS if name in strings else _TENSOR for name in program.graph.outputs}
    maps = {name: f"a map from {classes}" for name, classes in program.maps.items()}
    return {**kinds, **{name: _SEQUENCE for name in kinds if name in sequences}, **maps}


def _replacements(program: Program, values: Tensors) -> list[str]:
    """Say what is compared in place of each output that no tensor of numbers can be, if there is something."""
    kinds = {name: kind for name, kind in _kinds(program).items() if name in values and kind in _IN_PLACE}
    return [f"the output {name!r:.80} is {kind}: {_IN_PLACE[kind]}" for name, kind in kinds.items()]


def shapes_of(feed: Tensors) -> dict[str, torch.Size]:
    """Return the shape of each input."""
    return {name: tensor.shape for name, tensor in feed.items()}


def with_shapes(model: ir.Model, values: Tensors) -> ir.Model:
    """Return a copy of a model that declares the dtypes and shapes of these values, which a file need not do.

    Of a model with branches, only dtypes: runtimes refuse a branch that does not fit them, also if it is not taken.
    """
    declared = model.clone()
    has_branches = len([*declared.graphs()]) > 1
    for value in (output for node in declared.graph if _returns_tensors(node) for output in node.outputs):
        tensor = values.get(value.name or "")
        if tensor is not None and value.shape is None:
            value.shape = None if has_branches else ir.Shape(tensor.shape)
            value.dtype = value.dtype or tensor_adapters.from_torch_dtype(tensor.dtype)
    return declared


def _returns_tensors(node: ir.Node) -> bool:
    """Whether what a node returns is a tensor in the file, too; a sequence is compared as one tensor."""
    operator = find_operator(node.domain, node.op_type)
    return node.op_type not in _MAY_BE_OPTIONAL and not (operator is not None and operator.returns_sequence)


def in_dtype(graph: Graph, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return an input as the other integer type, or finer floating-point type, that a graph declares."""
    declared = getattr(torch, graph.values[name].dtype or "", tensor.dtype)
    kinds = [dtype.is_floating_point or dtype.is_complex or dtype is torch.bool for dtype in (declared, tensor.dtype)]
    # Two integer types, or a coarser floating-point type than the declared one; else it stays as it is.
    return tensor.to(declared) if not any(kinds) or is_coarser(tensor.dtype, declared) else tensor


def label_of(name: str) -> tuple[tuple[str, ...], str]:
    """Return the numbers in a name, and its last word in the singular.

    They are the same in `past_key_values.layers[0].keys` and `present.0.key`.
    """
    words = re.findall("[a-z]+", name.lower())
    return tuple(re.findall(r"\d+", name)), words[-1].removesuffix("s") if words else ""


def _paired(
    reference: Graph,
    judged: Graph,
    reference_names: Sequence[str],
    judged_names: Sequence[str],
    paths: Mapping[str, str],
) -> dict[str, str]:
    """Return the counterpart of each input or output of the reference: by name, label or order; else its own name.

    Args:
        reference: the graph of the reference.
        judged: the graph of the program to judge.
        reference_names: the inputs, or the outputs, of the former.
        judged_names: those of the latter.
        paths: the paths in the model of inputs and outputs of the reference, as far as they are known; the counterpart
            may be the only one whose name has the same label (see `label_of`).
    """
    own = [name for name in reference_names if name not in judged_names]
    others = [name for name in judged_names if name not in reference_names]
    labels, other_labels = [label_of(paths.get(name, "")) for name in own], [*map(label_of, others)]
    by_label = {
        label: name
        for name, label in zip(others, other_labels, strict=True)
        if label != ((), "") and labels.count(label) == other_labels.count(label) == 1
    }
    found = {name: by_label[label] for name, label in zip(own, labels, strict=True) if label in by_label}
    own = [name for name in own if name not in found]
    others = [name for name in others if name not in found.values()]
    if len(own) == len(others) and all(map(partial(_may_be, reference, judged), own, others)):
        found |= dict(zip(own, others, strict=True))
    return {name: found.get(name, name) for name in reference_names}


def _may_be(reference: Graph, judged: Graph, name: str, other: str) -> bool:
    """Whether the declared shapes of two values fit, and their types are of one kind."""
    values = reference.values.get(name), judged.values.get(other)
    # Whether each dtype is a floating-point type; an unknown one counts as one.
    floats = {"float" in (value.dtype or "float") for value in values if value is not None}
    shapes = [value.shape for value in values if value is not None and value.shape is not None]
    if len(shapes) < len(values):  # a shape is not known
        return len(floats) < len(values)  # both are floating-point, or neither is
    dims = zip(*shapes, strict=False)
    fits = all(a == b for a, b in dims if isinstance(a, int) and isinstance(b, int))
    return len(floats) == 1 and len(shapes[0]) == len(shapes[1]) and fits


class _ReferenceCalls(nn.Module):
    """Returns the outputs of a reference, one call after the other, for `steal_forward` to record."""

    def __init__(self, original: ReferenceProgram, outputs: Mapping[str, str]) -> None:
        super().__init__()
        self._original, self._outputs, self._call = original, outputs, 0

    def forward(self, **_: torch.Tensor) -> dict[str, torch.Tensor]:
        values = self._original.values(self._call)
        self._call += 1
        return {name: values[source] for source, name in self._outputs.items() if source in values}


def pairs_note(pairs: Pairs, graph: Graph) -> str:
    """Return how many values have a counterpart in the reference."""
    names = graph.producer.keys() - graph.constant_values
    found = names & pairs.by_value.keys()
    inferred = sum(pairs.by_value[name].evidence == "numbers" for name in found)
    by_numbers = f", {inferred} of them found by their numbers" if inferred else ""
    return f"{len(found)} of {len(names)} values are also in the reference{by_numbers}"
