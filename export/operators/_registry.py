"""All operators that Filch knows."""

from collections.abc import Mapping

from . import (
    _attention,
    _classical,
    _control,
    _elementwise,
    _loss,
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
    _loss,
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
_OPERATORS: Mapping[tuple[str, str], Operator] = {
    (operator.domain, operator.name): operator for family in _FAMILIES for operator in family.OPERATORS
}


def find_operator(domain: str, name: str) -> Operator | None:
    """Return an operator of a domain (`""` is ONNX's own) by its name; None if it is not known."""
    return _OPERATORS.get(("" if domain == "ai.onnx" else domain, name))
