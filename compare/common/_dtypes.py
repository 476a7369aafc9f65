"""The dtypes of PyTorch by their names."""

import torch

from filch.export import Graph


def torch_dtype(name: str | None) -> torch.dtype | None:
    """Return the dtype of PyTorch with a name, such as `float32`; None if there is none, as for strings."""
    dtype = getattr(torch, name or "", None)
    return dtype if isinstance(dtype, torch.dtype) else None


def declared_dtype(graph: Graph, name: str) -> torch.dtype | None:
    """Return the dtype that a graph declares for a value; None if it does not, or PyTorch does not have it."""
    return torch_dtype(graph.values[name].dtype) if name in graph.values else None
