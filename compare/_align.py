"""Align two implementations of the same model, and find where the second one leaves the first."""

import copy
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes.common import LiftConstantsToInitializersPass
from torch import nn

from filch.export import Program, TraceError
from filch.export.backends import get_backend
from filch.export.backends._limited import limit_backend
from filch.export.common._memory import release_memory
from filch.steal import FilchError, ModuleInfo, NotADumpError, Records, phase, restore
from filch.steal.private._torch import pytree
from filch.steal.values._arguments import argument_tensors

from ._align_programs import align_programs
from ._compare import ProgramLike, time_limit
from ._compare_programs import ProgramSide, in_dtype
from .alignment._array_alignment import align_arrays, align_weights
from .alignment._arrays import NamedArrays, Runnable, Source, as_tensors
from .alignment._divergence import DivergenceSearch
from .alignment._parts import Parts, with_parts
from .alignment._result import alignment
from .alignment._tables import computed_tables, exact_tables, plausible_tables, tables_of
from .alignment._value_map import ValueMap, load_value_map
from .alignment._weight_verdict import other_weights
from .common._errors import CompareError
from .layouts._closeness import RELATIVE
from .layouts._numbers import TensorNumbers
from .models._array_files import has_only_weights, is_array_file, load_arrays
from .models._drawn_inputs import draw_inputs
from .models._factory import find_factory
from .models._gguf import load_gguf
from .pairing._correspondence import Correspondence
from .pairing._folded import folded_weights
from .pairing._values import ValueSide
from .pairing._weight_map import match_weights
from .references._inputs import argument_paths, cast_inputs, empty_inputs
from .results._alignment import Alignment
from .runs._execution import Execution, ModelSource, Tensors
from .runs._program_run import ProgramSource

_BACKEND = "onnxruntime-cpu"  # runs a program in its own precision, which tells the dtypes of its values
_AMPLIFIED = (
    f"the outputs differ by more than {RELATIVE:g} of a number, although each operation computes A's numbers from A's "
    "operands: the layers amplify rounding, or a smaller difference"
)
Implementation = nn.Module | Mapping[str, Any] | Records | str | os.PathLike[str] | Program | ir.Model | onnx.ModelProto


