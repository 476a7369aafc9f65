"""Align two implementations of the same model, and find where the second one leaves the first."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from filch.export import TraceError, release_memory
from filch.steal import Records, phase, restore

from .alignment._array_alignment import Source, align_arrays, align_weights
from .alignment._arrays import NamedArrays
from .alignment._correspondence import Correspondence
from .alignment._divergence import Divergence
from .alignment._exact import exact_run, tables_of
from .alignment._execution import Execution, run_model
from .alignment._folded import folded_vectors
from .alignment._result import alignment
from .alignment._second_input import other_numbers
from .alignment._value_map import ValueMap, load_value_map
from .alignment._values import Side
from .alignment._weights import match_weights
from .common._errors import CompareError
from .models._array_files import ARRAY_FILES, CHECKPOINTS, load_arrays
from .models._factory import find_factory
from .models._subject import Subject
from .results._alignment import Alignment

Implementation = nn.Module | Mapping[str, Any] | Records | str | os.PathLike[str]


def align(
    a: Implementation,
    b: Implementation,
    args: Any = None,
    b_args: Any = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    b_kwargs: Mapping[str, Any] | None = None,
    mapping: str | os.PathLike[str] | ValueMap | None = None,
    weights_only: bool | None = None,
) -> Alignment:
    """Find which weights and values of two implementations are the same, and where B leaves A.

    Modules run in float64, on the given inputs and on others that are made from them: rounding is then so small that
    equal formulas have equal numbers, and different ones do not. Names play no part. A weight or value of B may be
    transposed, split, joined, interleaved or repeated; the layout is solved for, and counts if it holds for every
    element.

    A value of B that is no value of A may be right: B may compute the same in other steps. It counts only if a wrong
    output depends on it. To find what is wrong behind the first difference, B runs again with the numbers of A as the
    operands of the operations that read A's weights.

    An implementation in another language or framework is compared by the numbers that it leaves behind: named arrays.
    The first array that is no value of A, although later results depend on it, is where B leaves A, as far as that can
    be told without its operations. Arrays may have any precision: a second run of the module, with noise, shows how
    far rounding takes each value from float64. A conversion of a checkpoint is compared by its weights alone.

    Args:
        a: the reference implementation: a module, in the mode in which to run it; a mapping from names to tensors or
            arrays (of NumPy, JAX, MLX), which may be nested, in the order in which they were computed; a `Capture` or
            `Dump`; or the path of a dump, or of a file `.npz`, `.safetensors` or `.pt`.
        b: the other implementation, likewise.
        args: the positional arguments of A, or its only one; None if A is no module or only weights are compared.
            Inputs in which many numbers are equal say little.
        b_args: those of B, with the same numbers; None if they are the same.
        kwargs: the keyword arguments of A.
        b_kwargs: those of B; None if they are the same as those of A and `b_args` is None.
        mapping: where module outputs of A are in B, as a `ValueMap` or its TOML file. Its rows are checked and displace
            what the numbers say; rows with other numbers are reported.
        weights_only: whether all arrays are weights and no module is run; None: if neither a module with arguments nor
            records are given, or one of them is a state dictionary of a file of PyTorch.

    Returns:
        an `Alignment`: `close` if the outputs of B are those of A. If arrays are compared: if none is wrong. If weights
        are compared: if those of B are made of those of A, alike in all layers, and all of A's are in B.

    Raises:
        CompareError: one of them is nothing that can be compared, a file can't be read, or `mapping` names a module
            that was not called.
        DumpError: a dump can't be read.
        TraceError: one of them fails on its inputs.

    >>> import torch
    >>> a, b = torch.nn.Linear(4, 6), torch.nn.Linear(4, 6)
    >>> _ = b.load_state_dict(a.state_dict())
    >>> align(a, b, torch.randn(3, 4)).headline
    '2 of 2 weights of B and 1 of 1 module outputs of A found; the outputs are the same'
    """
    given = b_args if b_args is not None else args
    other_kwargs = b_kwargs if b_kwargs is not None or b_args is not None else kwargs
    own, other = _source(a, args, kwargs), _source(b, given, other_kwargs)
    return align_sources(own, other, mapping=mapping, weights_only=weights_only)


def _source(given: Implementation, args: Any, kwargs: Mapping[str, Any] | None) -> Source:
    if isinstance(given, nn.Module):
        if args is not None or kwargs is not None:
            return Subject.of(given, () if args is None else args, kwargs)
        return NamedArrays.of_state(given.state_dict(), type(given).__name__)
    if isinstance(given, str | os.PathLike):
        return read_source(given)
    if isinstance(given, Mapping):
        return NamedArrays.of(given)
    raise CompareError(f"give a module, a mapping of arrays, records or a path, not a {type(given).__name__}")


def read_source(path: str | os.PathLike[str]) -> NamedArrays:
    """Read the arrays of a dump or another file; see `align`."""
    where = Path(path)
    if where.suffix == ".onnx":
        return NamedArrays.of(restore(where), str(where))
    arrays = load_arrays(where)
    return NamedArrays.of_state(arrays, str(where)) if where.suffix in CHECKPOINTS else NamedArrays(str(where), arrays)


def find_source(name: str) -> Source:
    """Return what the command line names: a file, or what a factory returns: a model with its arguments, or arrays."""
    if Path(name).suffix in ARRAY_FILES or name.endswith(".onnx"):
        return read_source(name)
    factory = find_factory(name)
    result = factory.call()
    return NamedArrays.of(result, name) if isinstance(result, Mapping) else factory.subject_of(result)


def align_sources(
    own: Source,
    other: Source,
    names: tuple[str, str] | None = None,
    mapping: str | os.PathLike[str] | ValueMap | None = None,
    *,
    weights_only: bool | None = None,
) -> Alignment:
    """Align two implementations; see `align`.

    Args:
        own: implementation A, a module with its arguments or named arrays.
        other: implementation B, likewise.
        names: what they are called; None for the names of their classes or files.
        mapping: see `align`.
        weights_only: see `align`.
    """
    given = mapping if isinstance(mapping, ValueMap) else ValueMap() if mapping is None else load_value_map(mapping)
    if _has_only_weights(own, other) if weights_only is None else weights_only:
        result = align_weights(own, other)
    elif isinstance(own, Subject) and isinstance(other, Subject):
        result = _align_subjects(own, other, given)
    else:
        result = align_arrays(own, other, given)
    return result if names is None else replace(result, reference=names[0], other=names[1])


def _has_only_weights(own: Source, other: Source) -> bool:
    arrays = [side for side in (own, other) if isinstance(side, NamedArrays)]
    if any(side.arrays.keys() == side.weights for side in arrays):
        return True
    return len(arrays) == len((own, other)) and not any(side.places for side in arrays)


def _align_subjects(own: Subject, other: Subject, given: ValueMap) -> Alignment:
    """Align two modules."""
    with phase("running A in float64"):
        first, first_again = _runs(own)
    with phase("running B in float64"):
        second, second_again = _runs(other)
    with phase("matching weights"):
        weights = match_weights(first.weights, second.weights, folded_vectors(first))
        release_memory()
    with phase("matching values"):
        tables = tables_of(first)
        second = exact_run(second, tables, weights.exact)
        second_again = None if second_again is None else exact_run(second_again, tables, weights.exact)
        pairs = Correspondence(Side(first, _compact(first_again)), Side(second, _compact(second_again)), weights)
    with phase("finding differences"):
        divergence = Divergence(pairs)
        suspects, missing = divergence.suspects(), divergence.missing()
    return alignment(pairs, suspects, missing, [*_remarks(pairs)], given)


def _runs(subject: Subject) -> tuple[Execution, Execution | None]:
    """Return the runs of an implementation on its inputs and on other ones; None if it fails on those."""
    first = run_model(subject.model, subject.args, subject.kwargs)
    release_memory()
    args, kwargs = other_numbers((subject.args, dict(subject.kwargs)))
    try:
        second = run_model(subject.model, args, kwargs)
    except TraceError:  # other numbers may be no valid inputs
        second = None
    release_memory()
    return first, second


def _compact(execution: Execution | None) -> Execution | None:
    """Return a run whose values are only compared, in half the memory: float32 is far finer than the tolerance."""
    if execution is None:
        return None
    values = {name: value.float() if value.is_floating_point() else value for name, value in execution.values.items()}
    return replace(execution, values=values, run_again=None)


def _remarks(pairs: Correspondence) -> Iterator[str]:
    sides = {"A": pairs.reference, "B": pairs.other}
    unsure = [name for name, side in sides.items() if side.second is None]
    if unsure:
        yield f"values were matched on one input only: {' and '.join(unsure)} ran other operations on a second one"
    others = [name for name in pairs.other.execution.graph.inputs if not pairs.owners.get(name)]
    if others:
        yield f"the input {others[0]!r} of B has numbers that no input of A has: give both the same ones"
    ties = [
        name
        for name, value in pairs.reference.execution.values.items()
        if name in pairs.reference.execution.graph.inputs
        and value.numel() > 1
        and bool((value == value.reshape(-1)[0]).all())
    ]
    if ties:
        yield f"all numbers of the input {ties[0]!r} are equal: many values can't be told apart; use other inputs"
