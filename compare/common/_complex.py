"""Complex numbers as ONNX graphs have them."""

import torch


def complex_as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs of real ones, in one dimension more; other tensors as they are."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
