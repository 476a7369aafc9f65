"""Align two implementations of the same model, and find where the second one leaves the first."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from filch.export import TraceError, release_memory
from filch.steal import phase

from .alignment._correspondence import Correspondence
from .alignment._divergence import Divergence
from .alignment._execution import Execution, run_model
from .alignment._folded import folded_vectors
from .alignment._result import alignment
from .alignment._second_input import other_numbers
from .alignment._value_map import ValueMap, load_value_map
from .alignment._values import Side
from .alignment._weights import match_weights
from .models._subject import Subject
from .results._alignment import Alignment


def align(
    a: nn.Module,
    b: nn.Module,
    args: Any,
    b_args: Any = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    b_kwargs: Mapping[str, Any] | None = None,
    mapping: str | os.PathLike[str] | ValueMap | None = None,
) -> Alignment:
    """Find which weights and values of two implementations are the same, and where B leaves A.

    Both run in float64, on the given inputs and on others that are made from them: rounding is then so small that equal
    formulas have equal numbers, and different ones do not. Names play no part. A weight or value of B may be
    transposed, split, joined, interleaved or repeated; the layout is solved for, and counts if it holds for every
    element.

    A value of B that is no value of A may be right: B may compute the same in other steps. It counts only if a wrong
    output depends on it. To find what is wrong behind the first difference, B runs again with the numbers of A as the
    operands of the operations that read A's weights.

    Args:
        a: the reference implementation, in the mode in which to run it.
        b: the other implementation.
        args: the positional arguments of A, or its only one. Inputs in which many numbers are equal say little.
        b_args: those of B, with the same numbers; None if they are the same.
        kwargs: the keyword arguments of A.
        b_kwargs: those of B; None if they are the same as those of A and `b_args` is None.
        mapping: where module outputs of A are in B, as a `ValueMap` or its TOML file. Its rows are checked and displace
            what the numbers say; rows with other numbers are reported.

    Returns:
        an `Alignment`: `close` if the outputs of B are those of A.

    Raises:
        CompareError: one of them is no module, or `mapping` names a module that was not called.
        TraceError: one of them fails on its inputs.

    >>> import torch
    >>> a, b = torch.nn.Linear(4, 6), torch.nn.Linear(4, 6)
    >>> _ = b.load_state_dict(a.state_dict())
    >>> align(a, b, torch.randn(3, 4)).headline
    '2 of 2 weights of B and 1 of 1 module outputs of A found; the outputs are the same'
    """
    own = Subject.of(a, args, kwargs)
    given = b_args if b_args is not None else args
    other = Subject.of(b, given, b_kwargs if b_kwargs is not None or b_args is not None else kwargs)
    return align_subjects(own, other, mapping=mapping)


def align_subjects(
    own: Subject,
    other: Subject,
    names: tuple[str, str] | None = None,
    mapping: str | os.PathLike[str] | ValueMap | None = None,
) -> Alignment:
    """Align two implementations; see `align`.

    Args:
        own: implementation A with its arguments.
        other: implementation B with its arguments.
        names: what they are called; None for the names of their classes.
        mapping: see `align`.
    """
    given = mapping if isinstance(mapping, ValueMap) else ValueMap() if mapping is None else load_value_map(mapping)
    with phase("running A in float64"):
        first, first_again = _runs(own)
    with phase("running B in float64"):
        second, second_again = _runs(other)
    with phase("matching weights"):
        weights = match_weights(first.weights, second.weights, folded_vectors(first))
        release_memory()
    with phase("matching values"):
        pairs = Correspondence(Side(first, first_again), Side(second, second_again), weights)
    with phase("finding differences"):
        divergence = Divergence(pairs)
        suspects, missing = divergence.suspects(), divergence.missing()
    result = alignment(pairs, suspects, missing, [*_remarks(pairs)], given)
    return result if names is None else replace(result, reference=names[0], other=names[1])


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


def _remarks(pairs: Correspondence) -> Iterator[str]:
    sides = {"A": pairs.reference, "B": pairs.other}
    unsure = [name for name, side in sides.items() if side.second is None]
    if unsure:
        yield f"values were matched on one input only: {' and '.join(unsure)} ran other operations on a second one"
    ties = [
        name
        for name, value in pairs.reference.execution.values.items()
        if name in pairs.reference.execution.graph.inputs
        and value.numel() > 1
        and bool((value == value.reshape(-1)[0]).all())
    ]
    if ties:
        yield f"all numbers of the input {ties[0]!r} are equal: many values can't be told apart; use other inputs"
