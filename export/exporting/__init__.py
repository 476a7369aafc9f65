"""Export a PyTorch model to ONNX, with the values of its module calls."""
