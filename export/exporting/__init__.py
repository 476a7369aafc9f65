"""Export a PyTorch model to ONNX and keep track of its module calls."""
