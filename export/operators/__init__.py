"""What Filch knows of ONNX operators, one file for each family: how PyTorch computes them in float64."""

from ._operator import Call, Operator
from ._registry import find_operator

__all__ = ["Call", "Operator", "find_operator"]
