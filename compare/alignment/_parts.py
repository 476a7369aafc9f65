"""Parts of outputs that are declared, where B has no more of them: a window of tokens, the last one, or nothing."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from ..common._errors import CompareError
from ..pairing._outputs import bare_name
from ..runs._execution import Execution, Output

NONE = "none"
Parts = Mapping[str, str]  # an index in brackets, or "none", by the name of the output
_NUMBER = r"-?\d{1,18}"
_INDEX = re.compile(rf"\.\.\.|{_NUMBER}|({_NUMBER})?:({_NUMBER})?(:{_NUMBER})?")


def with_parts(execution: Execution, parts: Parts) -> Execution:
    """Return a run with only those parts of outputs that B has.

    Args:
        execution: a run of A.
        parts: what B has of the outputs of A, by name: an index such as `"[:, -1]"`, or `"none"`.

    Raises:
        CompareError: A has no such output, or an output no such part.
    """
    names = [bare_name(output) for output in execution.outputs if output.result.kind == "returned"]
    for name in parts:
        if name not in names:
            raise CompareError(f"A returns no {name!r}: give one of {', '.join(map(repr, names)) or 'none'}")
    kept = [output for output in execution.outputs if parts.get(bare_name(output)) != NONE]
    return replace(execution, outputs=tuple(_part(output, parts) for output in kept))


def _part(output: Output, parts: Parts) -> Output:
    """Return an output with the part that is declared of it; as it is if none is."""
    if output.result.kind != "returned" or bare_name(output) not in parts:
        return output
    text = parts[bare_name(output)]
    native = None if output.native is None else part_of(output.native, text)
    return replace(output, tensor=part_of(output.tensor, text), native=native)


def part_of(tensor: torch.Tensor, text: str) -> torch.Tensor:
    """Return a part of a tensor.

    Args:
        tensor: any tensor.
        text: numbers, slices and `...` in brackets: `"[:, -1]"`.

    Raises:
        CompareError: the text is no index, or the tensor has no such part.
    """
    items = [item.strip() for item in text[1:-1].split(",")]
    if not (text.startswith("[") and text.endswith("]") and all(map(_INDEX.fullmatch, items))):
        raise CompareError(f"a part is an index such as '[:, -1]', or 'none', not {text!r}")
    try:
        return tensor[tuple(map(_index, items))].clone()
    except (IndexError, ValueError) as error:
        raise CompareError(f"an output of the shape {[*tensor.shape]} has no part {text}: {error}") from error


def _index(text: str) -> Any:
    """Return the index of one dimension that a text writes: `...`, a number or a slice."""
    if text == "...":
        return ...
    if ":" not in text:
        return int(text)
    return slice(*(int(number) if number else None for number in text.split(":")))
