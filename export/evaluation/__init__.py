"""Evaluate exported programs node by node: in eager PyTorch, in float64, or with the ONNX reference evaluator."""
