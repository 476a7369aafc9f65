"""Convert complex tensors to the form that they have in ONNX graphs."""

import torch


def complex_as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a complex tensor as real numbers with a last dimension of 2; return any other tensor unchanged."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
