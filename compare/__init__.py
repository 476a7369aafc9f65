"""Where a graph leaves the model that it was made of: node by node, and which node did it first."""

from ._compare import compare
from ._metrics import Difference, compare_tensors
from ._report import Report
__all__=["Difference","compare_tensors","compare","Report"]
