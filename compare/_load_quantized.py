"""Give a model the quantized weights of an ONNX file, so that the file is not compared with what it can't be."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from filch.export import Node, Program, as_program

from ._compare import ProgramLike
from .pairing._quantized import GATHER, QuantizedWeight, quantized_weight

_SIMILAR = 0.5  # the relative distance of a quantized weight, at most; that of unrelated numbers is above 1
_SLACK = 1e-3  # of a step, for the rounding of scales


def load_quantized(model: nn.Module, program: ProgramLike) -> tuple[str, ...]:
    """Replace the weights of a model by what an ONNX program stores of them in a few bits.

    A file with weights of 4 bits differs from its model in nearly all values, by a few percent, which hides faults.
    With the same weights, the other differences are left. For each product with a quantized weight (`MatMulNBits`) and
    each quantized table (`GatherBlockQuantized`), the weights of the model that it holds, one or several joined, are
    found by their numbers. A number is replaced if the
    file's is within half a step of it; others are not what quantizing the model gives, so they are kept and reported.

    Args:
        model: the model; it is changed.
        program: the path of an ONNX file, an ONNX model, or a program.

    Returns:
        notes: how many weights were replaced, and which differ from the model's by more than quantization.

    Raises:
        FilchError: the program is invalid.

    Example:
        >>> import torch
        >>> from filch.compare import load_quantized
        >>> from filch.export import export
        >>> model = torch.nn.Linear(32, 8)
        >>> load_quantized(model, export(model, (torch.ones(1, 32),)))  # which has no quantized weights
        ()
    """
    loaded = as_program(program).snapshot()
    found = [(node, quantized_weight(node, partial(_constant, loaded))) for node in loaded.graph.nodes]
    quantized = [(node, weight) for node, weight in found if weight is not None]
    slots, tables, count = [*_slots(model)], [*_tables(model)], 0
    notes: list[str] = []
    with torch.no_grad():
        for node, weight in quantized:
            # A product's weight is [inputs, outputs]; the rows of a model's weight, as of a Linear, are its outputs.
            rows = weight if node.op == GATHER else QuantizedWeight(weight.numbers.T, weight.most.T)
            if parts := _parts(rows.numbers, tables if node.op == GATHER else slots):
                count += 1
                notes += _replace(node, rows, parts)
            else:
                notes.append(f"the quantized weight of {node.name} is none of the model's")
    if quantized:
        notes.insert(0, f"{count} of {len(quantized)} quantized weights of the program were given to the model")
    return tuple(notes)


@dataclass(frozen=True)
class _Slot:
    """A matrix of a model, and where it is; its rows are what a row of the quantized weight is compared with."""

    module: nn.Module
    name: str
    transposed: bool

    @property
    def rows(self) -> torch.Tensor:
        matrix: torch.Tensor = getattr(self.module, self.name).detach()
        return matrix.T if self.transposed else matrix

    def set(self, rows: torch.Tensor) -> None:
        """Replace the matrix in this module alone: others may share it, as embeddings do."""
        matrix = getattr(self.module, self.name)
        changed = (rows.T if self.transposed else rows).to(matrix).contiguous()
        setattr(self.module, self.name, nn.Parameter(changed, requires_grad=matrix.requires_grad))


def _constant(program: Program, name: str) -> torch.Tensor | None:
    """Return a constant by its name, or that of what was reshaped."""
    node = program.graph.producer.get(name)
    return program.constant(name if node is None or node.operator.movement != "reshape" else node.inputs[0])


def _tables(model: nn.Module) -> list[_Slot]:
    """Return the tables from which rows are taken."""
    return [_Slot(module, "weight", transposed=False) for module in model.modules() if isinstance(module, nn.Embedding)]


def _slots(model: nn.Module) -> Iterator[_Slot]:
    """Yield the matrices of the model's modules, except for tables from which rows are taken."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() == 2 and not isinstance(module, nn.Embedding):
                yield from (_Slot(module, name, transposed) for transposed in (False, True))


def _parts(rows: torch.Tensor, slots: list[_Slot]) -> list[tuple[_Slot, int, int, int]]:
    """Return the slots that make up some rows: each with the first row in it, that in `rows`, and their number.

    Empty if some rows are in no slot.
    """
    parts, start = [], 0
    while start < len(rows):
        best = min(_candidates(rows, start, slots), key=lambda item: item[0], default=None)
        if best is None:
            return []
        _, slot, first, count = best
        parts.append((slot, first, start, count))
        start += count
    return parts


def _candidates(rows: torch.Tensor, start: int, slots: list[_Slot]) -> Iterator[tuple[float, _Slot, int, int]]:
    """Yield the slots with the rows from `start` on, as their first rows or else at any place, and their distance."""
    found = False
    for everywhere in (False, True):
        for slot in slots if not found else ():
            matrix = slot.rows
            if matrix.shape[-1] != rows.shape[-1]:
                continue
            searched = matrix if everywhere else matrix[:1]
            distances = _distance(searched, rows[start])
            first = int(distances.argmin())
            count = min(len(matrix) - first, len(rows) - start)
            if float(distances[first]) < _SIMILAR:
                distance = float(_distance(matrix[first : first + count], rows[start : start + count]).mean())
                if distance < _SIMILAR:
                    found = True
                    yield distance, slot, first, count


def _distance(rows: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return the distance of rows, relative to their length."""
    lengths = rows.float().norm(dim=-1).clamp_min(torch.finfo(torch.float32).tiny)
    distance: torch.Tensor = (rows.float() - others.float()).norm(dim=-1) / lengths
    return distance


def _replace(node: Node, weight: QuantizedWeight, parts: list[tuple[_Slot, int, int, int]]) -> Iterator[str]:
    """Replace numbers of a model by the quantized ones that are within rounding; yield a note if others are not.

    Args:
        node: the node that reads the quantized weight.
        weight: the quantized weight, with rows as the matrices of the slots have.
        parts: the matrices of the model that it holds; see `_parts`.
    """
    wrong = 0
    for slot, first, start, count in parts:
        rows, replaced = slot.rows.clone(), slice(first, first + count)
        numbers, most = weight.numbers[start : start + count], weight.most[start : start + count]
        is_rounded = (rows[replaced].float() - numbers.float()).abs() <= most.float() * (1 + _SLACK)
        rows[replaced] = torch.where(is_rounded, numbers.to(rows.dtype), rows[replaced])
        wrong += int((~is_rounded).sum())
        slot.set(rows)
    if wrong:
        yield (
            f"{wrong} of {weight.numbers.numel()} numbers in the quantized weight of {node.name} differ from the "
            "model's by more than quantization does"
        )
