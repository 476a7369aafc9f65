"""What Filch knows of the operators of ONNX, of runtimes and of PyTorch, one file for each family.

An entry (`Operator`) says how PyTorch computes an operator in float64, whether it moves or chooses numbers, adds or
decides, and what its rounding errors are relative to. Nothing else in Filch has lists of operators: see `operator_of`.
"""

from ._bounds import KnownInputs, most_dimensions, most_elements
from ._operator import NodeCall, Operator, Terms
from ._registry import find_operator, operator_name, operator_of
from ._without_kernel import float64_operator

__all__ = [
    "KnownInputs",
    "NodeCall",
    "Operator",
    "Terms",
    "find_operator",
    "float64_operator",
    "most_dimensions",
    "most_elements",
    "operator_name",
    "operator_of",
]