def align(
    reference: Implementation,
    actual: Implementation,
    args: Any = None,
    actual_args: Any = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    actual_kwargs: Mapping[str, Any] | None = None,
    mapping: str | os.PathLike[str] | ValueMap | None = None,
    weights_only: bool | None = None,
    parts: Mapping[str, str] | None = None,
) -> Alignment:
    """Find which weights and values of two implementations are the same, and where B leaves A.

    Modules run in float64, on the given inputs and on others that are made from them: rounding is then so small that
    equal formulas have equal numbers, and different ones do not. Names play no part. A weight or value of B may be
    transposed, split, joined, interleaved or repeated; the layout is solved for, and counts if it holds for every
    element.

    A value of B that is no value of A may be right: B may compute the same in other steps. It counts only if a wrong
    output depends on it. To find what is wrong behind the first difference, B runs again with the numbers of A as the
    operands of the operations that read A's weights.

    An ONNX program is evaluated node by node, each operator by PyTorch; it also runs once on ONNX Runtime, which checks
    the inputs and tells the dtypes.

    An implementation in another language or framework is compared by the numbers that it leaves behind: named arrays.
    The first array that is no value of A, although later results depend on it, is where B leaves A, as far as that can
    be told without its operations. Arrays may have any precision: a second run of the module, with noise, shows how
    far rounding takes each value from float64. A conversion of a checkpoint is compared by its weights alone.

    Args:
        reference: the reference implementation, A: a module, in the mode in which to run it (a copy on the CPU, if it
            is on a GPU); an ONNX program, as the path of its file, a model of onnx or onnx-ir, or a `Program`; a
            mapping from names to tensors or arrays (of NumPy, JAX, MLX), which may be nested and have lists, in the
            order in which they were computed; a `Capture` or `Dump`; or the path of a dump, of a file `.npz`,
            `.safetensors`, `.pt` or `.gguf` (with the package `gguf`), or of the folder or index
            (`model.safetensors.index.json`) of a Hugging Face checkpoint.
        actual: the implementation to compare with it, B, likewise.
        args: the positional arguments of A, or its only one, or a mapping of its arguments by name; None if A is no
            module and no program, or only weights are compared. Inputs in which many numbers are equal say little.
        actual_args: those of B, with the same numbers; None if they are the same. A program gets the arguments that
            have the names of its inputs, or all of them in their order. Two programs without arguments get drawn
            inputs.
        kwargs: the keyword arguments of A.
        actual_kwargs: those of B; None if they are the same as those of A and `actual_args` is None.
        mapping: where module outputs of A are in B, as a `ValueMap` or its TOML file. Its rows are checked and displace
            what the numbers say; rows with other numbers are reported.
        weights_only: whether all arrays are weights and no module is run; None: if neither a module with arguments nor
            records are given, or one of them is a state dictionary of a file of PyTorch.
        parts: what B has of outputs of A, if it has not all of them whole: an index such as `"[:, -1]"`, or `"none"`,
            by the name of the output (`"logits"`, `"[0]"`; `""` for the only one). The headline says it.

    Returns:
        an `Alignment`: `close` if each output of A, and each argument and buffer that A changes, is one of B, whole, in
        a stated place and order (see `AlignedOutput`), and if no array is wrong, where arrays are compared. Of two ONNX
        programs on the same inputs, the outcome and the operations are those of `compare_programs`. If weights are
        compared: if those of B are made of those of A, alike in all layers, and all of A's are in B.

    Raises:
        CompareError: one of them is nothing that can be compared, a file can't be read, the inputs of a program are
            missing or don't fit, a node of it can't be evaluated in float64, `mapping` names a module that was not
            called, or `parts` a part that A does not return.
        DumpError: a dump can't be read.
        TraceError: one of them fails on its inputs.

    >>> import torch
    >>> a, b = torch.nn.Linear(4, 6), torch.nn.Linear(4, 6)
    >>> _ = b.load_state_dict(a.state_dict())
    >>> align(a, b, torch.randn(3, 4)).headline
    '2 of 2 weights of B and 1 of 1 module outputs of A found; the outputs are the same'
    """
    reference_source, actual_source = _source(reference, args, kwargs), _source(actual, None, None)
    are_shared = actual_args is None and actual_kwargs is None
    are_programs = isinstance(reference_source, ProgramSource) and isinstance(actual_source, ProgramSource)
    if not (are_shared and are_programs):  # two programs are run alike
        names = ModuleInfo.of(reference).parameters if isinstance(reference, nn.Module) else ()
        parameters = names if actual_args is None else ()
        given = args if actual_args is None else actual_args
        actual_source = _source(actual, given, kwargs if are_shared else actual_kwargs, parameters)
    return align_sources(reference_source, actual_source, mapping=mapping, weights_only=weights_only, parts=parts)


def _source(
    given: Implementation, args: Any, kwargs: Mapping[str, Any] | None, parameters: Sequence[str] = ()
) -> Source:
    """Return an implementation with its arguments; a module without any is its state dictionary: only weights.

    Args:
        given: see `align`.
        args: its positional arguments; see `align`.
        kwargs: its keyword arguments.
        parameters: the names of A's positional parameters, if a program gets A's arguments: they name these arguments.
    """
    has_arguments = args is not None or kwargs is not None
    args, kwargs = pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, as_tensors((args, kwargs)))
    if isinstance(args, Mapping):
        args, kwargs = (), {**args, **(kwargs or {})}
    if isinstance(given, nn.Module):
        if has_arguments:
            model = _on_cpu(given)
            items = (args,) if isinstance(args, torch.Tensor) else tuple(() if args is None else args)
            return ModelSource(model, items, kwargs or {})
        return NamedArrays.of_state(given.state_dict(), type(given).__name__)
    if isinstance(given, Mapping):
        return NamedArrays.of(given)
    if isinstance(given, str | os.PathLike):
        source = read_source(given)
    elif isinstance(given, Program | ir.Model | onnx.ModelProto):
        source = _program_source(given)
    else:
        kind = type(given).__name__
        raise CompareError(f"give a module, an ONNX program, a mapping of arrays, records or a path, not a {kind}")
    if not isinstance(source, ProgramSource) or not has_arguments:
        return source
    positional = () if args is None else args if isinstance(args, Sequence) else (args,)
    return _with_inputs(source, argument_tensors(parameters, positional, kwargs or {}))


