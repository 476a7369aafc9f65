"""What Filch knows of ONNX operators, one file for each family: how PyTorch computes them in float64.

Also those of PyTorch that need help with it.
"""

from ._operator import NodeCall, Operator
from ._registry import find_operator
from ._without_kernel import float64_operator

__all__ = ["NodeCall", "Operator", "find_operator", "float64_operator"]
