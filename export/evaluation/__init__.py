"""Evaluate exported programs node by node: in eager PyTorch, in float64, by the ONNX reference evaluator."""