def _on_cpu(model: nn.Module) -> nn.Module:
    """Return the model if it is on the CPU, where all values are compared, or else a copy that is."""
    tensors = (*model.parameters(), *model.buffers())
    if any(tensor.is_meta for tensor in tensors):
        raise CompareError(f"{type(model).__name__} has weights on the device meta, which have no numbers: load them")
    return model if all(tensor.device.type == "cpu" for tensor in tensors) else copy.deepcopy(model).cpu()


def read_source(path: str | os.PathLike[str]) -> NamedArrays | ProgramSource:
    """Read an ONNX program, or the arrays of a dump or another file; see `align`."""
    where = Path(path)
    if where.suffix == ".onnx":
        try:
            return NamedArrays.of(restore(where), str(where))
        except NotADumpError:
            return _program_source(where)
    if where.suffix == ".gguf":
        return NamedArrays.of_gguf(load_gguf(where), str(where))
    arrays = load_arrays(where)
    return NamedArrays.of_state(arrays, str(where)) if has_only_weights(where) else NamedArrays(str(where), arrays)


def _program_source(given: ProgramLike) -> ProgramSource:
    """Return an ONNX program without inputs; the weights that nodes have as constants are among its weights."""
    side = ProgramSide.of(given, "the program", _BACKEND)
    program = replace(side.program, model=side.program.model.clone())
    LiftConstantsToInitializersPass(size_limit=2)(program.model)  # constants of two elements or more
    return ProgramSource(side.name, program.snapshot(), written=side.program)


def _with_inputs(source: ProgramSource, arguments: Mapping[str, torch.Tensor]) -> ProgramSource:
    """Return a program with the arguments of the other implementation, by path, or of a call, by name, as its inputs.

    Raises:
        CompareError: they don't fit, or the program fails on them.
    """
    program, graph = source.program, source.program.graph
    side = ProgramSide(program, source.name, limit_backend(get_backend(_BACKEND)))
    paths = argument_paths(program, graph, arguments)
    matched = {name: arguments[path] for name, path in paths.items() if path in arguments}
    # Further inputs may be those of an empty past, but only if each argument has found its input.
    matched |= empty_inputs(graph, matched) if len(matched) == len(arguments) else {}
    inputs = side.named(matched if len(matched) == len(graph.inputs) else arguments)
    native = side.feed(cast_inputs(graph, {name: in_dtype(graph, name, tensor) for name, tensor in inputs.items()}))
    with time_limit(program, None):
        values = side.observe(side.compile(), native).values
    dtypes = {name: tensor.dtype for name, tensor in values.items()}
    natives = {name: values[name] for name in graph.outputs if name in values}
    return replace(source, inputs=inputs, feed=native, dtypes=dtypes, natives=natives)


def find_source(name: str) -> Source:
    """Return what the command line names: a file, or what a factory returns: a model with its arguments, or arrays."""
    if is_array_file(name) or name.endswith(".onnx"):
        return read_source(name)
    factory = find_factory(name)
    result = factory.call()
    if isinstance(result, Mapping):
        return NamedArrays.of(result, name)
    subject = factory.subject_of(result)
    return ModelSource(subject.model, subject.args, subject.kwargs)


def align_sources(
    reference: Source,
    actual: Source,
    names: tuple[str, str] | None = None,
    mapping: str | os.PathLike[str] | ValueMap | None = None,
    *,
    weights_only: bool | None = None,
    parts: Parts | None = None,
) -> Alignment:
    """Align two implementations; see `align`.

    Args:
        reference: implementation A, a module with its arguments or named arrays.
        actual: implementation B, likewise.
        names: what they are called; None for the names of their classes or files.
        mapping: see `align`.
        weights_only: see `align`.
        parts: see `align`.
    """
    given = mapping if isinstance(mapping, ValueMap) else ValueMap() if mapping is None else load_value_map(mapping)
    if _has_only_weights(reference, actual) if weights_only is None else weights_only:
        result = align_weights(reference, actual)
    else:
        result = replace(_align_values(reference, actual, given, parts or {}), parts=parts or {})
    return result if names is None else replace(result, reference=names[0], actual=names[1])


def _has_only_weights(reference: Source, actual: Source) -> bool:
    """Return whether weights are compared if a caller does not say: no implementation can be run, or one has no values.

    A state dictionary has none; arrays of which nothing is known, as those of a mapping, have none beside each other or
    a program without inputs.
    """
    arrays = [side for side in (reference, actual) if isinstance(side, NamedArrays)]
    if any(side.arrays.keys() == side.weight_names for side in arrays):
        return True
    if arrays and any(isinstance(side, ProgramSource) and side.inputs is None for side in (reference, actual)):
        return True
    return len(arrays) == 2 and not any(side.places for side in arrays)


