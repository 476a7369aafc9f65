"""Reduce a part that is wrong while it stays wrong."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from itertools import compress

import onnx_ir as ir
import torch
from onnx_ir import tensor_adapters
from onnx_ir.passes import common
from onnxscript import optimizer
from torch import fx

from ..common._delta_debugging import minimize_by_removal
from ._case import Case
from ._find import FaultRegion
from ._fx_part import copy_function
from ._onnx_part import keep_outputs, set_shapes

_MIN_ERROR = 0.1  # of the original error; a part with a smaller one may have another fault
_MAX_SHAPE_LENGTH = 8  # elements of an integer vector that may be a shape


class Reduction:
    """Reduces a part while it stays wrong: not close, with at least a tenth of the original error.

    Args:
        region: the part to start with.
        runs: the largest number of parts to try.

    Attributes:
        case: the smallest part so far.
    """

    def __init__(self, region: FaultRegion, *, runs: int) -> None:
        self._region = region
        self._remaining_runs = runs
        self.case = region.case

    def remove_nodes(self) -> None:
        """Remove nodes, whose values become inputs with captured values; then outputs; then fold constants."""
        part = self._region.parts.case
        minimize_by_removal(sorted(self._region.nodes), lambda names: self._accept(part(names), captured=True))
        minimize_by_removal(
            self.case.outputs, lambda names: self._accept(_with_outputs(self.case, names), captured=True)
        )
        if not self._region.has_constants:
            self._accept(_folded(self.case), captured=True)

    def simplify_inputs(self) -> None:
        """Reduce dimensions and simplify numbers, if the expected values can be recomputed."""
        if self._region.expected_source == "model":
            return
        # Weights of a part that is both ONNX and torch may be stored differently, so they are not changed.
        keep_weights = self.case.model is not None and self._region.expected_source == "torch"
        for size in sorted(_sizes(self.case, keep_weights=keep_weights), reverse=True):
            # The powers of two below the size.
            smaller = [2**exponent for exponent in range((size - 1).bit_length())]
            self._accept_first(_resized(self.case, size, new) for new in smaller)
        weights = {} if keep_weights else {**self.case.initializers, **self.case.weights}
        # The values of small ones may be shapes, which other numbers would make invalid.
        large = {name: tensor for name, tensor in weights.items() if tensor.numel() > _MAX_SHAPE_LENGTH}
        for name, tensor in (*self.case.inputs.items(), *large.items()):
            self._accept_first(_with_tensor(self.case, name, simple) for simple in _simpler(tensor))

    def _accept_first(self, cases: Iterable[Case]) -> None:
        """Try the cases, the smallest first, until one is accepted."""
        next((case for case in cases if self._accept(case)), None)

    def _accept(self, case: Case | None, *, captured: bool = False) -> bool:
        """Accept a smaller part if it is still wrong and the number of runs is not exhausted.

        Args:
            case: the part; None if it could not be extracted.
            captured: whether its inputs are captured values, so that the captured outputs are references, too.
        """
        if case is None or self._remaining_runs <= 0:
            return False
        self._remaining_runs -= 1
        runner, source, original = self._region.runner, self._region.expected_source, self._region.error
        captured = captured and source != "float64"  # then the captured outputs are wrong, too
        error = runner.error_from_captured(case) if captured else runner.error(case, source)
        # An infinite error, of outputs that can't be compared or a part that can't be run, is another fault.
        if not error or error < _MIN_ERROR * original or math.isfinite(error) != math.isfinite(original):
            return False
        if captured and source != "model" and not runner.agrees_with_captured(case, source):
            return False
        self.case = case
        return True


def _with_outputs(case: Case, names: Collection[str]) -> Case:
    """Return the case with only these outputs."""
    function, model = case.function, case.model
    inputs = set[str]()
    if model is not None:
        model = keep_outputs(model.clone(), names)
        inputs |= {value.name for value in model.graph.inputs if value.name}
    if function is not None:
        kept = [name in names for name in case.outputs]
        function = copy_function(function, lambda results: tuple(compress(results, kept)))
        inputs |= {node.name for node in function.graph.find_nodes(op="placeholder")}
    return replace(
        case,
        inputs={name: tensor for name, tensor in case.inputs.items() if name in inputs},
        weights={name: tensor for name, tensor in case.weights.items() if name in inputs},
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
    return replace(case, model=set_shapes(model, case.inputs)) if len(model.graph) < len(case.model.graph) else None


def _sizes(case: Case, *, keep_weights: bool) -> set[int]:
    """Return the dimension sizes greater than 1; with `keep_weights`, those that no weight has."""
    of_weights = {size for tensor in (*case.initializers.values(), *case.weights.values()) for size in tensor.shape}
    of_inputs = {size for tensor in case.inputs.values() for size in tensor.shape}
    return {size for size in (of_inputs - of_weights if keep_weights else of_inputs | of_weights) if size > 1}


def _resized(case: Case, old: int, new: int) -> Case:
    """Return the case with all dimensions of size `old` cut to `new`, also in tensors and arguments that are shapes."""

    def resize(_: str, tensor: torch.Tensor) -> torch.Tensor:
        """Cut the dimensions of a tensor; replace the size in a vector that may be a shape."""
        for dim, size in enumerate(tensor.shape):
            tensor = tensor.narrow(dim, 0, new) if size == old else tensor
        if tensor.dtype == torch.int64 and tensor.ndim == 1 and tensor.numel() <= _MAX_SHAPE_LENGTH:
            tensor = torch.where(tensor == old, new, tensor)
        return tensor.contiguous()

    resized = _map_tensors(case, resize)
    if resized.model is not None:
        set_shapes(resized.model, resized.inputs)
    return resized if case.function is None else replace(resized, function=_with_size(case.function, old, new))


def _with_size(function: fx.GraphModule, old: int, new: int) -> fx.GraphModule:
    """Return a copy with `new` instead of `old` in the list arguments of its operations, such as shapes."""
    copy = copy_function(function)
    for node in copy.graph.nodes:
        if node.op == "call_function":
            node.args = tuple(
                [new if type(item) is int and item == old else item for item in arg] if isinstance(arg, list) else arg
                for arg in node.args
            )
    copy.recompile()
    return copy


def _simpler(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield tensors of the same shape with simpler numbers, the simplest first; none if all numbers are equal."""
    if bool((tensor == tensor.reshape(-1)[:1]).all()):
        return
    yield torch.zeros_like(tensor)
    yield torch.ones_like(tensor)
    if tensor.is_floating_point():
        for decimals in (0, 1):
            yield tensor.double().round(decimals=decimals).to(tensor.dtype)


def _with_tensor(case: Case, name: str, tensor: torch.Tensor) -> Case:
    """Return the case with other numbers for one tensor."""
    return _map_tensors(case, lambda other, current: tensor if other == name else current)


def _map_tensors(case: Case, change: Callable[[str, torch.Tensor], torch.Tensor]) -> Case:
    """Return the case with `change(name, tensor)` for each input, weight and initializer, which the model has.

    What was recorded of the case is left out, as it is that of other numbers.
    """
    model = None if case.model is None else case.model.clone()
    for name, tensor in case.initializers.items():
        changed = change(name, tensor)
        if model is not None and changed is not tensor:
            value = model.graph.initializers[name]
            value.const_value = tensor_adapters.TorchTensor(changed, name=name)
            value.shape = ir.Shape(changed.shape)
    inputs = {name: change(name, tensor) for name, tensor in case.inputs.items()}
    weights = {name: change(name, tensor) for name, tensor in case.weights.items()}
    return replace(case, inputs=inputs, weights=weights, model=model, recorded={})
