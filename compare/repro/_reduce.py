"""Reduce a part that is wrong while it stays wrong."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir import tensor_adapters
from onnx_ir.passes import common
from onnxscript import optimizer
from torch import fx

from ..common._delta_debugging import needed
from ._case import Case
from ._fx_part import copied
from ._onnx_part import giving, shaped
from ._result import ExpectedSource
from ._runner import Runner

_STAYS = 0.1  # of the first error still counts as the same fault
_FEW = 8  # elements of an integer vector that may be a shape
Cut = Callable[[Collection[str]], Case | None]


@dataclass(frozen=True)
class Wrong:
    """A part that is wrong.

    Attributes:
        names: the names of its nodes.
        case: the part with its inputs.
        error: the largest harmonic error.
        truth: the source of the expected values.
        fixed: whether the wrong values may be constants.
    """

    names: Collection[str]
    case: Case
    error: float
    truth: ExpectedSource
    fixed: bool


class Reduction:
    """Reduces a part while it stays wrong: not close, with at least a tenth of the original error.

    Args:
        runner: measures the error of a part.
        wrong: the part to start with.
        runs: the largest number of parts to try.
    """

    def __init__(self, runner: Runner, wrong: Wrong, *, runs: int) -> None:
        self._runner = runner
        self._first = wrong
        self._left = runs
        self.case = wrong.case

    def fewer_nodes(self, cut: Cut) -> None:
        """Remove nodes, whose values become inputs with captured values; then outputs; then fold constants."""
        needed(sorted(self._first.names), lambda names: self._takes(cut(names), recorded=True))
        needed(self.case.outputs, lambda names: self._takes(_with_outputs(self.case, names), recorded=True))
        if not self._first.fixed:
            self._takes(_folded(self.case), recorded=True)

    def smaller(self) -> None:
        """Reduce dimensions and simplify numbers, if the expected values can be recomputed."""
        if self._first.truth == "model":
            return
        for size in sorted(_sizes(self.case, self._only_fed), reverse=True):
            self._first_of(_resized(self.case, size, to) for to in _halves(size))
        for name, tensor in self.case.inputs.items():
            self._first_of(_simplified(self.case, name, simple) for simple in _simple(tensor))
        for name, tensor in () if self._only_fed else tuple({**self.case.held, **self.case.weights}.items()):
            if tensor.numel() > _FEW:
                self._first_of(_simplified(self.case, name, simple) for simple in _simple(tensor))

    @property
    def _only_fed(self) -> bool:
        """Whether the part is both ONNX and torch, whose weights may be stored differently and are not changed."""
        return self.case.model is not None and self._first.truth == "torch"

    def _first_of(self, cases: Iterable[Case | None]) -> None:
        next((case for case in cases if self._takes(case)), None)

    def _takes(self, case: Case | None, *, recorded: bool = False) -> bool:
        """Accept a smaller part if it is still wrong and the number of runs is not exhausted.

        Args:
            case: the part; None if it could not be extracted.
            recorded: whether its inputs are captured values, so that the captured outputs are references, too.
        """
        if case is None or self._left <= 0:
            return False
        self._left -= 1
        first, truth = self._first, self._first.truth
        error = self._runner.wrong(case) if recorded else self._runner.error(case, truth)
        stays = error > 0 and error >= _STAYS * first.error and math.isfinite(error) == math.isfinite(first.error)
        if not stays or (recorded and truth != "model" and not self._runner.agrees(case, truth)):
            return False
        self.case = case
        return True


def _with_outputs(case: Case, names: Collection[str]) -> Case:
    """Return the case with only these outputs."""
    function, model = case.function, case.model
    if model is not None:
        model = giving(model.clone(), names)
    if function is not None:
        kept = [name in names for name in case.outputs]
        function = copied(function, returns=lambda made: tuple(compress(made, kept)))
    taken = {value.name for value in model.graph.inputs} if model is not None else set()
    taken |= {node.name for node in function.graph.find_nodes(op="placeholder")} if function is not None else set()
    return replace(
        case,
        inputs={name: tensor for name, tensor in case.inputs.items() if name in taken},
        weights={name: tensor for name, tensor in case.weights.items() if name in taken},
        outputs=tuple(name for name in case.outputs if name in names),
        model=model,
        function=function,
        recorded={name: tensor for name, tensor in case.recorded.items() if name in names},
    )


def _folded(case: Case) -> Case | None:
    """Return the case with constants folded; None if there are none."""
    if case.model is None:
        return None
    model = case.model.clone()
    optimizer.fold_constants(model)
    common.RemoveUnusedNodesPass()(model)
    return replace(case, model=shaped(model, case.inputs)) if len(model.graph) < len(case.model.graph) else None


def _sizes(case: Case, only_fed: bool) -> set[int]:  # noqa: FBT001  used above alone
    """Return the dimension sizes greater than 1; with `only_fed`, those that no weight has."""
    held = {size for tensor in (*case.held.values(), *case.weights.values()) for size in tensor.shape}
    fed = {size for tensor in case.inputs.values() for size in tensor.shape}
    return {size for size in (fed - held if only_fed else fed | held) if size > 1}


def _halves(size: int) -> Iterator[int]:
    """Yield smaller sizes, the smallest first."""
    halves = [1]
    while halves[-1] * 2 < size:
        halves.append(halves[-1] * 2)
    yield from halves


def _resized(case: Case, old: int, new: int) -> Case:
    """Return the case with all dimensions of size `old` cut to `new`, also in tensors that hold shapes."""

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        for dim, size in enumerate(tensor.shape):
            tensor = tensor.narrow(dim, 0, new) if size == old else tensor
        if tensor.dtype == torch.int64 and tensor.ndim == 1 and tensor.numel() <= _FEW:
            tensor = torch.where(tensor == old, new, tensor)
        return tensor.contiguous()

    inputs = {name: cut(tensor) for name, tensor in case.inputs.items()}
    held = {name: cut(tensor) for name, tensor in case.held.items()}
    return replace(
        case,
        inputs=inputs,
        weights={name: cut(tensor) for name, tensor in case.weights.items()},
        model=None if case.model is None else shaped(_holding(case.model, held), inputs),
        function=None if case.function is None else _of_shape(case.function, old, new),
        recorded={},
    )


def _of_shape(function: fx.GraphModule, old: int, new: int) -> fx.GraphModule:
    """Return a copy with `new` instead of `old` in the list arguments of its operations, such as shapes."""
    made = copied(function)
    for node in made.graph.nodes:
        if node.op == "call_function":
            node.args = tuple(_other(arg, old, new) for arg in node.args)
    made.recompile()
    return made


def _other(arg: Any, old: int, new: int) -> Any:
    if not isinstance(arg, list):
        return arg
    return [new if type(item) is int and item == old else item for item in arg]


def _simple(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield tensors of the same shape with simpler numbers, the simplest first."""
    if bool((tensor == tensor.reshape(-1)[:1]).all()):
        return
    yield torch.zeros_like(tensor)
    yield torch.ones_like(tensor)
    if tensor.is_floating_point():
        for decimals in (0, 1):
            yield tensor.double().round(decimals=decimals).to(tensor.dtype)


def _simplified(case: Case, name: str, tensor: torch.Tensor) -> Case:
    """Return the case with other numbers for one tensor."""
    inputs, weights = ({**held, name: tensor} if name in held else held for held in (case.inputs, case.weights))
    model = case.model
    if model is not None and name in case.held:
        model = _holding(model, {name: tensor})
    return replace(case, inputs=inputs, weights=weights, model=model, recorded={})


def _holding(model: ir.Model, held: dict[str, torch.Tensor]) -> ir.Model:
    """Return a copy of the model with these initializers replaced."""
    made = model.clone()
    for name, tensor in held.items():
        value = made.graph.initializers[name]
        value.const_value = tensor_adapters.TorchTensor(tensor, name=name)
        value.shape = ir.Shape(tensor.shape)
    return made