def _align_values(reference: Source, actual: Source, given: ValueMap, parts: Parts) -> Alignment:
    """Align the values of two implementations; see `align_sources`.

    A program without inputs gets those of the other implementation, or drawn ones if that has none. Two programs on
    the same inputs are also judged as `compare_programs` judges them, unless only parts of the outputs are compared.
    """
    remarks = []
    if isinstance(reference, ProgramSource) and isinstance(actual, ProgramSource) and actual.inputs is None:
        if not parts:
            return align_programs(reference, actual, partial(_align_programs, reference, actual, given))
        if reference.inputs is None:
            drawn = draw_inputs(reference.program.graph)
            reference, remarks = _with_inputs(reference, drawn.tensors), [drawn.note]
    reference, actual = _with_inputs_of(reference, actual), _with_inputs_of(actual, reference)
    remarks += [*_empty_inputs_of(reference), *_empty_inputs_of(actual)]
    if isinstance(reference, NamedArrays) or isinstance(actual, NamedArrays):
        result = align_arrays(reference, actual, given, parts)
    else:
        result = _align_runs(reference, actual, given, parts)
    return replace(result, remarks=(*remarks, *result.remarks))


def _align_programs(reference: ProgramSource, actual: ProgramSource, given: ValueMap) -> Alignment:
    """Align two programs on the same inputs in float64; where that is not possible, their weights alone."""
    try:
        if reference.inputs is None:
            reference = _with_inputs(reference, draw_inputs(reference.program.graph).tensors)
        result = _align_runs(reference, _with_inputs(actual, reference.inputs or {}), given, {})
    except FilchError as error:
        result = replace(align_weights(reference, actual), remarks=(f"only weights were aligned: {error}",))
    return replace(result, remarks=(*_empty_inputs_of(reference), *result.remarks))


def _empty_inputs_of(source: Source) -> Iterator[str]:
    """Yield a remark about the inputs of a program that have no numbers."""
    if not isinstance(source, ProgramSource):
        return
    empty = [f"{name} {[*tensor.shape]}" for name, tensor in (source.inputs or {}).items() if not tensor.numel()]
    if empty:
        yield f"these inputs of {source.name} are empty: {', '.join(empty)}"


def _with_inputs_of(source: Source, other: Source) -> Source:
    """Return an implementation; a program without inputs gets those of the other one.

    Raises:
        CompareError: it has none, or they don't fit.
    """
    if not isinstance(source, ProgramSource) or source.inputs is not None:
        return source
    if isinstance(other, NamedArrays) or other.inputs is None:
        raise CompareError(f"{source.name} needs inputs to be run: {', '.join(source.program.graph.inputs)}")
    return _with_inputs(source, other.inputs)


def _align_runs(reference: Runnable, actual: Runnable, given: ValueMap, parts: Parts) -> Alignment:
    """Align two implementations that can be run.

    Tables are numbers that depend on no input, such as the angles of positions (see `alignment._tables`): B gets those
    of A where they differ by rounding alone.
    """
    with phase("running A in float64"):
        whole, reference_again = _runs(reference)
        reference_run = with_parts(whole, parts)
        reference_again = None if reference_again is None else with_parts(reference_again, parts)
    with phase("running B in float64"):
        actual_run, actual_again = _runs(actual)
    with phase("matching weights"):
        weights = match_weights(reference_run.weights, actual_run.weights, folded_weights(reference_run))
        release_memory()
    with phase("matching values"):
        tables = tables_of(reference_run, weights.unused)
        exact = {**exact_tables(actual_run, weights.missing, tables), **weights.exact}
        changed = {item.name for item in other_weights(weights, reference_run.weights, actual_run.weights)}
        weights = replace(weights, tables=plausible_tables(actual_run, {*weights.missing} - changed, tables))
        actual_run = actual_run.with_numbers(computed_tables(actual_run, tables), exact)
        if actual_again is not None:
            actual_again = actual_again.with_numbers(computed_tables(actual_again, tables), exact)
        pairs = Correspondence(
            ValueSide(reference_run, _compact(reference_again)), ValueSide(actual_run, _compact(actual_again)), weights
        )
        del reference_again, actual_again
    with phase("matching values computed from the numbers of A"):
        remarks = [*_remarks(pairs)]
        differing = bool(pairs.outputs.problems)
        pairs = _step_by_step(pairs, reference, actual, tables, exact)
        if differing and not pairs.outputs.problems:
            remarks.append(_AMPLIFIED)
    with phase("finding differences"):
        divergence = DivergenceSearch(pairs)
        suspects, missing, coarser = divergence.suspects(), divergence.missing(), divergence.coarser()
    return alignment(pairs, suspects, missing, remarks, given, coarser=coarser)


