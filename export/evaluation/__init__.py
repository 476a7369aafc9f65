"""Evaluate exported programs and ONNX graphs node by node: in eager PyTorch, and in float64."""
