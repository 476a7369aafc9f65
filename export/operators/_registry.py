"""All operators that Filch knows."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from . import (
    _attention,
    _classical,
    _control,
    _elementwise,
    _movement,
    _normalization,
    _pooling,
    _product,
    _quantized,
    _recurrent,
    _reduction,
    _sequence,
    _signal,
)
from ._operator import Operator

_FAMILIES = (
    _attention,
    _classical,
    _control,
    _elementwise,
    _movement,
    _normalization,
    _pooling,
    _product,
    _quantized,
    _recurrent,
    _reduction,
    _sequence,
    _signal,
)
_MICROSOFT = "com.microsoft"
_RUNTIMES = ("aten", "com.microsoft", "com.ms.internal", "openvino", "pkg.torch", "prims")
_ONNX: Mapping[tuple[str, str], Operator] = {
    (operator.domain, operator.name): operator for family in _FAMILIES for operator in family.OPERATORS if operator.name
}
_TORCH: Mapping[str, Operator] = {
    name: replace(operator, name=name, family=operator.family or operator.name.lower())
    for family in _FAMILIES
    for operator in family.OPERATORS
    for name in operator.torch.split()
}


def find_operator(domain: str, name: str) -> Operator | None:
    """Return an operator of a domain (`""` is ONNX's own) by its name; None if it is not known."""
    return _ONNX.get(("" if domain == "ai.onnx" else domain, name))


@lru_cache(maxsize=2**14)
def operator_of(op: str) -> Operator:
    """Return what is known of an operator.

    Args:
        op: its name as in `Node.op`: of ONNX, with its domain if that is not ONNX's own (`"com.microsoft::FusedConv"`);
            of PyTorch, a function's, a method's or an ATen operator's, with or without overload (`"mul"`, `"mul_"`,
            `"aten.mul.Tensor"`).

    Returns:
        the operator; one with its name and nothing else if it is not known.
    """
    domain, _, name = op.rpartition("::")
    if (found := find_operator(domain, name)) is not None:
        return found
    plain = operator_name(op).removesuffix("_")
    if domain and not domain.startswith(_RUNTIMES):  # an operator of somebody else may mean anything
        return Operator(plain)
    # What a runtime calls like an operator of PyTorch, Microsoft or ONNX is taken for that one.
    found = _TORCH.get(plain) or _ONNX.get((_MICROSOFT if domain else "", name)) or _ONNX.get(("", name))
    found = found or Operator(plain)
    # A division with a rounding mode returns integers.
    return replace(found, jumps=True) if op.endswith((".Tensor_mode", ".Scalar_mode")) else found


def operator_name(op: str) -> str:
    """Return the name of an operator without domain or namespace and overload: `aten.mul.Tensor` becomes `mul`."""
    namespace, _, name = op.rpartition("::")
    parts = name.split(".")
    return parts[1] if not namespace and (len(parts) == 3 or op.startswith("aten.")) else name