def _step_by_step(
    pairs: Correspondence, reference: Runnable, actual: Runnable, tables: Sequence[TensorNumbers], weights: Tensors
) -> Correspondence:
    """Return the values that correspond if operations of B get the numbers of A where their operands are equal.

    Differences do not add up then. It is done only if an output of B is not that of A, and repeated while it shows more
    values that correspond.

    Args:
        pairs: the values that correspond in two runs.
        reference: implementation A.
        actual: implementation B.
        tables: those of A; see `tables_of`.
        weights: the weights of B with the numbers of A; see `Execution.with_numbers`.
    """
    count = 0
    can_run_again = pairs.actual.execution.run_again is not None
    while can_run_again and pairs.outputs.problems and count < len(pairs.found_in_reference):
        count = len(pairs.found_in_reference)
        side, actual_run, again = pairs.reference, pairs.actual.execution, None
        if side.second is not None and pairs.actual.second is not None:
            reference_again, again = (item.with_other_numbers().run() for item in (reference, actual))
            again = again.with_numbers(computed_tables(again, tables), weights)
            again = _compact(again.with_numbers(pairs.exact_values(reference_again.values, again.values)))
            del reference_again
        actual_run = actual_run.with_numbers(pairs.exact_values(side.execution.values, actual_run.values))
        pairs = Correspondence(side, ValueSide(actual_run, again), pairs.weights, known=pairs)
    return pairs


def _runs(source: Runnable) -> tuple[Execution, Execution | None]:
    """Return the runs of an implementation on its inputs and on other ones; None if it fails on those."""
    first = source.run()
    try:
        return first, source.with_other_numbers().run()
    except (CompareError, TraceError):  # other numbers may be no valid inputs
        return first, None


def _compact(execution: Execution | None) -> Execution | None:
    """Return a run whose values are only compared, in half the memory: float32 is far finer than the tolerance.

    It can't run again. None for None.
    """
    if execution is None:
        return None
    values = {name: value.float() if value.is_floating_point() else value for name, value in execution.values.items()}
    outputs = tuple(replace(item, native=None) for item in execution.outputs)
    return replace(execution, values=values, run_again=None, outputs=outputs)


def _remarks(pairs: Correspondence) -> Iterator[str]:
    """Yield sentences on what may make values differ, or hard to tell apart, where both implementations are right."""
    sides = {"A": pairs.reference, "B": pairs.actual}
    unsure = [name for name, side in sides.items() if side.second is None]
    if unsure:
        yield f"values were matched on one input only: {' and '.join(unsure)} ran other operations on a second one"
    dtypes = [_usual_dtype(side.execution.weights) for side in sides.values()]
    if None not in dtypes and dtypes[0] != dtypes[1]:
        text = " and ".join(f"{name} in {str(dtype)[6:]}" for name, dtype in zip(sides, dtypes, strict=True))
        yield f"the weights are rounded to other precisions, {text}: give both in the same, as values differ otherwise"
    # `owners`: the values and inputs of A that have numbers of each value and input of B, by its name.
    unknown = [name for name in pairs.actual.execution.graph.inputs if not pairs.owners.get(name)]
    if unknown:
        yield f"the input {unknown[0]!r} of B has numbers that no input of A has: give both the same ones"
    reference = pairs.reference.execution
    inputs = {name: item for name, item in reference.values.items() if name in reference.graph.inputs}
    ties = [name for name, item in inputs.items() if item.numel() > 1 and bool((item == item.reshape(-1)[0]).all())]
    if ties:
        yield f"all numbers of the input {ties[0]!r} are equal: many values can't be told apart; use other inputs"


def _usual_dtype(weights: Mapping[str, torch.Tensor]) -> torch.dtype | None:
    """Return the dtype of most numbers; None if there are no weights."""
    sizes = Counter[torch.dtype]()
    for tensor in weights.values():
        sizes[tensor.dtype] += tensor.numel()
    return sizes.most_common(1)[0][0] if sizes else None
